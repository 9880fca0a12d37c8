"""From a foreign iterator of named tensors to an offer: bounded waits, and each tensor held to the manifest.

Used by every transport whose package hands tensors over one after the other. The iterator is advanced only
when the tensor before was applied, or copied if it is small, so the package may use its memory again then.
Knows no package.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from wsm.clock import Clock
from wsm.errors import GroupError, WsmError, error_name
from wsm.strategies import errors as strategies_errors
from wsm.strategies.byte_copy import copy_bytes
from wsm.strategies.errors import LoadCancelledError, TrainerTensorError, VersionMismatchError
from wsm.strategies.messages.errors import PeerFailedError, PeerSilentError
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.tensor import TensorSpec
from wsm.strategies.transports import errors as transport_errors
from wsm.strategies.transports.batches import BATCH_S, END, Batches
from wsm.strategies.transports.foreign_tensors import foreign_bytes
from wsm.strategies.transports.foreign_thread import CallExpiredError, ForeignThread
from wsm.strategies.transports.package_buffers import PackageBuffers
from wsm.strategies.transports.stream_manifest import MANIFEST_TENSOR, StreamManifest


@dataclass(frozen=True)
class StreamLimits:
    """How long a stream may be waited for, in seconds: for its first tensor, for each next one, in all.

    What a rank does with what has come is no waiting, however long it takes.
    """

    first_s: float
    next_s: float
    total_s: float


class TensorStream:
    """One version on its way.

    Parameters
    ----------
    peer : str
        Who brings it, for messages.
    version, rank, world_size : int, int, int or None
        What was asked for.
    verify : bool
        Whether a stream without a manifest is refused.
    keep : bool
        Whether the package never writes to a tensor's memory again, so that a target may keep it.
    buffers : PackageBuffers
        What the package holds in buffers of its own.
    limits : StreamLimits
        For the waits.
    thread : ForeignThread
        Where the package runs.
    observer : LoadObserver
        Asked for cancellation during every wait.
    clock : Clock
        For deadlines and costs.
    """

    def __init__(
        self,
        *,
        peer: str,
        version: str,
        rank: int,
        world_size: int | None,
        verify: bool,
        keep: bool,
        buffers: PackageBuffers,
        limits: StreamLimits,
        thread: ForeignThread,
        observer: LoadObserver,
        clock: Clock,
    ) -> None:
        self._peer = peer
        self._version = version
        self._rank = rank
        self._world_size = world_size
        self._verify = verify
        self._keep = keep
        self._buffers = buffers
        self._limits = limits
        self._thread = thread
        self._observer = observer
        self._clock = clock
        self._waited_ns = 0
        self._came = 0
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
        batches = Batches(self._wait(begin, self._limits.first_s, "the stream"), keep=self._keep)
        first = self._wait(batches.first, self._limits.first_s, "the first tensor")
        if first is END:
            raise strategies_errors.empty_snapshot(where=self._peer)
        name, value = self._pair(first)
        if name == MANIFEST_TENSOR:
            self._manifest = self._checked(self._bytes(name, value)[1])
        elif self._verify:
            raise transport_errors.unverified_stream(peer=self._peer, first=name)
        manifest = self._manifest
        digest, scope = _spoken_for(manifest)
        return Offer(
            version=self._version,
            tensors=self._tensors(batches, None if manifest is not None else first),
            files=(self._peer,),
            manifest_digest=digest,
            manifest_scope=scope,
            peak_extra_bytes=self._buffers.peak_extra_bytes(manifest, keep=self._keep),
            declared=False,
            promised=None if manifest is None else tuple(spec for spec, _ in manifest.tensors.values()),
            waited_s=lambda: self._waited_ns / 1e9,
        )

    @property
    def _touched(self) -> bool:
        return self._observer.touched()

    def _checked(self, data: memoryview) -> StreamManifest:
        manifest = StreamManifest.decode(bytes(data), peer=self._peer)
        if manifest.version != self._version:
            raise VersionMismatchError(requested=self._version, found=manifest.version, where=self._peer)
        for field, expected, found in (
            ("rank", self._rank, manifest.rank),
            ("world size", self._world_size, manifest.world_size),
        ):
            if expected is not None and found is not None and expected != found:
                raise strategies_errors.shard_identity(
                    file=self._peer, field=field, expected=expected, found=found
                )
        if not manifest.tensors:
            raise strategies_errors.empty_snapshot(where=self._peer)
        return manifest

    def _tensors(self, batches: Batches, first: Any) -> Iterator[OfferedTensor]:
        items: deque[Any] = deque(() if first is None else (first,))
        while True:
            if not items:
                # The last of a batch is waited for as long as any, however long the batch took before.
                items = self._wait(batches.take, self._limits.next_s, "the next tensor", slack_s=BATCH_S)
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
        digest = None
        if self._manifest is not None:
            promised = self._manifest.tensors.get(name)
            if promised is None or promised[0] != spec:
                raise transport_errors.unpromised_tensor(
                    peer=self._peer,
                    tensor=name,
                    found=_text(spec),
                    promised="no such tensor" if promised is None else _text(promised[0]),
                    touched=self._touched,
                )
            digest = promised[1]

        def read_into(offset: int, destination: memoryview) -> None:
            copy_bytes(data[offset : offset + len(destination)], destination)

        keep = self._keep and not data.readonly
        return OfferedTensor(
            spec,
            f"{name!r} from {self._peer}",
            read_into,
            digest,
            memory=(lambda: data) if keep else None,
            data=data,
            finite=self._manifest is not None and self._manifest.finite,
        )

    def _pair(self, item: Any) -> tuple[str, Any]:
        if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str):
            return item
        raise transport_errors.foreign_tensor(
            peer=self._peer,
            tensor="?",
            problem=f"a {type(item).__name__}, not a name and a tensor",
            touched=self._touched,
        )

    def _bytes(self, name: str, value: Any) -> tuple[TensorSpec, memoryview]:
        try:
            return foreign_bytes(name, value)
        except TrainerTensorError as error:
            raise transport_errors.foreign_tensor(
                peer=self._peer,
                tensor=name,
                problem=error.context["problem"],
                touched=self._touched,
            ) from error

    def _wait(self, work: Callable[[], Any], limit_s: float, expected: str, *, slack_s: float = 0.0) -> Any:
        begun = self._clock.monotonic_ns()
        end = begun + int(self._limits.total_s * 1e9) - self._waited_ns
        until = begun + int((limit_s + slack_s) * 1e9)
        if begun >= end:
            raise self._too_long()
        try:
            return self._thread.call(work, until_ns=min(until, end), observer=self._observer)
        except CallExpiredError:
            if until < end:
                raise PeerSilentError(
                    peer=self._peer, waited_s=limit_s, expected=expected, touched=self._touched
                ) from None
            raise self._too_long() from None
        except LoadCancelledError:
            raise LoadCancelledError(
                tensors_applied=self._came,
                tensors=0 if self._manifest is None else len(self._manifest.tensors),
                touched=self._touched,
            ) from None
        except WsmError:
            raise
        except Exception as error:  # a foreign package may raise anything
            raise PeerFailedError(
                peer=self._peer,
                error=error_name(error),
                reason=str(error),
                touched=self._touched,
            ) from error
        finally:
            self._waited_ns += self._clock.monotonic_ns() - begun

    def _too_long(self) -> GroupError:
        return transport_errors.transfer_too_long(
            peer=self._peer,
            limit_s=self._limits.total_s,
            tensors=self._came,
            touched=self._touched,
        )


def _spoken_for(manifest: StreamManifest | None) -> tuple[str | None, ManifestScope]:
    """Return the digest to report, and whether the ranks may compare it."""
    if manifest is None:
        return None, ManifestScope.LOADED
    group = manifest.group_digest
    return (manifest.digest, ManifestScope.RANK) if group is None else (group, ManifestScope.GROUP)


def _text(spec: TensorSpec) -> str:
    return f"{spec.dtype}{list(spec.shape)}"
