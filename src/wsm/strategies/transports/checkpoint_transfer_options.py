"""FastDeploy's ``rsync_config``, read strictly: what goes to CheckpointTransfer and what is our own.

FastDeploy drops keys that it does not know, so a typing error goes unnoticed; here it is an error. The
caller's mapping is only read. Knows no package.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wsm.strategies.transports import errors as transport_errors
from wsm.strategies.transports.batches import PackageBuffers

_NUMBER = (int, float)
_DEVICE = (str, int)

#: What CheckpointTransfer itself takes.
_OF_THE_PACKAGE: Mapping[str, tuple[type, ...]] = {
    "etcd_server": (str,),
    "backend": (str,),
    "redis_host": (str,),
    "redis_port": (int,),
    "redis_ttl_s": _NUMBER,
    "device": _DEVICE,
    "device_name": _DEVICE,
    "gpu_id": (int,),
    "group_size": (int,),
    "qsize": (int,),
    "bucket_size_mb": (int,),
    "num_buffers": (int,),
    "phase2_backend": (str,),
    "phase2_fan_out": (int,),
    "discover_timeout_s": _NUMBER,
    "recv_bucket_timeout_s": _NUMBER,
    "session_total_timeout_s": _NUMBER,
    "materialize_tensors": (bool,),
    "log_level": (str,),
    "log_file": (str,),
    "perf_log_file": (str,),
}
#: What FastDeploy, and so this adapter, uses itself.
_OF_THE_CALLER: Mapping[str, tuple[type, ...]] = {
    "index": (int,),
    "output_framework": (str,),
    "gdr_mtp_chunk_size": (int,),
    "gdr_release_cache": (bool,),  # refused if true, see _check
}
#: Of an early revision (FastDeploy#7951), without effect in every released one.
_DROPPED = (
    "transfer_mode",
    "gpu_direct",
    "gdr_prefetch_queue_size",
    "gdr_debug_tensor_digest",
    "gdr_debug_tensor_names",
    "gdr_debug_compare_direct",
)
_POSITIVE = (
    "discover_timeout_s",
    "recv_bucket_timeout_s",
    "session_total_timeout_s",
    "gdr_mtp_chunk_size",
    "bucket_size_mb",
    "num_buffers",
)
_MEBIBYTE = 1 << 20
# What FastDeploy's configuration has if no option is set.
_TWO_LARGE_ONES = PackageBuffers(2, 512 * _MEBIBYTE)


@dataclass(frozen=True)
class CheckpointTransferOptions:
    """A checked ``rsync_config``.

    Parameters
    ----------
    for_the_package : mapping
        What CheckpointTransfer is constructed with, ``device_name`` as ``device``.
    index : int
        Index of this node: global ranks begin at ``index * world size``.
    group_size : int or None
        Number of receivers that CheckpointTransfer is told; None for the world size.
    discover_s, next_s, total_s : float
        The package's own deadlines, which wsm keeps for it.
    buffers : PackageBuffers
        What the package holds in buffers.
    mtp_chunk_size : int
        Tensors per chunk for auxiliary models.
    """

    for_the_package: Mapping[str, Any]
    index: int = 0
    group_size: int | None = None
    discover_s: float = 60.0
    next_s: float = 60.0
    total_s: float = 600.0
    buffers: PackageBuffers = _TWO_LARGE_ONES
    mtp_chunk_size: int = 16

    @property
    def meeting_point(self) -> str:
        """Where sender and receivers find each other, for messages."""
        options = self.for_the_package
        if "etcd_server" in options:
            return str(options["etcd_server"])
        return f"{options.get('redis_host', '127.0.0.1')}:{options.get('redis_port', 6379)}"

    @classmethod
    def of(cls, rsync_config: Mapping[str, Any]) -> CheckpointTransferOptions:
        """Check FastDeploy's mapping.

        Raises
        ------
        BadInputError
            If a key is unknown or was dropped by FastDeploy, or a value has the wrong type or size.
        """
        for key, value in rsync_config.items():
            _check(key, value)
        passed = {key: value for key, value in rsync_config.items() if key in _OF_THE_PACKAGE}
        if "device_name" in passed:
            name = passed.pop("device_name")
            passed.setdefault("device", name)
        own = dict(rsync_config)
        return cls(
            for_the_package=passed,
            index=own.get("index", 0),
            group_size=passed.pop("group_size", None),
            discover_s=own.get("discover_timeout_s", cls.discover_s),
            next_s=own.get("recv_bucket_timeout_s", cls.next_s),
            total_s=own.get("session_total_timeout_s", cls.total_s),
            buffers=PackageBuffers(
                own.get("num_buffers", cls.buffers.count),
                own["bucket_size_mb"] * _MEBIBYTE if "bucket_size_mb" in own else cls.buffers.nbytes,
            ),
            mtp_chunk_size=own.get("gdr_mtp_chunk_size", cls.mtp_chunk_size),
        )


def _check(key: object, value: object) -> None:
    known = {**_OF_THE_PACKAGE, **_OF_THE_CALLER}
    if key in _DROPPED:
        raise transport_errors.bad_transport_option(
            option=str(key),
            problem="has no effect in any release of FastDeploy",
            fix="remove it; the transfer mode is an argument of the update command",
        )
    if not isinstance(key, str) or key not in known:
        close = difflib.get_close_matches(str(key), known, n=1)
        fix = f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(sorted(known))}"
        raise transport_errors.bad_transport_option(option=str(key), problem="is unknown", fix=fix)
    kinds = known[key]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise transport_errors.bad_transport_option(
            option=key, problem=f"is {value!r}", fix=f"it must be {names}"
        )
    if key in _POSITIVE and isinstance(value, (int, float)) and not value > 0:
        raise transport_errors.bad_transport_option(
            option=key, problem=f"is {value!r}", fix="it must be more than 0"
        )
    if key == "gdr_release_cache" and value:
        raise transport_errors.bad_transport_option(
            option=key,
            problem="is a command of its own here",
            fix="clear the tag kv_cache before the update; that gives back the cache and graphs, and the "
            "update brings them again",
        )
    if key == "output_framework" and value != "paddle":
        raise transport_errors.bad_transport_option(
            option=key, problem=f"is {value!r}", fix="wsm applies paddle tensors"
        )
