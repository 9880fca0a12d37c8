"""YAML text of others, read within bounds: its size, its depth, what its aliases stand for.

All of wsm's YAML is read here: configurations as plain values, ``version.yaml`` as nodes. What is wrong with
a text is said in one line, whatever the parser makes of it. Knows no configuration.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

#: Bytes of the largest file; a configuration that names every rank of the largest group has a tenth of it.
MAX_BYTES = 1 << 18

#: Mappings and lists within each other.
_MAX_DEPTH = 32

#: Values in all, those counted again that an alias stands for.
_MAX_VALUES = 1 << 16

#: Bits of an integer. Python cannot even print every one that it reads.
_MAX_BITS = 64


class YamlReadingError(ValueError):
    """A text that is no YAML, or more than is read; says so in one line."""


class _Loader(yaml.SafeLoader):
    """Plain values only; refuses depth, duplicated keys, and aliases that multiply or hold themselves."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self._depth = self._values = 0
        self._stands_for: dict[str, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose one value and what is within it."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs leave it untyped
        anchor: str | None = getattr(event, "anchor", None)
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias and anchor is not None:
            self._count(event, self._stands_for.get(anchor, 1))
        begin = self._values
        self._count(event, 1)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise yaml.MarkedYAMLError(None, None, f"more than {_MAX_DEPTH} levels deep", event.start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        if anchor is not None and not is_alias:
            self._stands_for[anchor] = self._values - begin
        elif anchor is not None and anchor not in self._stands_for:
            raise yaml.MarkedYAMLError(None, None, f"*{anchor} stands for what it is in", event.start_mark)
        if isinstance(node, yaml.MappingNode) and not is_alias:
            _refuse_duplicates(node)
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Return an integer that a configuration can mean."""
        value = super().construct_yaml_int(node)
        if value.bit_length() > _MAX_BITS:
            raise yaml.MarkedYAMLError(None, None, "an integer that is too large", node.start_mark)
        return value

    def _count(self, event: Any, values: int) -> None:
        self._values += values
        if self._values > _MAX_VALUES:
            raise yaml.MarkedYAMLError(None, None, f"more than {_MAX_VALUES} values", event.start_mark)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _refuse_duplicates(node: yaml.MappingNode) -> None:
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if (key.tag, key.value) in seen:
            problem = f"the key {key.value!r} stands there twice"
            raise yaml.MarkedYAMLError(None, None, problem, key.start_mark)
        seen.add((key.tag, key.value))


def compose(text: str | bytes) -> yaml.Node | None:
    """Return the nodes of a text, for a reader that believes none of YAML's own types.

    Raises
    ------
    YamlReadingError
        If it is no YAML, or more than is read.
    """
    node: yaml.Node | None = _read(text, "get_single_node")
    return node


def plain_values(text: str | bytes) -> Any:
    """Return what a text holds, as plain values.

    Raises
    ------
    YamlReadingError
        If it is no YAML, more than is read, or holds something else.
    """
    return _read(text, "get_single_data")


def read_file(path: str | Path) -> Any:
    """Return what a file holds, as plain values. Blocks while it is read.

    Raises
    ------
    YamlReadingError
        As :func:`plain_values`, and if it cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # a path with a zero byte gives the latter
        raise YamlReadingError(" ".join(str(error).split())) from error
    return plain_values(data)


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
        raise YamlReadingError(_reason(error)) from error


def _reason(error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    return said if isinstance(error, yaml.YAMLError) else f"{type(error).__name__}: {said}"
