"""Which physical device a rank uses, for the names of its snapshot files.

FastDeploy takes the entry of ``CUDA_VISIBLE_DEVICES`` that ``FLAGS_selected_gpus`` points at. It breaks on
UUIDs, MIG names and indexes out of range; here each gives an error that says so, and a rank without any
GPU uses its own number. Pure: the environment is handed in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from wsm.strategies import errors

_NUMBER = re.compile(r"[0-9]{1,9}")


def device_id_from_environment(rank: int, environment: Mapping[str, str]) -> int:
    """Return the physical device id of this process.

    Parameters
    ----------
    rank : int
        The global rank; the answer where the environment names no GPU.
    environment : mapping of str to str
        ``os.environ``, or what a test makes of it.

    Raises
    ------
    BadInputError
        If the environment names devices by UUID or MIG instance, or points outside of its own list.
    """
    selected = environment.get("FLAGS_selected_gpus", "").strip()
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if not selected and (visible is None or visible.strip() in ("", "-1")):
        return rank
    index = _selected_index(selected)
    if visible is None:
        return index  # every device is visible under its own number
    entries = [entry.strip() for entry in visible.split(",")]
    if entries in ([""], ["-1"]):
        raise errors.bad_device_id(
            problem=f"FLAGS_selected_gpus is {selected!r}, but CUDA_VISIBLE_DEVICES hides all devices"
        )
    if index >= len(entries):
        raise errors.bad_device_id(
            problem=f"FLAGS_selected_gpus is {index}, beyond the {len(entries)} entries of "
            f"CUDA_VISIBLE_DEVICES={visible!r}"
        )
    entry = entries[index]
    if not _NUMBER.fullmatch(entry):
        raise errors.bad_device_id(
            problem=f"CUDA_VISIBLE_DEVICES holds {entry!r}, a UUID or MIG instance, which has no number"
        )
    return int(entry)


def device_index_from_environment(environment: Mapping[str, str]) -> int:
    """Return which of the visible devices this process uses; 0 where nothing says so.

    Raises
    ------
    BadInputError
        If ``FLAGS_selected_gpus`` is not one index.
    """
    return _selected_index(environment.get("FLAGS_selected_gpus", "").strip())


def _selected_index(selected: str) -> int:
    if not selected:
        return 0
    if not _NUMBER.fullmatch(selected):
        raise errors.bad_device_id(problem=f"FLAGS_selected_gpus is {selected!r}, which is not one index")
    return int(selected)
