"""What a rank found in its memory, tensor by tensor, in files beside its journal, for comparing groups.

A file is the very text whose digest is the shard's, so it proves itself: it is believed only for the digest
that the rank reported to its group. Two are kept, as a version that was staged may not be what serves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from wsm.shared_directory import ForeignPathError, read_ours
from wsm.strategies.digest import digest_of, shard_text
from wsm.strategies.files.atomic_file import replace_file
from wsm.strategies.tensor import TensorSpec


def ledger_paths(directory: Path | str, rank: int) -> tuple[Path, Path]:
    """Return where the last tensors of a rank stand, and those before them."""
    return Path(directory) / f"rank{rank}.tensors.json", Path(directory) / f"rank{rank}.tensors.before.json"


def keep_ledger(directory: Path | str, rank: int, tensors: Iterable[tuple[TensorSpec, str]]) -> str:
    """Write what a rank holds, and return its digest. Blocks for a small file; no disk makes it fail.

    Parameters
    ----------
    directory : path or str
        That of the journals; it exists.
    rank : int
        Who.
    tensors : iterable of (TensorSpec, str)
        Each tensor with the digest of its bytes.
    """
    content = shard_text(tensors)
    newest, older = ledger_paths(directory, rank)
    # Without the files a comparison knows whole shards only, and says so: no reason for a load to end.
    with suppress(OSError, ForeignPathError):
        if not newest.exists() or read_ours(newest) != content:
            with suppress(FileNotFoundError):
                newest.replace(older)
            replace_file(newest, content, durable=False)
    return digest_of(content)


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
