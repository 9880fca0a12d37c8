"""Under which label content is adopted, and which was: a file beside the versions, ``adopted.json``.

A label is the trainer's word, and trainers begin at 1 again after a restart. So what is there already is
decided by the digest of the tensors: the same label with another digest is another version, and its label
says so. The file remembers the last thousand adoptions, so that a label is known to be used after its version
is gone. It is written under the publishers' lock. One that cannot be read counts as none, with a warning in
the log.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

from wsm import log
from wsm.errors import RefusedError
from wsm.labels import MAX_LENGTH, Label, checked_version
from wsm.shared_directory import read_ours
from wsm.strategies.digest import DIGEST_LENGTH
from wsm.strategies.errors import ManifestError, storing
from wsm.strategies.files.atomic_file import FileLook, replace_file
from wsm.strategies.files.snapshot_names import VERSIONS_DIRECTORY
from wsm.strategies.promise import Digest, Sealed, Strict
from wsm.strategies.snapshot.manifest import PartEntry
from wsm.strategies.snapshot.placement import Placement
from wsm.strategies.snapshot.publish import standing_publication
from wsm.strategies.tensor import TensorSpec
from wsm.strategies.trainer.publications import listed_versions

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
    replace : bool
        Whether the same content is published again in its place.
    """

    label: str
    already: bool
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


def marked_label(asked: str, digest: str, digits: int = _DIGITS[1]) -> str:
    """Return what content is called whose label other content had before."""
    suffix = f"{_MARK}{digest[:digits]}"
    return asked[: MAX_LENGTH - len(suffix)] + suffix


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
        return _under(asked, before)
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
        marked = marked_label(asked, digest, digits)
        if marked not in known or known[marked].digest == digest:
            break
    return _under(marked, known.get(marked))


def _under(label: str, before: KnownLabel | None) -> Decision:
    stands = before is not None and before.stands
    return Decision(label, already=stands, replace=before is not None and not stands)


#: Beside ``version.yaml``.
RECORD_FILE = "adopted.json"
_MOST = 1000
#: No digest of tensors that were adopted: what came otherwise is not known by one.
_OF_OTHERS = "0" * DIGEST_LENGTH

_log = log.logger("strategies")


class AdoptedContent(Strict, frozen=True):
    """One adoption.

    Parameters
    ----------
    label : str
        What the version is called.
    asked : str
        What it was asked to be called.
    digest : str
        Digest of its tensors.
    mtimes_ns : tuple of int
        When each of its files was changed last; of files that a trainer can still write.
    """

    label: Label
    asked: Label
    digest: Digest
    mtimes_ns: tuple[int, ...]


class AdoptionRecord(Sealed, frozen=True, kw_only=True):
    """All adoptions that are remembered, the last one last; each label once."""

    FORMAT: ClassVar[str] = "wsm.adoptions"

    adopted: tuple[AdoptedContent, ...]

    @classmethod
    def of(cls, directory: Path) -> AdoptionRecord:
        """Read that of a directory; an empty one where there is none. Blocks (one small file).

        Raises
        ------
        ForeignPathError
            If another user could have written it.
        """
        file = directory / RECORD_FILE
        try:
            return cls.decode(read_ours(file), file=str(file))
        except FileNotFoundError:
            return cls(adopted=())
        except (OSError, ManifestError) as error:
            _log.warning("adoptions.unreadable", file=str(file), reason=str(error))
            return cls(adopted=())

    def with_one(self, content: AdoptedContent) -> AdoptionRecord:
        """Return the record with one more, in the place of an older one of its label."""
        others = tuple(each for each in self.adopted if each.label != content.label)
        return AdoptionRecord(adopted=(*others, content)[-_MOST:])

    def with_used(self, label: str) -> AdoptionRecord:
        """Return the record in which a label counts as used, if only by content that was not adopted."""
        if any(each.label == label for each in self.adopted):
            return self
        return self.with_one(AdoptedContent(label, label, _OF_OTHERS, ()))

    def write(self, directory: Path, *, durable: bool) -> None:
        """Put it into a directory, in one step, under the publishers' lock. Blocks; raises StorageError."""
        path = directory / RECORD_FILE
        with storing(path):
            replace_file(path, self.encode(), durable=durable, alone=True)


def known_labels(
    directory: Path, promised: Mapping[TensorSpec, Placement | None], device_id: int
) -> dict[str, KnownLabel]:
    """Return every label that is published or remembered. Blocks; reads no tensors.

    Parameters
    ----------
    directory : Path
        That of the versions.
    promised : mapping of TensorSpec to Placement
        What a version must say of each tensor to be as good as a new one.
    device_id : int
        The one in the names of its files.
    """
    adopted = {each.label: each for each in AdoptionRecord.of(directory).adopted}
    known = {label: KnownLabel(each.digest, stands=False) for label, each in adopted.items()}
    for listed in listed_versions(directory / VERSIONS_DIRECTORY):
        publication = standing_publication(listed.path)
        if publication is None or len(publication.shards) > 1:
            known[listed.label] = KnownLabel(_OF_OTHERS, stands=False)
            continue
        (shard,) = publication.shards
        remembered = adopted.get(listed.label)
        stands = (
            {entry.spec: entry.placement for entry in shard.tensors} == dict(promised)
            and shard.device_id == device_id
            and (remembered is None or remembered.mtimes_ns == mtimes_of(listed.path, shard.parts))
        )
        known[listed.label] = KnownLabel(shard.content_digest, stands)
    return known


def stands_as_adopted(directory: Path, label: str, digest: str) -> bool:
    """Whether a version is published, and still the content that was adopted. Blocks; reads no tensors."""
    path = directory / VERSIONS_DIRECTORY / label
    publication = standing_publication(path)
    if publication is None or [shard.content_digest for shard in publication.shards] != [digest]:
        return False
    remembered = [each for each in AdoptionRecord.of(directory).adopted if each.label == label]
    times = mtimes_of(path, publication.shards[0].parts)
    return all(each.mtimes_ns == times for each in remembered)


def mtimes_of(path: Path, parts: Iterable[PartEntry]) -> tuple[int, ...]:
    """Return when each part of a version was changed last; of one that is gone, 0."""
    return tuple(FileLook.at(str(path / part.file)).mtime_ns or 0 for part in parts)
