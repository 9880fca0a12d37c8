"""Plain values turned into configuration sections: unknown, missing and ill-typed ones are refused by name.

Every configuration file is read this way, whatever error its reader makes of what is wrong.

Knows the annotations that sections use, and how communicators join ranks; no section by itself.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wsm.errors import BadInputError, WsmError
from wsm.yaml_reading import YamlReadingError, read_file


class ConfigurationError(BadInputError):
    """A configuration value is missing, unknown or contradicts another one."""

    def __init__(self, *, where: str, problem: str, fix: str) -> None:
        super().__init__(f"configuration {where}: {problem}; {fix}", where=where, problem=problem, fix=fix)

    def within(self, where: str) -> ConfigurationError:
        """Return this error with the file (or whatever it is) named that the value stands in."""
        inner = self.context["where"]
        if inner.startswith(where):
            return self
        whole = f"{where}: {inner}"
        return ConfigurationError(where=whole, problem=self.context["problem"], fix=self.context["fix"])


@dataclass(frozen=True)
class OptionFault:
    """What is wrong with one option: its name, what was found, what it must be."""

    option: str
    problem: str
    fix: str


def read_yaml(path: str | Path, refusal: Callable[[str], WsmError]) -> Any:
    """Return what a YAML file holds; raises what `refusal` makes of the reason why it cannot be read."""
    try:
        return read_file(path)
    except YamlReadingError as error:
        raise refusal(str(error)) from error


def build(kind: type[Any], values: object, where: str, **parts: object) -> Any:
    """Return the section `kind`, a dataclass, made of `values`; `where` says in messages where they stand.

    `parts` are fields that are no options: they are made otherwise.

    Raises
    ------
    ConfigurationError
        If `values` is no mapping, or holds an unknown, missing or ill-typed value.
    """
    if not isinstance(values, Mapping):
        raise ConfigurationError(where=where, problem=f"is {values!r}", fix="it must be a mapping of options")
    fault = option_fault(kind, values, without=parts)
    if fault is not None:
        raise ConfigurationError(where=where, problem=f"{fault.option!r} {fault.problem}", fix=fault.fix)
    return kind(**values, **parts)


def option_fault(
    kind: type[Any], values: Mapping[Any, Any], *, without: Collection[str] = ()
) -> OptionFault | None:
    """Return the first unknown, missing or ill-typed option of the section `kind` among `values`.

    Parameters
    ----------
    kind : type
        A dataclass.
    values : mapping
        Plain values, as YAML has them.
    without : collection of str
        Fields of `kind` that are no options: they are made otherwise.
    """
    fields = {f.name: f for f in dataclasses.fields(kind) if f.name not in without}
    for key in values:
        if key not in fields:
            close = difflib.get_close_matches(str(key), fields, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(fields)}"
            return OptionFault(str(key), "is unknown", hint)
    for name, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and name not in values:
            return OptionFault(name, "is missing", "add it")
        need = _need(name, _written(f.type), values[name]) if name in values else None
        if need is not None:
            return OptionFault(name, f"is {values[name]!r}", f"it must be {need}")
    return None


#: The longest time that anything may be told to wait: thirty years.
_LONGEST_S = 1e9
_SECONDS = f"a positive number of seconds, {_LONGEST_S:g} at most"

#: What a value of a simple annotation is, as YAML has it.
_KINDS: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "None": (type(None),),
    "Mapping": (Mapping,),
    "dict": (Mapping,),
    "Sequence": (list, tuple),
    "list": (list, tuple),
    "tuple": (list, tuple),
}


def _need(name: str, annotation: str, value: object) -> str | None:
    """Say what a value must be that does not fit a simple annotation; nested classes are checked by build."""
    outer = re.sub(r"\[.*\]", "", annotation)
    parts = [_KINDS.get(part.strip()) for part in outer.split("|")]
    if None in parts:
        return None
    kinds = tuple(kind for part in parts for kind in part or ())
    wrong = not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
    if annotation == "float" and name.endswith("_s"):
        return None if not wrong and is_seconds(value) else _SECONDS
    return annotation if wrong else None


def is_seconds(value: object) -> bool:
    """Whether a value is a time that something may wait: finite, and short enough for every clock."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= _LONGEST_S


def _written(annotation: object) -> str:
    """Return an annotation as it is written in a module that does not evaluate its annotations."""
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__name__
    return str(annotation).replace("collections.abc.", "").replace("typing.", "")


def connected_parts(ranks: int, communicators: Mapping[str, Sequence[Sequence[int]]]) -> list[list[int]]:
    """Return the connected components of the ranks, joined by the ranks that share a communicator."""
    if not communicators:
        return [list(range(ranks))]
    root = list(range(ranks))

    def find(rank: int) -> int:
        while root[rank] != rank:
            rank = root[rank]
        return rank

    for name, groups in communicators.items():
        for members in _lists_of_ranks(name, groups):
            for rank in members:
                if type(rank) is not int or rank not in range(ranks):
                    raise ConfigurationError(
                        where=f"communicators: {name}",
                        problem=f"names rank {rank!r}",
                        fix=f"ranks are 0 to {ranks - 1}",
                    )
                root[find(rank)] = find(members[0])
    parts: dict[int, list[int]] = {}
    for rank in range(ranks):
        parts.setdefault(find(rank), []).append(rank)
    return list(parts.values())


def _lists_of_ranks(name: str, groups: object) -> Sequence[Sequence[int]]:
    if isinstance(groups, (list, tuple)) and all(isinstance(members, (list, tuple)) for members in groups):
        return groups
    raise ConfigurationError(
        where=f"communicators: {name}", problem=f"is {groups!r}", fix="it must be a list of lists of ranks"
    )
