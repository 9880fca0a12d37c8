"""Which versions a directory holds, by what the manifest of each of them says, and which was published last.

Labels have no order, so every publication is numbered under the publishers' lock: its manifest says which
one it is. Clocks, copies and moves of files change nothing about that. Of versions of an older wsm, which say
no number, the directory's time of modification decides, then the label: a longer one comes after a shorter
one, and of two as long the one that a dictionary has later. Reads no tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from wsm.errors import WsmError, shortage_of
from wsm.labels import is_label, recorded_version
from wsm.strategies.files.snapshot_directory import SnapshotDirectory
from wsm.strategies.files.snapshot_names import (
    DELTA_MANIFEST,
    DELTAS_DIRECTORY,
    VERSION_MANIFEST,
    VERSIONS_DIRECTORY,
)
from wsm.strategies.files.version_file import announced_version
from wsm.strategies.promise import is_count, unseal

#: What the manifests of all ranks call themselves.
MANIFEST_FORMATS = {VERSION_MANIFEST: "wsm.version-manifest", DELTA_MANIFEST: "wsm.delta-manifest"}

_MAX_BYTES = 1 << 28


@dataclass(frozen=True)
class ListedVersion:
    """A directory that says itself which version it holds.

    Parameters
    ----------
    label : str
        The version, as its manifest names it.
    path : Path
        The directory.
    ordinal : int
        How many publications went before it, and itself; 0: an older wsm published it.
    modified_ns : int
        When the directory was changed last.
    """

    label: str
    path: Path
    ordinal: int
    modified_ns: int

    @property
    def _age(self) -> tuple[int, int, int, str]:
        return (self.ordinal, self.modified_ns, len(self.label), self.label)


def listed_versions(place: Path) -> list[ListedVersion]:
    """Return what is published in `place`, the last publication first. Blocks; never raises OSError.

    A directory without a manifest, or whose manifest cannot be read, is not listed.
    """
    return sorted(_listed(place), key=lambda listed: listed._age, reverse=True)


def published_last(directory: Path | str, *, deltas: bool = False) -> str | None:
    """Return the label of the last publication into a directory; None without any. Blocks.

    Of whole versions, and of deltas if `deltas`; of those that lie under their own names.
    """
    places = (VERSIONS_DIRECTORY, DELTAS_DIRECTORY) if deltas else (VERSIONS_DIRECTORY,)
    listed = (each for place in places for each in _listed(Path(directory) / place))
    named = [each for each in listed if each.path.name == each.label]
    return max(named, key=lambda each: each._age).label if named else None


def newest_version(directory: Path | str, *, deltas: bool = False) -> str | None:
    """Return the version that ``version.yaml`` announces; without one, the one that was published last.

    Raises
    ------
    BadInputError, UnreadableFileError
        If ``version.yaml`` is there and unusable.
    """
    announced = announced_version(directory)
    return published_last(directory, deltas=deltas) if announced is None else announced


def next_ordinal(directory: Path | str) -> int:
    """Return the number of the next publication into a directory. Blocks; takes the publishers' lock.

    Raises
    ------
    OSError
        If this process may open too few files to see them all: a number too low would be that of an old one.
    """
    places = (Path(directory) / place for place in (VERSIONS_DIRECTORY, DELTAS_DIRECTORY))
    every = (listed for place in places for listed in _listed(place, whole=True))
    return 1 + max((listed.ordinal for listed in every), default=0)


def label_in(path: Path) -> str | None:
    """Return the version that a directory says it holds; None if it says none. Blocks."""
    fields = _manifest(path)
    return None if fields is None else fields[0]


@contextmanager
def _left_out(*, whole: bool) -> Iterator[None]:
    """Leave out what cannot be read; if `whole`, raise the OSError of a shortage of this process."""
    try:
        yield
    except (OSError, WsmError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if whole and isinstance(cause, OSError) and shortage_of(cause) is not None:
            raise cause from None


def _listed(place: Path, *, whole: bool = False) -> Iterator[ListedVersion]:
    paths: list[Path] = []
    with _left_out(whole=whole):
        paths = [path for path in place.iterdir() if is_label(path.name)]
    for path in paths:
        found = _manifest(path, whole=whole)
        if found is not None:
            with suppress(OSError):
                yield ListedVersion(found[0], path, found[1], path.stat().st_mtime_ns)


def _manifest(path: Path, *, whole: bool = False) -> tuple[str, int] | None:
    """Return label and ordinal of the manifest in a directory; None if there is none that can be read."""
    with _left_out(whole=whole), closing(SnapshotDirectory(str(path))) as directory:
        for name, form in MANIFEST_FORMATS.items():
            with suppress(FileNotFoundError):
                data = directory.read(name, _MAX_BYTES)
                if data is None:
                    return None
                file = directory.locate(name)
                fields = unseal(data, file=file, form=form, layout=1)
                ordinal = fields.get("ordinal", 0)
                return recorded_version(fields.get("version")), ordinal if is_count(ordinal) else 0
    return None
