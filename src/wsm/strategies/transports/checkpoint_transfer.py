"""The transport CheckpointTransfer: a closed package that FastDeploy's ``rsync`` receives weights with.

Written against both interfaces that FastDeploy calls (``receive_stream``, and ``receive_weights_sync`` with a
``TransferConfig``) and run against a stand-in that implements them over sockets; the package itself, RDMA
and GPU-direct have not been run. It is imported by name when the first load needs it. Everything it does
happens in a thread of its own, so what hangs there is an error here.

Its iterator of named tensors becomes an offer with bounded waits, and each tensor is held to the manifest. It
is advanced only when the tensor before was applied, or copied if it is small, so the package may use its
memory again then.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import importlib
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from msgspec import Meta, structs

from wsm import log
from wsm.clock import Clock, SystemClock
from wsm.errors import BadInputError, GroupError, RefusedError, UnfitError, WsmError, error_name
from wsm.strategies import errors as strategies_errors
from wsm.strategies.conversation import Wanted
from wsm.strategies.errors import LoadCancelledError
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.peer_errors import PeerFailedError, PeerSilentError
from wsm.strategies.tensor import TensorSpec
from wsm.strategies.trainer.tensors import tensor_of
from wsm.strategies.transports._foreign import (
    BATCH_BYTES,
    BATCH_S,
    END,
    Batches,
    CallExpiredError,
    ForeignThread,
)
from wsm.strategies.transports.stream_manifest import MANIFEST_TENSOR, StreamManifest
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


@dataclass(eq=False)
class TensorStream:
    """One version on its way.

    What a rank does with what has come is no waiting, however long it takes.

    Parameters
    ----------
    transport : CheckpointTransferTransport
        Who brings it, and for how long it may be waited for, in all for a part of it and for the whole.
    wanted : Wanted
        What was asked for, by its version's name.
    observer : LoadObserver
        Asked for cancellation during every wait.
    """

    transport: CheckpointTransferTransport
    wanted: Wanted
    observer: LoadObserver

    def __post_init__(self) -> None:
        self.peer, self.options = self.transport.peer, self.transport.options
        self._waited_ns = self._came = 0
        self._manifest: StreamManifest | None = None

    def offer(self, begin: Callable[[], Any]) -> Offer:
        """Begin the stream and take its first tensor, before anything is touched. Blocks until it is there.

        Parameters
        ----------
        begin : callable
            Run in the thread; returns the iterator of (name, tensor), or of awaitables of them.

        Raises
        ------
        BadInputError, wsm.strategies.errors.ManifestError, VersionMismatchError
            If the manifest is missing or of something else.
        PeerSilentError, PeerFailedError, GroupError, LoadCancelledError, BadInputError
            If the first tensor does not come, or is none.
        """
        first_s = self.options.discover_timeout_s
        batches = Batches(self._wait(begin, first_s, "the stream"), keep=self.transport.keep)
        first = self._wait(batches.first, first_s, "the first tensor")
        if first is END:
            raise strategies_errors.empty_snapshot(where=self.peer)
        name, value = self._pair(first)
        if name == MANIFEST_TENSOR:
            self._manifest = self._checked(self._bytes(name, value)[1])
        elif self.transport.verifies:
            raise UnfitError(
                f"{self.peer} sent {name!r} first and no manifest, so nothing it brings can be verified; "
                "send wsm.strategies.with_manifest(state) there, or configure verify_checksum: false",
                code="unverified-stream",
                peer=self.peer,
                first=name,
            )
        manifest, digest, scope = self._manifest, None, ManifestScope.LOADED
        if manifest is not None:
            digest, scope = manifest.group_digest, ManifestScope.GROUP
            if digest is None:  # the ranks have nothing to compare
                digest, scope = manifest.seal, ManifestScope.RANK
        return Offer(
            version=self.wanted.version,
            tensors=self._tensors(batches, None if manifest is not None else first),
            files=(self.peer,),
            manifest_digest=digest,
            manifest_scope=scope,
            peak_extra_bytes=self.options.peak_extra_bytes(manifest, keep=self.transport.keep),
            declared=False,
            promised=None if manifest is None else tuple(tensor.spec for tensor in manifest.tensors),
            waited_s=lambda: self._waited_ns / 1e9,
        )

    def _checked(self, data: memoryview) -> StreamManifest:
        manifest = StreamManifest.decode(bytes(data), file=f"the manifest from {self.peer}")
        wanted = self.wanted
        whose = (None, None) if manifest.whole else (wanted.rank, wanted.world_size)
        manifest.require(wanted.version, *whose, where=self.peer)
        return manifest

    def _tensors(self, batches: Batches, first: Any) -> Iterator[OfferedTensor]:
        items: deque[Any] = deque(() if first is None else (first,))
        while True:
            if not items:
                # The last of a batch is waited for as long as any, however long the batch took before.
                limit_s = self.options.recv_bucket_timeout_s + BATCH_S
                items = self._wait(batches.take, limit_s, "the next tensor")
            item = items.popleft()
            if item is END:
                return
            offered = self._offered(*self._pair(item))
            item = None
            self._came += 1
            yield offered
            if offered.data is not None and offered.memory is None:
                with suppress(BufferError):  # a view that still looks at it keeps it
                    offered.data.release()  # its memory may be used again, though the offer lives on
            del offered

    def _offered(self, name: str, value: Any) -> OfferedTensor:
        spec, data = self._bytes(name, value)
        manifest, digest = self._manifest, None
        if manifest is not None:
            promised = manifest.by_name.get(name)
            if promised is None or promised.spec != spec:
                found = f"{spec.dtype}{list(spec.shape)}"
                wanted = "no such tensor"
                if promised is not None:
                    wanted = f"{promised.spec.dtype}{list(promised.spec.shape)}"
                raise UnfitError(
                    f"{self.peer} brought {name!r} as {found}, its manifest promised {wanted}; "
                    "send what the manifest was made from",
                    code="unpromised-tensor",
                    peer=self.peer,
                    tensor=name,
                    found=found,
                    promised=wanted,
                )
            digest = promised.digest

        offered = OfferedTensor.of_bytes(spec, f"{name!r} from {self.peer}", data, digest)
        offered.data = data
        offered.finite = manifest is not None and manifest.finite
        if self.transport.keep and not data.readonly:
            offered.memory = lambda: data
        return offered

    def _pair(self, item: Any) -> tuple[str, Any]:
        if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str):
            return item
        raise self._foreign("?", f"a {type(item).__name__}, not a name and a tensor")

    def _bytes(self, name: str, value: Any) -> tuple[TensorSpec, memoryview]:
        try:
            return tensor_of(name, value)
        except BadInputError as error:
            raise self._foreign(name, error.context["problem"]) from error

    def _foreign(self, tensor: str, problem: str) -> BadInputError:
        return UnfitError(
            f"{self.peer} handed over {tensor!r}, which cannot be applied: {problem}; "
            "send contiguous tensors of the model's own dtypes",
            code="foreign-tensor",
            peer=self.peer,
            tensor=tensor,
            problem=problem,
        )

    def _wait(self, work: Callable[[], Any], limit_s: float, expected: str) -> Any:
        begun = self.transport.clock.monotonic_ns()
        left_s = self.options.session_total_timeout_s - self._waited_ns / 1e9
        if left_s <= 0:
            raise self._too_long()
        try:
            return self.transport.call(work, min(limit_s, left_s), expected, self.observer)
        except PeerSilentError:
            if limit_s <= left_s:
                raise
            raise self._too_long() from None
        except LoadCancelledError:
            tensors = 0 if self._manifest is None else len(self._manifest.rows)
            raise LoadCancelledError(tensors_applied=self._came, tensors=tensors) from None
        finally:
            self._waited_ns += self.transport.clock.monotonic_ns() - begun

    def _too_long(self) -> GroupError:
        limit_s = self.options.session_total_timeout_s
        return GroupError(
            f"{self.peer} had not brought everything after {limit_s:.3g} s of waiting, "
            f"{self._came} tensors came; raise session_total_timeout_s, or look at what slows the transfer "
            "down",
            code="transfer-too-long",
            peer=self.peer,
            limit_s=limit_s,
            tensors=self._came,
        )


PACKAGE = "checkpoint_transfer"

#: What FastDeploy calls a version over IPC that no command names.
UNNAMED_OVER_IPC = "0"

#: How long the package may take to clean up after itself before it is left to its thread.
_CLOSE_S = 5.0

_log = log.logger("strategies")


class Interface(enum.Enum):
    """Which of the package's two interfaces is used, and with which of its first phases.

    STREAM: ``CheckpointTransfer(**config)`` and ``receive_stream``. IPC, GPU_DIRECT: a ``TransferConfig``
    with that backend for its first phase, and ``receive_weights_sync``.
    """

    STREAM = "stream"
    IPC = "ipc"
    GPU_DIRECT = "gpu_direct"


@dataclass(eq=False)
class CheckpointTransferTransport:
    """One rank's CheckpointTransfer.

    Parameters
    ----------
    options : CheckpointTransferOptions
        FastDeploy's ``rsync_config``, checked.
    interface : Interface
        How the package is called.
    verify_checksum : bool
        Whether the package checks what it brings, which is taken on trust.
    requires_manifest : bool or None
        Whether a stream must bring a manifest (:func:`wsm.strategies.with_manifest`), which every tensor is
        held to here; None: where `verify_checksum` says so.
    keep : bool
        Whether a released parameter may keep the package's memory. Only for builds that never write to a
        tensor again once they have handed it over.
    device_index : int, optional
        ``FLAGS_selected_gpus``, which is the rank that the IPC interface goes by; the rank if not given.
    clock : Clock, optional
        For deadlines.
    """

    name: ClassVar[str] = PACKAGE

    options: CheckpointTransferOptions
    _: KW_ONLY
    interface: Interface = Interface.STREAM
    verify_checksum: bool = True
    requires_manifest: bool | None = None
    keep: bool = False
    device_index: int | None = None
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        self.peer = f"{PACKAGE} at {self.options.meeting_point}"
        self._thread: ForeignThread | None = None
        self._transfer: Any = None  # the package's own object, which lives in the thread
        self._begun: Any = None
        # For whom of how many it was made.
        self._whose: tuple[int, int | None] | None = None

    @property
    def verifies(self) -> bool:
        """Whether a stream without a manifest is refused."""
        return self.verify_checksum if self.requires_manifest is None else self.requires_manifest

    @contextmanager
    def open(self, wanted: Wanted, observer: LoadObserver) -> Iterator[Offer]:
        """Receive what is `wanted`, as ``Transport.open`` says; connect the first time.

        A stream cannot be looked at without receiving it.

        Raises
        ------
        RefusedError, BadInputError
            If the package is missing, or no version was named. Nothing was changed.
        PeerSilentError, PeerFailedError, GroupError
            If it does not connect, or does not bring the stream in time.
        BadInputError, wsm.strategies.errors.ManifestError, VersionMismatchError
            If the stream is not what was asked for. Nothing was changed.
        """
        wanted = structs.replace(wanted, version=self._named(wanted.version))
        if wanted.look:
            held = self.options.peak_extra_bytes(None, keep=self.keep)
            scope, peers = ManifestScope.LOADED, (self.peer,)
            yield Offer(wanted.version, iter(()), peers, None, scope, peak_extra_bytes=held, declared=False)
            return
        if self._whose != (wanted.rank, wanted.world_size):
            self._connect(wanted, observer)
        yield TensorStream(self, wanted, observer).offer(lambda: self._begin(wanted.version))

    def close(self) -> None:
        """Let the package clean up, and end its thread. Blocks some seconds at most. Idempotent."""
        thread, transfer, begun = self._thread, self._transfer, self._begun
        self._thread = self._transfer = self._begun = self._whose = None
        if thread is not None:
            thread.end(lambda: _clean_up(transfer, begun), wait_s=_CLOSE_S)

    def call(self, work: Callable[[], Any], limit_s: float, expected: str, observer: LoadObserver) -> Any:
        """Run `work` where the package lives; say of what goes wrong what a rank says of any peer. Blocks.

        Raises
        ------
        PeerSilentError, PeerFailedError, LoadCancelledError
            If it has not returned after `limit_s`, raises, or is no longer wanted.
        """
        if self._thread is None:
            self._thread = ForeignThread(f"wsm-{PACKAGE}", self.clock)
        until = self.clock.monotonic_ns() + int(limit_s * 1e9)
        try:
            return self._thread.call(work, until_ns=until, observer=observer)
        except CallExpiredError:
            raise PeerSilentError(peer=self.peer, waited_s=limit_s, expected=expected) from None
        except WsmError:
            raise
        except Exception as error:  # a foreign package may raise anything
            raise PeerFailedError(peer=self.peer, error=error_name(error), reason=str(error)) from error

    def _connect(self, wanted: Wanted, observer: LoadObserver) -> None:
        self.close()
        made, limit_s = self._maker(wanted.rank, wanted.world_size), self.options.discover_timeout_s
        try:
            self._transfer = self.call(made, limit_s, "its connection", observer)
            self.call(self._transfer.initialize, limit_s, "its connection", observer)
        except BaseException:
            self.close()  # what cannot be initialized is not tried again
            raise
        self._whose = wanted.rank, wanted.world_size

    def _named(self, version: str | None) -> str:
        """Return the version to ask for; over IPC there is one only, whatever it is called."""
        if version is None and self.interface is Interface.IPC:
            return UNNAMED_OVER_IPC
        if version is None:
            raise UnfitError(
                f"{PACKAGE} brings versions by their labels and was told none; name the version in the "
                "command, or give rsync: directory, whose version.yaml announces one or which one is "
                "published into",
                code="version-unnamed",
                transport=PACKAGE,
            )
        return version

    def _maker(self, rank: int, world_size: int | None) -> Callable[[], Any]:
        """Import what is needed, and return what constructs the package's object."""
        options = self.options
        for option, similar in options.suspicious.items():
            _log.warning("transport.option_unknown", transport=PACKAGE, option=option, similar=similar)
        ranks = world_size if world_size is not None else rank + 1
        group_size = options.group_size if options.group_size is not None else ranks
        if self.interface is Interface.STREAM:
            transfer = _imported(PACKAGE, "CheckpointTransfer")
            return lambda: transfer(**options.for_the_package, local_rank=rank, group_size=group_size)
        transfer = _imported(f"{PACKAGE}.transfer", "CheckpointTransfer")
        config_type = _imported(f"{PACKAGE}.config", "TransferConfig")
        role = _imported(f"{PACKAGE}.config", "Role")
        backend = _imported(f"{PACKAGE}.config", "Phase1Backend")
        known = {field.name for field in dataclasses.fields(config_type)}
        arguments = {key: value for key, value in options.for_the_package.items() if key in known}
        dropped = sorted(set(options.for_the_package) - known)
        if dropped:
            _log.info("transport.options_dropped", transport=PACKAGE, options=", ".join(dropped))
        arguments.update(role=role.INFERENCE, group_size=group_size)
        if self.interface is Interface.GPU_DIRECT:
            arguments.update(phase1_backend=backend.GPU_DIRECT, global_rank=options.index * ranks + rank)
        else:
            device = self.device_index if self.device_index is not None else rank
            arguments.update(phase1_backend=backend.IPC, global_rank=device)
            arguments.setdefault("qsize", 2)
        return lambda: transfer(config_type(**arguments))

    def _begin(self, version: str | None) -> Any:
        if self.interface is Interface.STREAM:
            self._begun = self._transfer.receive_stream(step_id=version, verify_checksum=self.verify_checksum)
        else:
            self._begun = self._transfer.receive_weights_sync(step_id=version, output_framework="paddle")
        return self._begun


async def _clean_up(transfer: Any, begun: Any) -> None:
    """Close a stream that may not have come to its end, then the package's object, by what call it has."""
    for owner, calls in ((begun, ("close", "aclose")), (transfer, ("cleanup", "close", "finalize"))):
        call = next((found for name in calls if callable(found := getattr(owner, name, None))), None)
        if call is None:
            continue
        try:
            done = call()
            if inspect.isawaitable(done):
                await done
        except Exception as error:  # noqa: BLE001 - the load's own error must be seen, not this one
            text = f"{error_name(error)}: {error}"
            _log.warning(log.TRANSPORT_NOT_CLOSED, transport=PACKAGE, error=text)


def _imported(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        problem = f"{module} cannot be imported ({error})"
        if isinstance(error, AttributeError):
            problem = f"{module} has no {name}"
        raise RefusedError(
            f"the transport needs the package {PACKAGE}: {problem}; install the wheel that your platform "
            "provides (it is not on PyPI), or configure the transport mooncake",
            code="transport-package-unusable",
            package=PACKAGE,
            problem=problem,
        ) from error
