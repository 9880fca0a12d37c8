"""What a rank found in its memory, tensor by tensor, in files beside its journal, for comparing groups.

A file is the very text whose digest is the shard's, so it proves itself: it is believed only for the digest
that the rank reported to its group. Two are kept, as a version that was staged may not be what serves. They
are written in turn and in place: one that a kill or a full disk has torn proves nothing, and a rename would
cost every load more than all its other files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from wsm.shared_directory import ForeignPathError, open_to_write, read_ours
from wsm.strategies.digest import digest_of, shard_text
from wsm.strategies.files.atomic_file import write_all
from wsm.strategies.tensor import TensorSpec


def ledger_paths(directory: Path | str, rank: int) -> tuple[Path, Path]:
    """Return where the last tensors of a rank stand, and those before them; which is which changes."""
    return Path(directory) / f"rank{rank}.tensors.0.json", Path(directory) / f"rank{rank}.tensors.1.json"


class TensorLedger:
    """The two files of one rank, as the rank's process writes them.

    Parameters
    ----------
    directory : path or str
        That of the journals.
    rank : int
        Who.
    """

    def __init__(self, directory: Path | str, rank: int) -> None:
        self._paths = ledger_paths(directory, rank)
        self._newest: int | None = None  # which of them; None: as a process before this one has left them
        self._digest: str | None = None  # of what it holds

    def keep(self, tensors: Iterable[tuple[TensorSpec, str]]) -> str:
        """Write what the rank holds, and return its digest. Blocks for a small file; no disk makes it fail.

        Parameters
        ----------
        tensors : iterable of (TensorSpec, str)
            Each tensor with the digest of its bytes.
        """
        content = shard_text(tensors)
        digest = digest_of(content)
        # Without the files a comparison knows whole shards only, and says so: no reason for a load to end.
        with suppress(OSError, ForeignPathError):
            newest = self._found() if self._newest is None else self._newest
            known = self._digest in (None, digest) and self._holds(newest, content)
            if not known:
                newest = 1 - newest
                self._write(newest, content)
            self._newest, self._digest = newest, digest
        return digest

    def _found(self) -> int:
        """Return which file was written last, by whatever process."""
        written = [path.stat().st_mtime_ns if path.exists() else 0 for path in self._paths]
        return int(written[1] >= written[0])

    def _holds(self, index: int, content: bytes) -> bool:
        with suppress(FileNotFoundError):
            return read_ours(self._paths[index]) == content
        return False

    def _write(self, index: int, content: bytes) -> None:
        descriptor = open_to_write(self._paths[index])
        try:
            write_all(descriptor, content)
            # Last: of a file that is emptied first, some file systems write the new bytes out at once.
            os.ftruncate(descriptor, len(content))
        finally:
            os.close(descriptor)


def read_ledger(directory: Path | str, rank: int, digest: str) -> list[tuple[TensorSpec, str]] | None:
    """Return the tensors of a rank that reported `digest`, each with its own; None if no file has them."""
    for path in ledger_paths(directory, rank):
        with suppress(OSError, ForeignPathError):
            content = read_ours(path)
            if digest_of(content) == digest:
                return [
                    (TensorSpec(name, dtype, tuple(shape)), found)
                    for name, dtype, shape, found in json.loads(content)
                ]
    return None
