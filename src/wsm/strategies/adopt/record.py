"""Which content was adopted under which label: a file beside the versions, ``adopted.json``.

Versions are retired, and a trainer that is started again calls other content by the labels of old ones. The
file remembers the last thousand adoptions, so that a label is known to be used after its version is gone.
It is written under the publishers' lock. One that cannot be read counts as none, with a warning in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

from wsm import log
from wsm.labels import Label
from wsm.shared_directory import read_ours
from wsm.strategies.adopt.deciding import KnownLabel
from wsm.strategies.digest import DIGEST_LENGTH
from wsm.strategies.errors import ManifestError, StorageError
from wsm.strategies.files.atomic_file import replace_file
from wsm.strategies.files.file_looks import FileLook
from wsm.strategies.files.snapshot_names import VERSIONS_DIRECTORY
from wsm.strategies.promise import Digest, Sealed, Strict
from wsm.strategies.snapshot.manifest import PartEntry
from wsm.strategies.snapshot.placement import Placement
from wsm.strategies.snapshot.publish import standing_publication
from wsm.strategies.tensor import TensorSpec
from wsm.strategies.trainer.publications import listed_versions

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
        try:
            replace_file(path, self.encode(), durable=durable, alone=True)
        except OSError as error:
            raise StorageError(path=path, error=error) from error


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
