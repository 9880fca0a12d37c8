"""FastDeploy's ``rsync_config``: what goes to CheckpointTransfer and what is our own.

The package is closed and its options are its own, so one that is not known here is passed on. What is known
is checked. The caller's mapping is only read. Knows no package.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from wsm.errors import BadInputError
from wsm.strategies.transports._batches import PackageBuffers
from wsm.typed import fits, said

#: How a stream that comes by name is held against a model that serves; the first is the default.
CHECKS: Final = ("whole", "as_it_comes")

_Some: TypeAlias = Annotated[int, Meta(gt=0)]
_Time: TypeAlias = Annotated[float, Meta(gt=0)]

#: What CheckpointTransfer itself takes.
_OF_THE_PACKAGE: Mapping[str, Any] = {
    "etcd_server": str,
    "backend": str,
    "redis_host": str,
    "redis_port": int,
    "redis_ttl_s": float,
    "device": str | int,
    "device_name": str | int,
    "gpu_id": int,
    "group_size": int,
    "qsize": int,
    "bucket_size_mb": _Some,
    "num_buffers": _Some,
    "phase2_backend": str,
    "phase2_fan_out": int,
    "discover_timeout_s": _Time,
    "recv_bucket_timeout_s": _Time,
    "session_total_timeout_s": _Time,
    "materialize_tensors": bool,
    "log_level": str,
    "log_file": str,
    "perf_log_file": str,
}
#: What FastDeploy, and so this adapter, uses itself.
_OF_THE_CALLER: Mapping[str, Any] = {
    "index": int,
    "output_framework": Literal["paddle"],
    "gdr_mtp_chunk_size": _Some,
    "gdr_release_cache": bool,
    # Of an early revision (FastDeploy#7951): the mode where a command names none.
    "transfer_mode": Literal["rdma", "gdr"],
    "gpu_direct": bool,
    # Not FastDeploy's: what the section rsync says, for workers that have no other configuration.
    "check": Literal[CHECKS],
    "unwritten": Sequence[str],
    # Without effect here: a tensor is applied before the next is asked for, and digests are in the receipt.
    "gdr_prefetch_queue_size": _Some,
    "gdr_debug_tensor_digest": bool,
    "gdr_debug_tensor_names": Sequence[str] | str,
    "gdr_debug_compare_direct": bool,
}
_KNOWN = {**_OF_THE_PACKAGE, **_OF_THE_CALLER}
#: What this adapter looks at, by the names of :class:`CheckpointTransferOptions`.
_OWN: Mapping[str, str] = {
    "index": "index",
    "group_size": "group_size",
    "discover_s": "discover_timeout_s",
    "next_s": "recv_bucket_timeout_s",
    "total_s": "session_total_timeout_s",
    "mtp_chunk_size": "gdr_mtp_chunk_size",
    "release_cache": "gdr_release_cache",
    "mode": "transfer_mode",
    "check": "check",
    "unwritten": "unwritten",
}
_MEBIBYTE = 1 << 20
# What FastDeploy's configuration has if no option is set.
_TWO_LARGE_ONES = PackageBuffers(2, 512 * _MEBIBYTE)

#: What is to be done where one command asks for another ``gdr_release_cache`` than the ranks are told.
CACHE_AS_CONFIGURED: Final = (
    "plans are made when a rank starts: say it in the configuration, or clear the tag kv_cache before"
)


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
    release_cache : bool
        Whether an update in place gives the KV caches' memory back for its time.
    mode : str or None
        The transfer mode that it names, ``rdma`` or ``gdr``; None if it names none.
    check : str or None
        One of :data:`CHECKS`; None if it says none.
    unwritten : sequence of str
        Patterns of the parameters that loaders may leave unwritten.
    """

    for_the_package: Mapping[str, Any]
    index: int = 0
    group_size: int | None = None
    discover_s: float = 60.0
    next_s: float = 60.0
    total_s: float = 600.0
    buffers: PackageBuffers = _TWO_LARGE_ONES
    mtp_chunk_size: int = 16
    release_cache: bool = False
    mode: str | None = None
    check: str | None = None
    unwritten: Sequence[str] = ()

    @property
    def suspicious(self) -> Mapping[str, str]:
        """Options that are not known here, and the known one that each looks like."""
        unknown = [key for key in self.for_the_package if key not in _KNOWN]
        found = {key: difflib.get_close_matches(key, _KNOWN, n=1) for key in unknown}
        return {key: close[0] for key, close in found.items() if close}

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
            If a key is no text, or the value of a known one has the wrong type or size.
        """
        for key, value in rsync_config.items():
            if not isinstance(key, str):
                raise _refused(str(key), "is no text", "give each option a name")
            if not fits(_KNOWN.get(key, Any), value):
                raise _refused(key, f"is {value!r}", f"it must be {said(_KNOWN[key])}")
        passed = {key: value for key, value in rsync_config.items() if key not in _OF_THE_CALLER}
        if "device_name" in passed:
            name = passed.pop("device_name")
            passed.setdefault("device", name)
        own = {field: rsync_config[option] for field, option in _OWN.items() if option in rsync_config}
        if rsync_config.get("gpu_direct"):
            own.setdefault("mode", "gdr")
        passed.pop("group_size", None)
        count, mebibytes = rsync_config.get("num_buffers"), rsync_config.get("bucket_size_mb")
        buffers = PackageBuffers(
            cls.buffers.count if count is None else count,
            cls.buffers.nbytes if mebibytes is None else mebibytes * _MEBIBYTE,
        )
        return cls(for_the_package=passed, buffers=buffers, **own)


def _refused(option: str, problem: str, fix: str) -> BadInputError:
    return BadInputError(
        f"rsync_config: {option!r} {problem}; {fix}",
        code="bad-transport-option",
        option=option,
        problem=problem,
    )
