"""What is imported when it is named: public names of a package, and objects that configurations name."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, TypeVar

_Object = TypeVar("_Object")

_NAMED = re.compile(r"^    from (\S+) import (\w+) as \2$", re.MULTILINE)


def import_when_named(package: str) -> None:
    """Let a package have the names that it imports for type checkers, each imported when it is asked for.

    They stand below its ``if TYPE_CHECKING:``, one in a line as itself (``from place import name as name``),
    and are the package's ``__all__``. They are read off its source, so that no second list differs.
    """
    module = sys.modules[package]
    loader: Any = module.__loader__
    source = loader.get_data(module.__file__).decode()  # get_source() would import tokenize
    place_of = {name: place for place, name in _NAMED.findall(source)}
    module.__class__ = _Package
    vars(module).update(_place_of=place_of, __all__=sorted(place_of))


class _Package(ModuleType):
    _place_of: Mapping[str, str]

    def __getattr__(self, name: str) -> object:
        place = vars(self)["_place_of"].get(name)
        if place is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)
        found: object = getattr(importlib.import_module(place), name)
        vars(self)[name] = found
        return found

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, but for a module that is called as a public name is: as importing it would."""
        if not (isinstance(value, ModuleType) and name in vars(self)["_place_of"]):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Be pickled by name: Ray and Dask send functions whose globals hold this package."""
        return importlib.import_module, (self.__name__,)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *vars(self)["_place_of"]})


def object_at(place: str) -> Any:
    """Import what ``MODULE:ATTRIBUTE`` stands for."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


class NamedObjects(Mapping[str, _Object]):
    """Objects by name, each imported when it is asked for; a class is called once, without arguments.

    Parameters
    ----------
    places : mapping of str to str
        ``MODULE:ATTRIBUTE`` of each, as entry points have it.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places
        self._made: dict[str, _Object] = {}

    def __getitem__(self, name: str) -> _Object:
        if name not in self._made:
            found = object_at(self._places[name])
            self._made[name] = found() if isinstance(found, type) else found
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
