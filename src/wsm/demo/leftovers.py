"""What demos that were killed left in shared memory: removed when the next one starts.

A demo's group is named after its process, so no later group takes its name over. What is removed is proven to
be this user's, and that all of its processes are gone by the locks that they held.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from wsm.rollout.request_socket import request_socket_path
from wsm.rollout.run_directory import remove_run_directory, run_directory_path
from wsm.shared_directory import ForeignPathError, is_ours, remove_socket
from wsm.signals.names import segment_path
from wsm.signals.ownership import remove_abandoned

_NAME = re.compile(r"wsm\.(demo-\d+)(\.lock)?")


def remove_leftovers(directory: Path | None = None) -> list[str]:
    """Remove segments, sockets and run directories of demos whose processes are all gone.

    Parameters
    ----------
    directory : Path or None
        Where segments lie; None is ``/dev/shm``.

    Returns
    -------
    list of str
        Names of the groups that were removed.
    """
    where = segment_path("demo", directory).parent
    found = {match[1] for path in where.iterdir() if (match := _NAME.fullmatch(path.name)) and is_ours(path)}
    removed = []
    for name in sorted(found):
        if remove_abandoned(segment_path(name, directory)):
            with suppress(ForeignPathError):  # another user took the name meanwhile
                remove_run_directory(run_directory_path(name, directory))
                remove_socket(request_socket_path(name, directory))
            removed.append(name)
    return removed
