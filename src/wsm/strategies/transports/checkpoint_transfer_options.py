"""FastDeploy's ``rsync_config``: what goes to CheckpointTransfer and what is our own.

The package is closed and its options are its own, so one that is not known here is passed on. What is known
is checked. The caller's mapping is only read. Knows no package.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from wsm.errors import BadInputError
from wsm.strategies.transports._batches import BATCH_BYTES
from wsm.strategies.transports.stream_manifest import StreamManifest
from wsm.typed import annotations_of, fits, said

#: How a stream that comes by name is held against a model that serves; the first is the default.
CHECKS: Final = ("whole", "as_it_comes")

_Some: TypeAlias = Annotated[int, Meta(gt=0)]
_Time: TypeAlias = Annotated[float, Meta(gt=0)]

#: What CheckpointTransfer itself takes, besides what is looked at here.
_OF_THE_PACKAGE: Mapping[str, Any] = {
    "etcd_server": str,
    "backend": str,
    "redis_host": str,
    "redis_port": int,
    "redis_ttl_s": float,
    "device": str | int,
    "device_name": str | int,
    "gpu_id": int,
    "qsize": int,
    "phase2_backend": str,
    "phase2_fan_out": int,
    "materialize_tensors": bool,
    "log_level": str,
    "log_file": str,
    "perf_log_file": str,
}
#: What FastDeploy, and so this adapter, uses itself.
_OF_THE_CALLER: Mapping[str, Any] = {
    "group_size": int,
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
_MEBIBYTE = 1 << 20

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
    discover_timeout_s, recv_bucket_timeout_s, session_total_timeout_s : float
        The package's own deadlines, which wsm keeps for it.
    num_buffers, bucket_size_mb : int
        What the package holds in buffers, as FastDeploy has it where nothing is said.
    gdr_mtp_chunk_size : int
        Tensors per chunk for auxiliary models.
    gdr_release_cache : bool
        Whether an update in place gives the KV caches' memory back for its time.
    transfer_mode : str or None
        The one that it names, ``rdma`` or ``gdr``; None if it names none.
    check : str or None
        One of :data:`CHECKS`; None if it says none.
    unwritten : sequence of str
        Patterns of the parameters that loaders may leave unwritten.
    """

    for_the_package: Mapping[str, Any]
    index: int = 0
    group_size: int | None = None
    discover_timeout_s: _Time = 60.0
    recv_bucket_timeout_s: _Time = 60.0
    session_total_timeout_s: _Time = 600.0
    num_buffers: _Some = 2
    bucket_size_mb: _Some = 512
    gdr_mtp_chunk_size: _Some = 16
    gdr_release_cache: bool = False
    transfer_mode: str | None = None
    check: str | None = None
    unwritten: Sequence[str] = ()

    @property
    def suspicious(self) -> Mapping[str, str]:
        """Options that are not known here, and the known one that each looks like."""
        known = _known()
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
        known = _known()
        for key, value in rsync_config.items():
            if not isinstance(key, str):
                raise _refused(str(key), "is no text", "give each option a name")
            if not fits(known.get(key, Any), value):
                raise _refused(key, f"is {value!r}", f"it must be {said(known[key])}")
        passed = {key: value for key, value in rsync_config.items() if key not in _OF_THE_CALLER}
        if "device_name" in passed:
            passed = {"device": passed.pop("device_name"), **passed}
        ours = {each.name for each in fields(cls)}
        own = {key: value for key, value in rsync_config.items() if key in ours}
        if rsync_config.get("gpu_direct"):
            own.setdefault("transfer_mode", "gdr")
        return cls(**{**own, "for_the_package": passed})

    def peak_extra_bytes(self, manifest: StreamManifest | None, *, keep: bool) -> int:
        """Return what is held beside the target at most: in the package's buffers, and in batches of ours.

        A tensor that is larger than a buffer has to lie somewhere, too; and buffers hold no more than the
        stream brings. What a package takes when it connects is gone by then, so it is not counted twice.

        Parameters
        ----------
        manifest : StreamManifest or None
            What the stream brings, where that is known.
        keep : bool
            Whether nothing is copied, because the package never uses its memory again.
        """
        sizes = [] if manifest is None else [tensor.spec.nbytes for tensor in manifest.tensors]
        held = self.num_buffers * max([self.bucket_size_mb * _MEBIBYTE, *sizes])
        if manifest is not None:
            held = min(held, sum(sizes))
        return held + (0 if keep else BATCH_BYTES)


def _known() -> Mapping[str, Any]:
    """Return what each option must be that is known here."""
    return {**annotations_of(CheckpointTransferOptions), **_OF_THE_PACKAGE, **_OF_THE_CALLER}


def _refused(option: str, problem: str, fix: str) -> BadInputError:
    return BadInputError(
        f"rsync_config: {option!r} {problem}; {fix}",
        code="bad-transport-option",
        option=option,
        problem=problem,
    )
