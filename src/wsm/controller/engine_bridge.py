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
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import final

from wsm import log
from wsm.clock import Clock, SystemClock
from wsm.config import EngineWordsConfig
from wsm.controller._transaction import Pending
from wsm.controller.controller import Controller
from wsm.controller.errors import CommandWithdrawnError
from wsm.errors import WsmError
from wsm.receipt import Receipt
from wsm.signals.errors import EngineWordMissingError, RoleBusyError
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.states.vocabulary import KVState, WeightState

#: Seconds between two looks. An engine wakes no waiter when it writes a word.
POLL_S = 0.002

#: Seconds before what failed without an answer is tried again: doubled every time, up to the longest.
RETRY_S = 0.5
LONGEST_RETRY_S = 30.0

_KINDS = {
    "weights": EngineWordKind.WEIGHTS,
    "kv_cache": EngineWordKind.KV_CACHE,
    "prefix_tree": EngineWordKind.PREFIX_TREE,
}
_NORMAL, _CLEARED = int(WeightState.NORMAL), int(WeightState.CLEARED)
_CLEARING, _UPDATING = int(WeightState.CLEARING), int(WeightState.UPDATING)

#: What an engine that asked waits for.
_DONE = {_CLEARING: _CLEARED, _UPDATING: _NORMAL}

#: What a part that asked gets back when the first part never asked.
_BEFORE = {_CLEARING: _NORMAL, _UPDATING: _CLEARED}

#: What the deciding weights word says, and what the word of another data-parallel part says: what that is to
#: say. What is not named stays: it is that part's next wish, and waits for the deciding word.
MIRRORS: dict[tuple[int, int], int] = {
    (_CLEARING, _NORMAL): _CLEARING,
    (_CLEARED, _NORMAL): _CLEARED,
    (_CLEARED, _CLEARING): _CLEARED,
    (_UPDATING, _CLEARED): _UPDATING,
    (_UPDATING, _CLEARING): _UPDATING,
    (_NORMAL, _CLEARED): _NORMAL,
    (_NORMAL, _UPDATING): _NORMAL,
}


def mirrored(deciding: int, own: int) -> int:
    """Say what the word of another data-parallel part is to say, which says `own` now."""
    return MIRRORS.get((deciding, own), own)


@final
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
        poll_s: float = POLL_S,
    ) -> None:
        self._controller = controller
        self._poll_s = poll_s
        self._pending: Pending | None = None
        self._config = config
        self._clock = clock or SystemClock()
        self._directory = directory
        self._words: dict[tuple[EngineWordKind, str], EngineWord] = {}
        self._conflict: tuple[list[int], int] | None = None
        self._retry_s = 0.0
        self._retry_at_ns = 0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._log = log.logger("engine_bridge")

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
            if asked in _BEFORE:
                self._conflict = None
                self._obey(weights, asked)
            else:
                self._retry_s = 0.0
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        pause_s = self._poll_s
        while not self._closing.wait(pause_s):
            pause_s = self._poll_s if self._turned() else min(max(pause_s * 2, RETRY_S), LONGEST_RETRY_S)

    def _turned(self) -> bool:
        try:
            self.turn()
        except Exception as error:  # noqa: BLE001 - a bridge that ends leaves its engine waiting for ever
            self._log.error(log.COMMAND_FAILED, error=str(error))
            return False
        return True

    def _attach(self) -> None:
        """Attach to words that appeared; leave words that the engine created anew or removed."""
        for kind in (_KINDS[name] for name in self._config.answers):
            for suffix in map(str, self._config.suffixes):
                known = self._words.get((kind, suffix))
                if known is not None and (known.recreated() or known.removed()):
                    known.close()
                    del self._words[kind, suffix]
                    known = None
                    self._log.warning(log.SEGMENT_RECREATED, word=f"{kind.value}.{suffix}")
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
        """Run the command that the first part asks for, then answer what the group is, in every part."""
        if self._retry_s and self._clock.monotonic_ns() < self._retry_at_ns:
            return
        answer: int | None = _DONE[asked]
        try:
            if self._command(words, asked).hold is not None:
                answer = _CLEARED  # what is asked under a hold is done, and only a release shows NORMAL
        except (RoleBusyError, CommandWithdrawnError):
            return  # another command is under way, which may be the one that holds the words: look again
        except WsmError as error:
            self._log.error(log.COMMAND_FAILED, asked=WeightState(asked).name, error=str(error))
            truth = self._truth()
            # A group that serves its old version has not been updated: the word stays pending.
            answer = None if (asked, truth) == (_UPDATING, _NORMAL) else truth
        if answer is None:
            self._retry_s = min(max(self._retry_s * 2, RETRY_S), LONGEST_RETRY_S)
            self._retry_at_ns = self._clock.monotonic_ns() + int(self._retry_s * 1e9)
            return
        self._retry_s = 0.0
        for word in words:
            shown = asked if word is words[0] else word.read()
            said = answer if word is words[0] else mirrored(answer, shown)
            answered = word.compare_exchange(shown, said)
            self._log.info(
                log.ENGINE_WORD_ANSWERED,
                word=word.path.name,
                answer=WeightState(answer).name,
                answered=answered,
            )

    def _command(self, words: list[EngineWord], asked: int) -> Receipt:
        """Do what is asked, if the first word still asks it when it is this controller's turn."""
        begin, name = self._controller.begin_clear, "engine-clear"
        if asked == _UPDATING:
            # An engine knows no versions: over weights that serve it asks for what lies there now, whatever
            # its number, as FastDeploy does.
            whole = not self._controller.status().missing
            begin, name = partial(self._controller.begin_update, force=whole), "engine-update"
        pending = begin(
            deadline_s=self._config.deadline_s,
            request_id=name,
            still_wanted=lambda: not self._closing.is_set() and words[0].read() == asked,
        )
        self._log.info(log.ENGINE_WORD_SEEN, asked=WeightState(asked).name)
        self._pending = pending
        try:
            if self._closing.is_set():  # between the wish and the command
                pending.give_up()
            return pending.result()
        finally:
            self._pending = None

    def _wait_for_the_first_part(self, words: list[EngineWord]) -> None:
        """Give the parts that asked their old value back when the first one has not asked in time."""
        now, values = self._clock.monotonic_ns(), [word.read() for word in words]
        if not set(values) & _BEFORE.keys():
            self._conflict = None
            return
        if self._conflict is None or self._conflict[0] != values:
            self._conflict = values, now
        if now - self._conflict[1] < self._config.deadline_s * 1e9:
            return
        self._conflict = None
        self._log.error(
            log.ENGINE_WORD_CONFLICT,
            words={word.path.name: value for word, value in zip(words, values, strict=True)},
        )
        for word, asked in zip(words, values, strict=True):
            if asked in _BEFORE:
                word.compare_exchange(asked, _BEFORE[asked])

    def _show_truth(self, words: Sequence[EngineWord]) -> None:
        """Let words say what the group is, after a command of another part, or that came by another way."""
        truth = self._truth()
        for word in words:
            shown = word.read()
            if truth is not None and (word is not words[0] or shown in (_NORMAL, _CLEARED)):
                said = mirrored(truth, shown)
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
            if released and not word.compare_exchange(_CLEARING, _CLEARED):
                word.compare_exchange(_NORMAL, _CLEARED)
            elif there and not (not status.missing and word.compare_exchange(_UPDATING, _NORMAL)):
                word.compare_exchange(_CLEARED, _NORMAL)
        for word in self._of_kind(EngineWordKind.PREFIX_TREE):
            for asked, answer in _DONE.items():
                word.compare_exchange(asked, answer)

    def _truth(self) -> int | None:
        """Return NORMAL or CLEARED if that is what every rank is, else None."""
        state = self._controller.status().engine_state
        return int(state) if state in (WeightState.NORMAL, WeightState.CLEARED) else None
