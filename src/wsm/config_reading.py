"""YAML read within bounds, and its plain values turned into sections of a configuration, refused by name.

PyYAML reads all YAML of wsm here: configurations as plain values, ``version.yaml`` as nodes. Its size and its
depth are bounded, and what its aliases stand for. A key that stands twice in a mapping is refused, of which
PyYAML would take the last. Knows no section by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from wsm.errors import BadInputError, WsmError
from wsm.typed import Seconds, annotations_of, fits, said, shown, typed

#: Bytes of the largest file; a configuration that names every rank of the largest group has a tenth of it.
MAX_BYTES = 1 << 18

#: Values in all, those counted again that an alias stands for.
_MAX_VALUES = 1 << 16

_Kind = TypeVar("_Kind", bound=Callable[..., object])


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


def typed_section(kind: _Kind) -> _Kind:
    """Let a dataclass refuse options that are not as annotated, wherever it is made: ConfigurationError."""

    def refused(*, call: str, keyword: str, value: object, need: str) -> ConfigurationError:
        where = f"{call.removesuffix('()')}: {keyword}"
        return ConfigurationError(where=where, problem=f"is {shown(value)}", fix=f"it must be {need}")

    return typed(kind, refused)


@dataclass(frozen=True)
class OptionFault:
    """What is wrong with one option: its name, what was found, what it must be."""

    option: str
    problem: str
    fix: str


class YamlReadingError(ValueError):
    """A file or text that cannot be read, is no YAML, or more than is read; says so in one line."""


class _Loader(yaml.SafeLoader):
    """Plain values only, and each key once."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    problem = f"the key {key.value!r} stands there twice"
                    raise yaml.MarkedYAMLError(None, None, problem, key.start_mark)
                seen.add((key.tag, key.value))
        return node


def compose(text: str | bytes) -> yaml.Node | None:
    """Return the nodes of a text, for a reader that believes none of YAML's own types."""
    node: yaml.Node | None = _read(text, "get_single_node")
    return node


def plain_values(text: str | bytes) -> Any:
    """Return what a text holds, as plain values."""
    value = _read(text, "get_single_data")
    left, seen = _MAX_VALUES, [value]
    while seen:  # an alias stands for as much as what it repeats, or for itself
        one = seen.pop()
        seen.extend(one.values() if isinstance(one, Mapping) else one if isinstance(one, list) else ())
        left -= 1
        if left < len(seen):
            raise YamlReadingError(f"it holds more than {_MAX_VALUES} values")
    return value


def read_yaml(path: str | Path, refusal: Callable[[str], WsmError]) -> Any:
    """Return what a YAML file holds; raises what `refusal` makes of the reason why it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return plain_values(file.read(MAX_BYTES + 1))
    except (OSError, ValueError) as error:  # a path with a zero byte gives the latter
        raise refusal(" ".join(str(error).split())) from error


def _read(text: str | bytes, method: str) -> Any:
    if len(text) > MAX_BYTES:
        raise YamlReadingError(f"it is larger than {MAX_BYTES} bytes")
    try:
        loader = _Loader(text)
        try:
            return getattr(loader, method)()
        finally:
            loader.dispose()
    except Exception as error:
        # The parser's constructors raise whatever Python makes of a number, a date or a tag of its own.
        said = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, RecursionError):
            said = "it is nested too deeply"
        elif not isinstance(error, yaml.YAMLError):
            said = f"{type(error).__name__}: {said}"
        raise YamlReadingError(said) from error


def build(kind: type[Any], values: object, where: str, **parts: object) -> Any:
    """Return the section `kind`, a dataclass, made of `values`; `where` says in messages where they stand.

    `parts` are fields that are no options. Raises ConfigurationError if `values` is no mapping, or holds an
    unknown, missing or ill-typed value.
    """
    if not isinstance(values, Mapping):
        raise ConfigurationError(
            where=where, problem=f"is {shown(values)}", fix="it must be a mapping of options"
        )
    fault = option_fault(kind, values, without=parts)
    if fault is not None:
        raise ConfigurationError(where=where, problem=f"{fault.option!r} {fault.problem}", fix=fault.fix)
    return kind(**values, **parts)


def unknown_option(key: object, known: Collection[str]) -> OptionFault:
    """Say of an option that there is none of its name, and which one may be meant."""
    close = difflib.get_close_matches(str(key), known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(known)}"
    return OptionFault(str(key), "is unknown", hint)


def option_fault(
    kind: type[Any], values: Mapping[Any, Any], *, without: Collection[str] = ()
) -> OptionFault | None:
    """Return the first unknown, missing or ill-typed option of the section `kind` among plain values.

    `without` names fields of `kind` that are no options: they are made otherwise.
    """
    fields = {f.name: f for f in dataclasses.fields(kind) if f.name not in without}
    annotations: Mapping[str, Any] = {}
    with contextlib.suppress(NameError):  # of a package from outside, for type checkers only
        annotations = annotations_of(kind)
    for key in values:
        if key not in fields:
            return unknown_option(key, fields)
    for name, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and name not in values:
            return OptionFault(name, "is missing", "add it")
        annotation = annotations.get(name, Any)
        if annotation is float and name.endswith("_s"):
            annotation = Seconds
        if name in values and not fits(annotation, values[name]):
            return OptionFault(name, f"is {shown(values[name])}", f"it must be {said(annotation)}")
    return None
