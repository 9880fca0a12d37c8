"""What a server answered to those who asked for tokens, held against what was whole and proved then. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: What a closed gate answers, and what is answered as a server dies.
CLOSED, DYING = frozenset({503}), frozenset({0, 500, 503})


class Span(NamedTuple):
    """The version that vLLM names for some tokens of an answer, which are those from `start` to `end`."""

    version: str
    start: int
    end: int


class Answer(NamedTuple):
    """What one request for tokens was answered. `status` 0: nothing."""

    began: float
    ended: float
    prompt: tuple[int, ...]
    status: int
    tokens: tuple[int, ...] = ()
    spans: tuple[Span, ...] = ()
    why: str = ""


@dataclass
class Era:
    """What may be answered from `began` to the next era: tokens of `versions`, or a status of `refusals`."""

    began: float
    versions: set[str]
    refusals: frozenset[int] = field(default_factory=frozenset)


Continues = Callable[[str, tuple[int, ...], int], Sequence[int]]


def broken_promises(
    answers: Iterable[Answer],
    eras: Sequence[Era],
    made: Mapping[tuple[str, tuple[int, ...]], Sequence[int]],
    continues: Continues,
) -> list[str]:
    """Return each answer that no era allows, and each token that is not of the version that it is said to be.

    `made`: the tokens of each version behind each prompt, as they are without any fault. `continues`: says
    which tokens a version answers behind others: where the version changes under a request.
    """
    broken = []
    for one in answers:
        ends = [*(era.began for era in eras[1:]), float("inf")]
        over = [
            era for era, end in zip(eras, ends, strict=True) if era.began <= one.ended and one.began <= end
        ]
        if one.status != 200:
            if not any(one.status in era.refusals for era in over):
                broken.append(f"refused where nothing was closed: {one}")
            continue
        allowed = {version for era in over for version in era.versions}
        strange = {span.version for span in one.spans} - allowed
        if strange:
            broken.append(f"tokens of {sorted(strange)} where {sorted(allowed)} were proved: {one}")
        if one.tokens and [span.end for span in one.spans[-1:]] != [len(one.tokens)]:
            broken.append(f"tokens of no version: {one}")
        for version, start, end in one.spans:
            known, length = made.get((version, one.prompt)), end - start
            before = (*one.prompt, *one.tokens[:start])
            expected = known[:end] if known and start == 0 else continues(version, before, length)
            if tuple(expected) != one.tokens[start:end]:
                broken.append(f"version {version} answers {tuple(expected)}: {one}")
    return broken
