"""Taking files out of the page cache, so that the next read of them comes from the disk: the cold case."""

from __future__ import annotations

import os
from pathlib import Path


def drop_page_cache(path: Path) -> None:
    """Write a file, or every file below a directory, to its disk and drop its pages. Blocks.

    Pages that some process maps or reads at the moment stay; on tmpfs, which has no disk, nothing happens.
    """
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        if not file.is_file():
            continue
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)  # dirty pages are not dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
