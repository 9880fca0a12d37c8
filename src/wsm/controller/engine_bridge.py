"""FastDeploy's int32 words, obeyed: what an engine asks by them is commanded, and answered.

:class:`EngineBridge` compares what the words ask with what the group is, does what is missing, and answers
from exactly the value that it answers; a value that changed meanwhile is the next command. The bridge looks
at levels, and remembers only since when it sees a disagreement and when to try again, so that a new bridge
can replace one that died. It runs once per group: in rank 0's worker, or in the process that owns the
group's processes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import final

from wsm import log
from wsm.clock import Clock, SystemClock
from wsm.config import EngineWordsConfig
from wsm.controller._drive import again_and_again
from wsm.controller.controller import Controller
from wsm.controller.errors import CommandWithdrawnError
from wsm.controller.pending import Pending
from wsm.errors import WsmError
from wsm.signals.errors import EngineWordMissingError, RoleBusyError
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.states import engine_words as contract
from wsm.states.engine_words import FailedWish, Given, Held
from wsm.states.errors import CommandOpenError
from wsm.states.vocabulary import KVState, OnFailure, WeightState
from wsm.states.words import Operation
from wsm.status import GroupStatus
from wsm.typed import Seconds, typed

#: Seconds between two looks. An engine wakes no waiter when it writes a word.
POLL_S = 0.002

#: Seconds before another look after one that raised: doubled every time, up to the longest.
RETRY_S = 0.5
LONGEST_RETRY_S = 30.0


def held_by(status: GroupStatus) -> Held:
    """Return what all ranks hold, as the table of FastDeploy's words tells it apart."""
    held = [rank.resident for rank in status.ranks]
    if all((each.weights, each.kv) == (WeightState.NORMAL, KVState.NORMAL) for each in held):
        return Held.WHOLE if status.hold is None else Held.ON_HOLD
    return Held.NOTHING if status.engine_state is WeightState.CLEARED else Held.DIFFERENT


@final
@dataclass
class EngineWishes:
    """What an engine asks by the weights word that decides: the one reader of the table of these words.

    Parameters
    ----------
    controller : Controller
        Of the group.
    drive : callable
        ``drive(pending)`` waits for a command, and raises what became of it.
    deadline_s : float
        Seconds for each.
    clock : Clock
        For the time until a wish that failed is tried again.
    logger : EventLogger
        Of the process that looks at the word.
    takes_over : bool
        Whether the command for a wish completes what a dead controller has left open; else it waits until
        that is over.

    Attributes
    ----------
    woken : bool
        Whether UPDATING in the word is no wish: wsm has stored it to wake FastDeploy's loop, or until a hold
        is released.
    failed : FailedWish
        What the word asks for still.
    """

    controller: Controller
    drive: Callable[[Pending], object]
    deadline_s: float
    clock: Clock
    logger: log.EventLogger
    takes_over: bool = False
    woken: bool = False
    failed: FailedWish = field(default_factory=FailedWish)

    def obey(self, read: Callable[[], int], wish: int, *, sleeps: bool | None) -> int | None:
        """Do what the word asks. Blocks while a command for it runs.

        Parameters
        ----------
        read : callable
            Reads the word anew.
        wish : int
            What it said: CLEARING or UPDATING.
        sleeps : bool or None
            As in :class:`wsm.states.engine_words.WishRow`.

        Returns
        -------
        int or None
            What the word is to say now; `wish` itself while it is asked for still. None: another command is
            under way, which may be the one that holds the words, or the next try is still to come.
        """
        status, now = self.controller.status(), self.clock.monotonic_ns() / 1e9
        newer = self.failed.word == wish and status.over and status.sequence > self.failed.sequence
        # By a command of another process: the word follows the group then.
        ended = self.woken or (newer and not Operation[status.operation].is_abort)
        if not (status.over or self.takes_over) or (not ended and self.failed.waits(wish, now)):
            return None
        held, outcome = held_by(status) if status.over else Held.WHOLE, None
        if ended and wish == contract.UPDATING:
            outcome = False
        due = contract.follows(wish, held, failed=outcome, sleeps=sleeps)
        if isinstance(due, Given):
            failed = self._command(due, read, wish, status)
            if failed is None:
                return None
            outcome = contract.outcome_of(wish, due, failed=failed)
            due = contract.follows(wish, held_by(self.controller.status()), failed=outcome, sleeps=sleeps)
        if isinstance(due, Given):
            return wish
        self.failed, self.woken = FailedWish(), due == contract.UPDATING
        return due

    def _command(self, due: Given, read: Callable[[], int], wish: int, last: GroupStatus) -> bool | None:
        """Give a command; return whether it has failed, None: it has not begun.

        One that came behind the `last` command may have ended what the word wishes.
        """

        def wanted() -> bool:
            now = self.controller.status()
            return read() == wish and (now.epoch, now.sequence) == (last.epoch, last.sequence)

        begin: Callable[..., Pending] = self.controller.begin_clear
        if due is Given.UPDATE:
            begin = partial(self.controller.begin_update, force=True, on_failure=OnFailure.CLEAR)
        sequence, error = None, None
        try:
            pending = begin(deadline_s=self.deadline_s, request_id=due.request_id, still_wanted=wanted)
            self.logger.info("engine_word.seen", asked=WeightState(wish).name)
            try:
                self.drive(pending)
            finally:
                sequence = pending.sequence
        except (RoleBusyError, CommandOpenError, CommandWithdrawnError):  # another one is, or has done it
            return None
        except WsmError as raised:
            error = raised
        if error is None:
            return False
        told, before = error.context, self.failed.cause  # a cause is told once, by what is the same each time
        cause = " ".join(str(told[name]) for name in ("error", "action", "cause") if name in told)
        now = self.clock.monotonic_ns() / 1e9
        self.failed = self.failed.again(
            wish, cause or str(error), sequence=sequence or last.sequence, now=now
        )
        if self.failed.cause != before:
            self.logger.error(log.COMMAND_FAILED, asked=WeightState(wish).name, error=str(error))
        return True


@final
@typed
class EngineBridge:
    """Obeys and answers the words of one group.

    Parameters
    ----------
    controller : Controller
        Of the group; without engine words of its own.
    config : EngineWordsConfig
        Which words.
    clock : Clock or None
        For the time that parts may disagree.
    directory : path or None
        Where the words lie; ``/dev/shm`` by default.
    poll_s : float
        Seconds between two looks of the thread; one takes up to half a millisecond.
    """

    def __init__(
        self,
        controller: Controller,
        config: EngineWordsConfig,
        *,
        clock: Clock | None = None,
        directory: str | Path | None = None,
        poll_s: Seconds = POLL_S,
    ) -> None:
        self._controller = controller
        self._poll_s = poll_s
        self._pending: Pending | None = None
        self._config = config
        self._clock = clock or SystemClock()
        self._directory = directory
        self._words: dict[tuple[EngineWordKind, str], EngineWord] = {}
        self._conflict: tuple[list[int], int] | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._log = log.logger("engine_bridge")
        self._wishes = EngineWishes(
            controller, self._drive, config.deadline_s, self._clock, self._log, takes_over=True
        )

    def start(self) -> EngineBridge:
        """Look again and again in a thread of its own until :meth:`close`."""
        self._thread = threading.Thread(target=self._run, name="wsm-engine-bridge", daemon=True)
        self._thread.start()
        return self

    def turn(self) -> None:
        """Look once; obey and answer what there is. Blocks while a command that was asked for runs."""
        self._attach()
        weights = self._of_kind(EngineWordKind.WEIGHTS)
        if weights and len(weights) == len(self._config.suffixes):
            asked = weights[0].read()
            if asked in contract.ASKS:
                self._conflict = None
                self._obey(weights, asked)
            else:
                self._wishes.failed = FailedWish()
                self._show_truth(weights)
                self._wait_for_the_first_part(weights)
        self._answer_caches()

    def close(self) -> None:
        """End the thread and let go of the words. Idempotent.

        A command under way is taken back if nothing is decided yet, and waited for.
        """
        self._closing.set()
        pending = self._pending
        if pending is not None:
            pending.give_up()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for word in self._words.values():
            word.close()
        self._words.clear()

    def __enter__(self) -> EngineBridge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        again_and_again(self._turned, self._closing, (self._poll_s, RETRY_S, LONGEST_RETRY_S))

    def _turned(self) -> bool:
        try:
            self.turn()
        except Exception as error:  # noqa: BLE001 - a bridge that ends leaves its engine waiting for ever
            self._log.error(log.COMMAND_FAILED, error=str(error))
            return False
        return True

    def _attach(self) -> None:
        """Attach to words that appeared; leave words that the engine created anew or removed."""
        for kind in (EngineWordKind[name.upper()] for name in self._config.answers):
            for suffix in map(str, self._config.suffixes):
                known = self._words.get((kind, suffix))
                if known is not None and known.is_replaced():
                    known.close()
                    del self._words[kind, suffix]
                    known = None
                    self._log.warning("segment.recreated", word=f"{kind.value}.{suffix}")
                if known is None:
                    with contextlib.suppress(EngineWordMissingError):
                        self._words[kind, suffix] = EngineWord(
                            kind, suffix, directory=self._directory, user=self._config.user
                        )

    def _of_kind(self, kind: EngineWordKind) -> list[EngineWord]:
        """Return the words of a kind in the order of the parts; that of the first part decides."""
        found = {suffix: word for (other, suffix), word in self._words.items() if other is kind}
        return [found[suffix] for suffix in map(str, self._config.suffixes) if suffix in found]

    def _obey(self, words: list[EngineWord], asked: int) -> None:
        """Do what the first part asks for, then answer what the group is, in every part."""
        answer = self._wishes.obey(words[0].read, asked, sleeps=None)
        if answer is None:
            return
        for word in words:
            shown = asked if word is words[0] else word.read()
            said = contract.mirrored(answer, shown, together=shown == asked)
            if said != shown:
                answered = word.compare_exchange(shown, said)
                self._log.info(
                    log.ENGINE_WORD_ANSWERED,
                    word=word.path.name,
                    answer=WeightState(said).name,
                    answered=answered,
                )

    def _drive(self, pending: Pending) -> None:
        """Wait for the command of a wish; a bridge that closes takes it back."""
        self._pending = pending
        try:
            if self._closing.is_set():  # between the wish and the command
                pending.give_up()
            pending.result()
        finally:
            self._pending = None

    def _wait_for_the_first_part(self, words: list[EngineWord]) -> None:
        """Give the parts that asked their old value back when the first one has not asked in time."""
        now, values = self._clock.monotonic_ns(), [word.read() for word in words]
        if not set(values) & set(contract.ASKS):
            self._conflict = None
            return
        if self._conflict is None or self._conflict[0] != values:
            self._conflict = values, now
        if now - self._conflict[1] < self._config.deadline_s * 1e9:
            return
        self._conflict = None
        self._log.error(
            "engine_word.conflict",
            words={word.path.name: value for word, value in zip(words, values, strict=True)},
        )
        for word, asked in zip(words, values, strict=True):
            if asked in contract.ASKS:
                word.compare_exchange(asked, contract.BEFORE_AND_DONE[asked][0])

    def _show_truth(self, words: Sequence[EngineWord]) -> None:
        """Let words say what the group is, after a command of another part, or that came by another way."""
        truth = self._controller.status().engine_state
        if truth not in (WeightState.NORMAL, WeightState.CLEARED):
            return
        for word in words:
            shown = word.read()
            if word is not words[0] or shown not in contract.ASKS:
                said = contract.mirrored(int(truth), shown)
                if said != shown:
                    word.compare_exchange(shown, said)

    def _answer_caches(self) -> None:
        """Answer the cache words, which follow the KV cache, and let one that asks nothing say what it is.

        A KV-cache process answers its word itself. FastDeploy's prefix tree has no state of its own here: it
        goes with the blocks, and its word is answered where an engine asks, which it does before it asks for
        the weights: it waits for this answer first.
        """
        status = self._controller.status()
        if not status.over:
            return
        states = {rank.kv for rank in status.ranks}
        released = states == {KVState.CLEARED.name}
        there = states == {KVState.NORMAL.name}
        for word in () if status.has_cache_process else self._of_kind(EngineWordKind.KV_CACHE):
            if released and not word.compare_exchange(contract.CLEARING, contract.CLEARED):
                word.compare_exchange(contract.NORMAL, contract.CLEARED)
            elif there and (status.missing or not word.compare_exchange(contract.UPDATING, contract.NORMAL)):
                word.compare_exchange(contract.CLEARED, contract.NORMAL)
        for word in self._of_kind(EngineWordKind.PREFIX_TREE):
            for asked, (_, answer) in contract.BEFORE_AND_DONE.items():
                word.compare_exchange(asked, answer)
