"""Loading a version into a target, and looking at one without loading it.

The only entry to strategies: boot, update and wake-up call :func:`load`; a command that wants to refuse
early calls :func:`inspect`. Knows no states and no words; what a failed load means is the caller's matter.

What describes ten thousand tensors is a hundred thousand objects without a cycle among them. Python's cycle
collector would walk them again and again, and with them all that the process held before: with paddle loaded
40 to 60 ms each time. It is made rare, not stopped, and only while a version is opened, not while its bytes
come: the collector is the whole process', which may serve meanwhile, and some sources are waited for when
they are opened. What the cycles that others leave can hold until then is bounded by :data:`RARELY`.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from wsm import log
from wsm.labels import checked_version
from wsm.strategies import errors
from wsm.strategies.applier.admission import Admit, memory_need
from wsm.strategies.applier.apply import Applied, apply_tensors
from wsm.strategies.applier.coverage import check_coverage
from wsm.strategies.applier.feeding import ModelLoader, feed
from wsm.strategies.applier.tensor_copy import default_threads
from wsm.strategies.applier.tensor_set import tensors_in
from wsm.strategies.checkpoint_models import CheckpointModel
from wsm.strategies.errors import LoadCancelledError
from wsm.strategies.observer import LoadObserver, Taint, no_progress, stamping
from wsm.strategies.offer import ManifestScope, Offer
from wsm.strategies.registry import strategy_for
from wsm.strategies.strategy import OverTarget
from wsm.strategies.tensor import HoldingTarget, ServedTarget, WeightTarget, tied_names
from wsm.strategies.training_names import TrainingNames
from wsm.typed import typed

_log = log.logger("strategies")

#: So many more containers must exist than at the last collection before the next one begins. Ten thousand
#: tensors make about as many; ten times the bound gains nothing more.
RARELY = 100_000

_lock = threading.Lock()
_inside = 0
_before = (0, 0, 0)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the collector of the process run rarely inside; any number of threads may be inside at once.

    Thresholds that other code sets meanwhile stay as it has set them.
    """
    global _inside, _before  # noqa: PLW0603 - the collector is one per process, and so is who changed it
    with _lock:
        _inside += 1
        if _inside == 1:
            _before = gc.get_threshold()
            if 0 < _before[0] < RARELY:
                gc.set_threshold(RARELY, *_before[1:])
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and gc.get_threshold() == (RARELY, *_before[1:]):
                gc.set_threshold(*_before)


@dataclass(frozen=True, kw_only=True)
class LoadReport(Applied):
    """What was loaded, and from where; its other parameters say what was applied.

    Parameters
    ----------
    strategy : str
        By which strategy.
    version : str or None
        The version that the source proved to hold; None if nothing there said so.
    manifest_digest : str
        Digest of what was published; the digest of the tensors where there was no manifest.
    manifest_scope : ManifestScope
        GROUP: equal on every rank that loads the version, to be compared. RANK, LOADED: this rank's own.
    files : tuple of str
        Where they came from.
    ignored : tuple of str
        Files that were left out, with a warning in the log.
    seconds : float
        From the first look to the last digest.
    partial : bool
        Whether tensors were allowed to be missing.
    read_bytes : int
        How many bytes were read for the `bytes`: more where slices were proven by whole tensors.
    sync_s : float
        How many of the seconds were spent waiting for the sender of the weights, where that is known.
    publication : str or None
        The publication that it is of, the same on every rank that loads one; None if nothing says so.
    """

    strategy: str
    version: str | None
    manifest_digest: str
    manifest_scope: ManifestScope
    files: tuple[str, ...]
    ignored: tuple[str, ...]
    seconds: float
    partial: bool = False
    read_bytes: int = 0
    sync_s: float = 0.0
    publication: str | None = None

    @property
    def apply_s(self) -> float:
        """How many of the seconds were this rank's own work."""
        return self.seconds - self.sync_s


@dataclass(frozen=True)
class Preview:
    """What would be loaded; as in :class:`LoadReport`, with None for what is known only as it comes.

    That is `manifest_digest` without a manifest, and `bytes` and `tensors` of a stream that does not say
    beforehand what it will bring.
    """

    strategy: str
    version: str | None
    manifest_digest: str | None
    manifest_scope: ManifestScope
    bytes: int | None
    tensors: int | None
    files: tuple[str, ...]
    ignored: tuple[str, ...]
    peak_extra_bytes: int


@typed
def load(
    source: object,
    target: WeightTarget,
    *,
    name: str = "ipc_snapshot",
    version: str | int | None = None,
    allowed_unknown: Collection[str] = (),
    partial: bool = False,
    taint: Callable[[], object] = bool,
    progress: Callable[[int, int], None] = no_progress,
    cancelled: Callable[[], bool] = bool,
    threads: int | None = None,
    loaders: Sequence[ModelLoader | CheckpointModel] = (),
    names: TrainingNames | None = None,
    admit: Admit | None = None,
    before: str | None = None,
    anew: bool = False,
) -> LoadReport:
    """Load one version into `target`: every tensor exactly once, or an error. Blocks. Not collective.

    Parameters
    ----------
    source : object
        Where to load from; ``ipc_snapshot`` takes a :class:`wsm.strategies.SnapshotSource`.
    target : WeightTarget
        What to load into.
    name : str
        The strategy.
    version : str or int, optional
        The version that must be there; without it, the newest that the source announces.
    allowed_unknown : collection of str
        Names that the source may hold and the target does not have; any: :data:`wsm.strategies.EVERY_NAME`.
    partial : bool, optional
        Whether tensors of the target may be missing there. They stay as they are, and must hold their bytes.
    taint : callable, optional
        Called once before the target's memory is asked for; from then on its weights are not whole until
        this function has returned.
    progress : callable, optional
        ``progress(bytes applied, bytes in all)``, after each MiB at most.
    cancelled : callable, optional
        True ends the load. Without it a load has no end of its own: each wait for a peer is bounded, and a
        peer that goes on a few bytes at a time is not. In a group a command's deadline cancels.
    threads : int, optional
        How many copy and digest where the strategy can be read in parallel; by
        default :func:`wsm.strategies.applier.tensor_copy.default_threads`. Whatever is called back, is
        called from the calling thread.
    loaders : sequence of ModelLoader, or of CheckpointModel
        How the models take a checkpoint's tensors, the main one first; used by strategies that bring such
        (``gdr``), which apply by name where there are none.
    names : TrainingNames, optional
        What the source may call the target's tensors. Loaders take a checkpoint's own names all the same.
    admit : callable, optional
        Told what memory the load will take, before its first byte, where the target says what it holds;
        what it raises ends the load. Without it every load is admitted.
    before : str, optional
        The ``tensor_set`` of the last whole version that models took which say nothing beforehand: they must
        be brought the same tensors again. Without it every element of every parameter must be written.
    anew : bool, optional
        Whether they may be brought other tensors than `before`, as without it.

    Raises
    ------
    wsm.strategies.errors.BadInputError
        If the source is not what it must be, see :mod:`wsm.strategies.errors`; the target is untouched
        unless ``touched`` is true on the error.
    RefusedError
        If a tensor that is missing there holds no bytes. Nothing was changed.
    NoRoomError
        If `admit` says that there is too little memory. Nothing was changed.
    LoadCancelledError
        If `cancelled` said so; its ``touched`` says whether the target was changed.
    """
    begun_s = time.monotonic()
    strategy = strategy_for(name, source)
    once = Taint(taint)
    observer = LoadObserver(once, progress, cancelled)
    wanted = None if version is None else checked_version(version)
    threads = threads or default_threads()
    if isinstance(strategy, OverTarget):
        opened = strategy.open_over(source, wanted, observer, target, threads)
    else:
        opened = strategy.open(source, wanted, observer)
    applied: Applied | None = None
    try:
        with stamping(once), ExitStack() as stack:
            with rare_collections():
                offer = stack.enter_context(opened).read_by(threads)
                feeds = bool(loaders) and offer.chunk_tensors is not None
                offer = _renamed(offer, None if feeds else names)  # loaders take a checkpoint's own names
            beside = 0 if feeds else _collected_bytes(offer, target)
            offer = replace(offer, peak_extra_bytes=offer.peak_extra_bytes + beside) if beside else offer
            _log.info("load.begun", strategy=name, version=offer.version, files=errors.listed(offer.files))
            if admit is not None and (need := memory_need(offer, target)) is not None:
                admit(need)
            if feeds:
                applied = feed(
                    offer,
                    loaders,
                    target,
                    observer,
                    allowed_unknown=allowed_unknown,
                    partial=partial,
                    before=tensors_in(before) if before else None,
                    anew=anew,
                )
            else:
                applied = apply_tensors(
                    offer,
                    target,
                    observer,
                    allowed_unknown=allowed_unknown,
                    partial=partial,
                    collects=beside > 0,
                    threads=threads,
                )
    except LoadCancelledError as error:
        if applied is None:
            raise
        with stamping(once):
            raise LoadCancelledError(tensors_applied=applied.tensors, tensors=applied.tensors) from error
    return _report(name, offer, applied, partial=partial, seconds=time.monotonic() - begun_s)


def _report(name: str, offer: Offer, applied: Applied, *, partial: bool, seconds: float) -> LoadReport:
    said = {**vars(applied), "peak_extra_bytes": offer.peak_extra_bytes + applied.peak_extra_bytes}
    return LoadReport(
        strategy=name,
        version=offer.version,
        manifest_digest=offer.manifest_digest or applied.digest,
        manifest_scope=offer.manifest_scope,
        files=offer.files,
        ignored=offer.ignored,
        seconds=seconds,
        partial=partial,
        read_bytes=applied.bytes if offer.read_bytes is None else offer.read_bytes,
        sync_s=0.0 if offer.waited_s is None else offer.waited_s(),
        publication=offer.publication,
        **said,
    )


def _renamed(offer: Offer, names: TrainingNames | None) -> Offer:
    return offer if names is None else names.offer(offer)


def _collected_bytes(offer: Offer, target: WeightTarget) -> int:
    """Return what a stream takes that is collected first: where it could cost weights that are there."""
    in_place = not isinstance(target, ServedTarget)  # what is staged leaves the version that serves as it is
    held = not isinstance(target, HoldingTarget) or any(True for _ in target.held())
    if offer.declared or not (offer.whole and in_place and held):
        return 0
    return sum(spec.nbytes for spec in target.specs().values())


@typed
def inspect(
    source: object,
    version: str | int | None = None,
    *,
    name: str = "ipc_snapshot",
    target: WeightTarget | None = None,
    allowed_unknown: Collection[str] = (),
    threads: int | None = None,
    names: TrainingNames | None = None,
) -> Preview:
    """Look at what :func:`load` would load: everything is checked that can be without reading data.

    Parameters
    ----------
    source, version, name, allowed_unknown, threads, names
        As in :func:`load`.
    target : WeightTarget, optional
        If given, its specs are compared with what the source declares; its memory is not asked for.

    Raises
    ------
    wsm.strategies.errors.BadInputError
        As :func:`load` does before it touches the target.
    """
    strategy = strategy_for(name, source)
    wanted = None if version is None else checked_version(version)
    with rare_collections(), strategy.preview(source, wanted) as seen:
        offer = _renamed(seen.read_by(threads or default_threads()), names)
        known = offer.known
        if target is not None and known is not None:
            check_coverage(
                [(tensor.spec, tensor.origin) for tensor in known],
                target.specs(),
                tied_names(target),
                allowed_unknown=allowed_unknown,
            )
        return Preview(
            strategy=name,
            version=offer.version,
            manifest_digest=offer.manifest_digest,
            manifest_scope=offer.manifest_scope,
            bytes=offer.nbytes,
            tensors=None if known is None else len(known),
            files=offer.files,
            ignored=offer.ignored,
            peak_extra_bytes=offer.peak_extra_bytes,
        )
