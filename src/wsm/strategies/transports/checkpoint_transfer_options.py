"""FastDeploy's ``rsync_config``: what goes to CheckpointTransfer and what is our own.

The package is closed and its options are its own, so one that is not known here is passed on. What is known
is checked. The caller's mapping is only read. Knows no package.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wsm.strategies.transports import errors as transport_errors
from wsm.strategies.transports._batches import PackageBuffers

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
    "gdr_release_cache": (bool,),
    # Of an early revision (FastDeploy#7951): the mode where a command names none.
    "transfer_mode": (str,),
    "gpu_direct": (bool,),
    # Not FastDeploy's: what the section rsync says, for workers that have no other configuration.
    "check": (str,),
    "unwritten": (list, tuple),
    # Without effect here: a tensor is applied before the next is asked for, and digests are in the receipt.
    "gdr_prefetch_queue_size": (int,),
    "gdr_debug_tensor_digest": (bool,),
    "gdr_debug_tensor_names": (list, tuple, str),
    "gdr_debug_compare_direct": (bool,),
}
_POSITIVE = (
    "discover_timeout_s",
    "recv_bucket_timeout_s",
    "session_total_timeout_s",
    "gdr_mtp_chunk_size",
    "bucket_size_mb",
    "num_buffers",
    "gdr_prefetch_queue_size",
)
#: How a stream that comes by name is held against a model that serves; the first is the default.
CHECKS: Final = ("whole", "as_it_comes")
_CHOICES: Mapping[str, Sequence[str]] = {"transfer_mode": ("rdma", "gdr"), "check": CHECKS}
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
        known = {**_OF_THE_PACKAGE, **_OF_THE_CALLER}
        unknown = [key for key in self.for_the_package if key not in known]
        found = {key: difflib.get_close_matches(key, known, n=1) for key in unknown}
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
                raise transport_errors.bad_transport_option(
                    option=str(key), problem="is no text", fix="give each option a name"
                )
            if fix := _needed(key, value):
                raise transport_errors.bad_transport_option(option=key, problem=f"is {value!r}", fix=fix)
        passed = {key: value for key, value in rsync_config.items() if key not in _OF_THE_CALLER}
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
            release_cache=own.get("gdr_release_cache", False),
            mode=own.get("transfer_mode") or ("gdr" if own.get("gpu_direct") else None),
            check=own.get("check"),
            unwritten=tuple(map(str, own.get("unwritten", ()))),
        )


def _needed(key: str, value: object) -> str | None:
    """Return what must be done about the value of a known option, if it is wrong."""
    kinds = {**_OF_THE_PACKAGE, **_OF_THE_CALLER}.get(key)
    if kinds is None:
        return None
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        return f"it must be {' or '.join(kind.__name__ for kind in kinds)}"
    if key in _POSITIVE and isinstance(value, (int, float)) and not value > 0:
        return "it must be more than 0"
    if key in _CHOICES and value not in _CHOICES[key]:
        return f"it must be one of {', '.join(_CHOICES[key])}"
    return "wsm applies paddle tensors" if key == "output_framework" and value != "paddle" else None
