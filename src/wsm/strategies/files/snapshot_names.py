"""The names of a snapshot's files: FastDeploy's for the data, wsm's for what lies beside it.

``model_state.tp{rank}.{device_id}`` is the base of one rank's shard. FastDeploy means the global rank
and the physical device by it, with a dot between them since ``tp1234`` could be read as rank 1, device
234 or as rank 12, device 34 (FastDeploy#6852). Pure: no file is touched here.
"""

from __future__ import annotations

import re

#: Where FastDeploy's trainers put what they share on one host.
SHARED_DIRECTORY = "/shared_ipc_meta"
#: The newest version of a directory, FastDeploy's name and content (``step: <version>``).
VERSION_FILE = "version.yaml"
#: Where published versions lie, one directory each.
VERSIONS_DIRECTORY = "versions"
#: Where deltas lie, one directory for each version that they lead to.
DELTAS_DIRECTORY = "deltas"
#: What ties the shards of one version together; the same for every rank.
VERSION_MANIFEST = "model_state.manifest.json"
#: The same for a delta.
DELTA_MANIFEST = "delta.manifest.json"

#: What the names of the manifests of all ranks' shards end in.
MANIFEST_SUFFIX = ".manifest.json"

_SUFFIX = ".pdparams"
_INDEX = re.compile(r"[0-9]{1,9}")


def shard_base(rank: int, device_id: int) -> str:
    """Return the base of the file names of one rank's shard."""
    return f"model_state.tp{rank}.{device_id}"


def whole_name(base: str) -> str:
    """Return the name of a shard that is one file."""
    return base + _SUFFIX


def legacy_name(device_id: int) -> str:
    """Return the name that older trainers gave to the shard of a device, whatever its rank."""
    return f"model_state.tp0{device_id}{_SUFFIX}"


def part_name(base: str, index: int) -> str:
    """Return the name of one part of a shard."""
    return f"{base}.part{index}{_SUFFIX}"


def looks_like_part(base: str, name: str) -> bool:
    """Whether `name` has the form ``{base}.part*.pdparams``, with anything for the star."""
    return name.startswith(f"{base}.part") and name.endswith(_SUFFIX)


def part_index(base: str, name: str) -> int | None:
    """Return the index in a part's file name; None if what stands there is no decimal number."""
    digits = name[len(f"{base}.part") : -len(_SUFFIX)]
    return int(digits) if _INDEX.fullmatch(digits) else None


def shard_manifest_name(base: str) -> str:
    """Return the name of the manifest of one rank's shard."""
    return base + MANIFEST_SUFFIX


def is_snapshot_file(name: str) -> bool:
    """Whether `name` belongs to some rank's shard; for messages that say what is there instead."""
    return name.startswith("model_state.") and name.endswith(_SUFFIX)
