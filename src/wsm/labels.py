"""What a version is called: a text without an order, told apart by nothing but its characters.

A label is 1 to 128 of ``A-Z a-z 0-9 . _ + = @ : -`` and begins with a letter, a digit or an underscore, so it
can be the name of a directory and a word of a command line. Case counts, and so do zeros: ``0100`` is not
``100``.
"""

from __future__ import annotations

import functools
import hashlib
import re
from typing import Annotated, TypeAlias

import msgspec

from wsm.errors import BadInputError, coded

#: Characters of the longest label.
MAX_LENGTH = 128
#: Bits of the number that stands for a label where there is no room for a text.
VERSION_ID_BITS = 38

#: What a caller means by it is looked up; it never is the name of a version itself.
RESERVED = ("latest", "newest")
_UNNAMED = "unnamed-"

_LABEL = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._+=@:-]{{0,{MAX_LENGTH - 1}}}")
#: Annotates a label in a payload.
Label: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{_LABEL.pattern}\Z")]
_RUN = re.compile(r"[A-Za-z0-9_+=@:-]{1,64}")


@coded("bad-version")
def bad_version(*, value: object, problem: str) -> BadInputError:
    """What should be a version is none."""
    return BadInputError(
        f"{value!a:.200} is no version: {problem}; give 1 to {MAX_LENGTH} of A-Z a-z 0-9 . _ + = @ : - "
        "that begin with a letter, a digit or an underscore"
    )


def checked_version(value: object) -> str:
    """Return the label that a caller gives to a version; an integer stands for its decimal digits.

    Raises
    ------
    BadInputError (``bad-version``)
        If it is no label, or one that nothing may be called: ``latest``, ``newest``, ``unnamed-...``.
    """
    label = recorded_version(value)
    if label in RESERVED or label.startswith(_UNNAMED):
        raise bad_version(value=value, problem="the name is reserved")
    return label


def recorded_version(value: object) -> str:
    """Return a label that wsm has written down, ``unnamed-...`` too; a number in older publications."""
    if type(value) is int and value >= 0:
        value = str(value) if value < 10**MAX_LENGTH else "9" * (MAX_LENGTH + 1)  # too many digits stay so
    if not isinstance(value, str):
        raise bad_version(value=value, problem="it is neither a text nor a number from 0 on")
    if not _LABEL.fullmatch(value):
        raise bad_version(value=value, problem="it has another form")
    return str(value)


def is_label(value: object) -> bool:
    """Whether `value` is a label as text, one that wsm gives included."""
    try:
        return recorded_version(value) == value
    except BadInputError:
        return False


def unnamed_version(run: str, epoch: int, sequence: int) -> str:
    """Return the label under which a command loads weights that name no version.

    No other segment has the same `run`; of one that does not fit into a label, a hash stands there.
    """
    if not _RUN.fullmatch(run):
        run = hashlib.blake2b(run.encode(), digest_size=8).hexdigest()
    return f"{_UNNAMED}{run}.{epoch}.{sequence}"


def is_unnamed(label: str) -> bool:
    """Whether wsm gave the label to weights that named no version."""
    return label.startswith(_UNNAMED)


@functools.lru_cache(maxsize=64)
def version_id(label: str) -> int:
    """Return the number of :data:`VERSION_ID_BITS` bits that stands for a label in a word.

    Two labels may have the same, so it decides nothing: where two versions meet, their labels are compared.
    """
    digest = hashlib.blake2b(label.encode("ascii"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - VERSION_ID_BITS)
