"""Plain values turned into configuration sections: unknown, missing and ill-typed ones are refused by name.

Knows the annotations that sections use, and how communicators join ranks; no section by itself.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from wsm.errors import BadInputError


class ConfigurationError(BadInputError):
    """A configuration value is missing, unknown or contradicts another one."""

    def __init__(self, *, where: str, problem: str, fix: str) -> None:
        super().__init__(f"configuration {where}: {problem}; {fix}", where=where, problem=problem, fix=fix)


def build(kind: type[Any], values: object, where: str) -> Any:
    """Return the section `kind`, a dataclass, made of `values`; `where` says in messages where they stand.

    Raises
    ------
    ConfigurationError
        If `values` is no mapping, or holds an unknown, missing or ill-typed value.
    """
    if not isinstance(values, Mapping):
        raise ConfigurationError(where=where, problem=f"is {values!r}", fix="it must be a mapping of options")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key in values:
        if key not in fields:
            close = difflib.get_close_matches(str(key), fields, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(fields)}"
            raise ConfigurationError(where=where, problem=f"unknown option {key!r}", fix=hint)
    for name, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ConfigurationError(where=where, problem=f"{name!r} is missing", fix="add it")
        if name in values:
            _check_type(f"{where}: {name}", str(f.type), values[name])
    return kind(**values)


def _check_type(where: str, annotation: str, value: object) -> None:
    """Check a YAML value against the simple annotations used above; nested classes are checked by build."""
    expected: dict[str, tuple[type, ...]] = {
        "str": (str,),
        "int": (int,),
        "float": (int, float),
        "bool": (bool,),
        "str | None": (str, type(None)),
    }
    kinds = expected.get(annotation)
    if kinds is None:
        kinds = (Mapping,) if annotation.startswith("Mapping") else (list, tuple)
        if not annotation.startswith(("Mapping", "Sequence")):
            return
    wrong = not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
    if wrong or (annotation == "float" and isinstance(value, (int, float)) and not value > 0):
        need = "a positive number of seconds" if annotation == "float" else annotation
        raise ConfigurationError(where=where, problem=f"is {value!r}", fix=f"it must be {need}")


def connected_parts(ranks: int, communicators: Mapping[str, Sequence[Sequence[int]]]) -> list[list[int]]:
    """Return the connected components of the ranks, joined by whoever shares a communicator."""
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
