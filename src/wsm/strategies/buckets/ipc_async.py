"""The strategy ``ipc_async``: one rank's shard in buckets that a trainer on the same host streams.

It asks the trainer, and yields what will come as an offer whose tensors are read as their buckets arrive. The
messages go over ZMQ, the bytes through shared memory. It applies nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from wsm.errors import GroupError
from wsm.strategies.buckets.receiver import BucketReceiver
from wsm.strategies.buckets.source import IpcAsyncConfig, IpcAsyncSource
from wsm.strategies.errors import NotFiniteError, TiedTensorsDifferError
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import Offer
from wsm.strategies.sections import Sections
from wsm.strategies.strategy import Strategy


class IpcAsync(Strategy):
    """Load from buckets that a trainer streams."""

    source_type = IpcAsyncSource
    sections = (IpcAsyncConfig,)

    def source(self, sections: Sections, rank: int, ranks: int) -> IpcAsyncSource:
        """Return one rank's way to the configured trainer."""
        section = sections.of(IpcAsyncConfig)
        return IpcAsyncSource(
            section.address,
            rank=rank,
            world_size=ranks,
            connect_s=section.connect_s,
            silence_s=section.silence_s,
            memory_directory=section.memory_directory,
        )

    @contextmanager
    def open(
        self, source: IpcAsyncSource, version: str | None, observer: LoadObserver = UNOBSERVED
    ) -> Iterator[Offer]:
        """Ask the trainer for a stream. Blocks until it offers one.

        The trainer hears what became of it: that all was applied and verified, or the error.

        Parameters
        ----------
        source : IpcAsyncSource
            Where the trainer is.
        version : str or None
            The version that it must send; None for whichever it does.
        observer : LoadObserver
            Asked for cancellation while we wait for the trainer.

        Raises
        ------
        wsm.strategies.errors.BadInputError
            If what it offers is not what was asked for. Nothing was changed.
        wsm.strategies.messages.errors.PeerSilentError, PeerDiedError, PeerFailedError, PeerMessageError
            If it does not answer properly, now or later; ``touched`` says whether anything was changed.
        """
        with closing(BucketReceiver(source, observer)) as receiver:
            try:
                receiver.ask(version, look=False)
                receiver.begin()
                try:
                    yield receiver.offer()
                except (NotFiniteError, TiedTensorsDifferError):
                    with suppress(GroupError):
                        receiver.verify()
                    raise
                receiver.finish()
            except BaseException as error:
                receiver.give_up(error)
                raise

    @contextmanager
    def preview(self, source: IpcAsyncSource, version: str | None) -> Iterator[Offer]:
        """Ask to look only: the trainer says what it would send, and goes on waiting for this rank."""
        with closing(BucketReceiver(source, UNOBSERVED)) as receiver:
            receiver.ask(version, look=True)
            yield receiver.offer()
