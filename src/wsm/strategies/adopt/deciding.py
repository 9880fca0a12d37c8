"""What an adopted directory is called, and whether there is anything to do. Pure: no files, no clocks.

A label is the trainer's word, and trainers begin at 1 again after a restart. So what is there already is
decided by the digest of the tensors: the same label with another digest is another version, and its label
says so.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from wsm.errors import RefusedError
from wsm.labels import MAX_LENGTH, checked_version

# A number at the end, but not the last digits of something like 2.5.
_NUMBER = re.compile(r"(?<![0-9])(?<![0-9]\.)([0-9]+)$")
_DIGIT = re.compile("[0-9]")
_MARK = ".reused-"
_REUSED = re.compile(rf"(.+){re.escape(_MARK)}[0-9a-f]{{8,32}}")
_DIGITS = (8, 16, 32)


class Relabel(enum.Enum):
    """What happens to other content under a label that was used before."""

    MARK = "mark"
    REFUSE = "refuse"


@dataclass(frozen=True)
class KnownLabel:
    """What is known under a label.

    Parameters
    ----------
    digest : str
        Digest of the tensors; of a version that was not adopted, some text that no digest equals.
    stands : bool
        Whether it is published now, as it was adopted, and promises the same.
    """

    digest: str
    stands: bool


@dataclass(frozen=True)
class Decision:
    """What a directory is adopted as.

    Parameters
    ----------
    label : str
        What it is called.
    already : bool
        Whether it is there, so that nothing is to be done.
    reused : bool
        Whether the label that was asked for had been other content's.
    replace : bool
        Whether the same content is published again in its place.
    """

    label: str
    already: bool
    reused: bool
    replace: bool


def label_for(path: str, asked: str | int | None = None) -> str:
    """Return what a directory's content is called, if nothing else was called so.

    What the caller says; else the number at the end of the directory's name, in decimal; where that has no
    digit, of the nearest name above it that has one; else the directory's name. `path` is what names it below
    a declared root.

    Raises
    ------
    BadInputError
        If that is no label.
    """
    if asked is not None:
        return checked_version(asked)
    own = PurePosixPath(path)
    numbered = next((each.name for each in (own, *own.parents) if _DIGIT.search(each.name)), "")
    number = _NUMBER.search(numbered)
    if number is None or len(number[1]) > MAX_LENGTH:
        return checked_version(own.name)
    return checked_version(number[1].lstrip("0") or "0")


def asked_label(label: str) -> str:
    """Return the trainer's own word for an adopted version: of one whose label was used before, that."""
    found = _REUSED.fullmatch(label)
    return label if found is None else found[1]


def decide(asked: str, digest: str, known: Mapping[str, KnownLabel], relabel: Relabel) -> Decision:
    """Say what a directory is adopted as.

    Parameters
    ----------
    asked : str
        The label from :func:`label_for`.
    digest : str
        Digest of its tensors.
    known : mapping of str to KnownLabel
        Every label that is published, or was adopted before.
    relabel : Relabel
        What happens if the label was other content's.

    Raises
    ------
    RefusedError (``label-reused``)
        If that must not be.
    """
    before = known.get(asked)
    if before is None or before.digest == digest:
        return _under(asked, before, reused=False)
    if relabel is Relabel.REFUSE:
        raise RefusedError(
            f"version {asked} was other content before (digest {before.digest}, now {digest}), and labels "
            "are not changed (relabel: refuse); let the trainer count on, or adopt it under another label",
            code="label-reused",
            label=asked,
            digest=digest,
            known=before.digest,
        )
    marked = asked
    for digits in _DIGITS:  # two contents whose digests begin alike are told apart by more of them
        suffix = f"{_MARK}{digest[:digits]}"
        marked = asked[: MAX_LENGTH - len(suffix)] + suffix
        if marked not in known or known[marked].digest == digest:
            break
    return _under(marked, known.get(marked), reused=True)


def _under(label: str, before: KnownLabel | None, *, reused: bool) -> Decision:
    stands = before is not None and before.stands
    return Decision(label, already=stands, reused=reused, replace=before is not None and not stands)
