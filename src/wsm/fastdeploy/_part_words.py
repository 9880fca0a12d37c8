"""FastDeploy's words of one data-parallel part: attached when they appear; one asks its cache process.

A process may hold KV cache beside the workers: FastDeploy's cache transfer manager maps theirs, or makes it,
and looks at ``kv_cache_status`` ten times a second. The calls of FastDeploy's model runner wait for
``cache_ready_signal``, which that process changes only once it was asked, so it is asked before them. wsm
asks; the process alone answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from wsm.errors import GroupError
from wsm.signals.errors import EngineWordMissingError
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.states import engine_words as contract

#: How long it is waited for; an action of a plan may take 60 s.
ANSWERS_S = 50.0

_LOOK_S = 0.01

#: What the slowest of its processes takes to see what let another one answer, and to answer, too: one that
#: looks for it later waits for ever. Each looks every 0.1 s.
_LATE_S = 0.25


class PartWord:
    """A word of this rank's data-parallel part, attached when it appears, and again if made anew.

    Parameters
    ----------
    suffix : str
        What follows its name.
    directory : path or None
        Where it lies; ``/dev/shm`` by default.
    kind : EngineWordKind
        Which.
    """

    def __init__(
        self,
        suffix: str,
        directory: str | Path | None = None,
        *,
        kind: EngineWordKind = EngineWordKind.WEIGHTS,
    ) -> None:
        self._suffix, self._kind = suffix, kind
        self._directory = directory
        self._word: EngineWord | None = None

    def read(self) -> int | None:
        """Return what it says; None while no engine has made it."""
        word = self._attached()
        return None if word is None else word.read()

    def change(self, before: int, after: int) -> bool:
        """Write `after` if it says `before`, indivisibly; return whether it did."""
        word = self._attached()
        return word is not None and word.compare_exchange(before, after)

    def store(self, value: int, suffix: str | None = None) -> None:
        """Write over whatever the word says, as FastDeploy does; the word of `suffix`, if that is given."""
        with (
            suppress(EngineWordMissingError),
            EngineWord(self._kind, suffix or self._suffix, directory=self._directory) as word,
        ):
            word.store(value)

    def close(self) -> None:
        """Let go of it. Idempotent."""
        if self._word is not None:
            self._word.close()
            self._word = None

    def _attached(self) -> EngineWord | None:
        if self._word is not None and self._word.is_replaced():
            self.close()
        if self._word is None:
            try:
                self._word = EngineWord(self._kind, self._suffix, directory=self._directory)
            except EngineWordMissingError:
                return None
        return self._word


class TransferProcess:
    """The cache process of this rank's data-parallel part, which the part's first rank asks.

    Parameters
    ----------
    port : str
        What follows the name of its word.
    directory : path or None
        Where that lies; ``/dev/shm`` by default.
    """

    def __init__(self, port: str, directory: str | Path | None = None) -> None:
        self._name = f"{EngineWordKind.KV_CACHE.value}.{port}"
        self._seen: int | None = None  # the answer that every process of the part has had the time to see
        self._word = PartWord(port, directory, kind=EngineWordKind.KV_CACHE)

    def says(self) -> int | None:
        """Return what its word says; None while no engine has made it."""
        return self._word.read()

    def takes(self, rebuild: Callable[[], None]) -> None:
        """Make the KV cache that it waits for, and wait until it has it. Blocks.

        Raises as :meth:`asks`.
        """
        rebuild()
        wish = contract.UPDATING
        self._await(lambda said: said != wish, time.monotonic() + ANSWERS_S, wish)

    def is_let_go(self, release: Callable[[], None]) -> None:
        """Release the KV cache of a rank that is not the one which asks. Blocks.

        What lets that process answer what it was asked before stays as it is until all have seen it.
        """
        if self._word.read() != contract.CLEARING:
            time.sleep(_LATE_S)
        release()

    def close(self) -> None:
        """Let go of the word. Idempotent."""
        self._word.close()

    def asks(self, wish: int, own_part: Callable[[], None]) -> None:
        """Ask it to let the KV cache go, or to hold one again; do the rank's own part, and wait. Blocks.

        Raises
        ------
        GroupError (``cache-process-silent``)
            If it does not answer in time.
        """
        before, answer = contract.BEFORE_AND_DONE[wish]
        until = time.monotonic() + ANSWERS_S
        if self._word.read() not in (None, wish, self._seen):
            # What it was asked before is answered first: it would write that answer over this wish.
            self._await(lambda said: said not in contract.ASKS or said == wish, until, wish)
            time.sleep(_LATE_S)
        self._seen = None
        self._word.change(before, wish)
        own_part()

        def answered(said: int) -> bool:
            if said == before:  # a slower process answered the wish before this one, which is asked again
                self._word.change(before, wish)
            return said == answer

        self._await(answered, until, wish)
        time.sleep(_LATE_S)  # the engine may ask for the next thing as soon as the group is answered
        self._seen = answer

    def _await(self, is_so: Callable[[int], bool], until: float, wish: int) -> None:
        while (said := self._word.read()) is not None and not is_so(said):
            if time.monotonic() > until:
                raise GroupError(
                    f"the process that holds KV cache has not answered {wish} in {self._name} for "
                    f"{ANSWERS_S:g} s, which says {said} still; see whether FastDeploy's "
                    "cache_transfer_manager lives, and what its log says",
                    code="cache-process-silent",
                    word=self._name,
                    says=said,
                    wish=wish,
                    seconds=ANSWERS_S,
                )
            time.sleep(_LOOK_S)
