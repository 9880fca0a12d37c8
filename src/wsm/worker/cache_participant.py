"""The shell of a process that holds KV cache for the ranks: it takes part in every command, and in no step.

Embedded like :class:`wsm.Worker`: the process' own loop calls ``poll()``. It votes and acknowledges with
words of its own, begins when a rank shows that all ranks stand, and never parks. If it dies, the group has
lost a participant, as with a rank. A watchdog beside its loop reports what it hangs in, and does for the
group what is owed to a command whose controller does not come back, as beside a rank's loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, cast, final

from wsm.actions.options import PlanOptions
from wsm.actions.plan import derive_plans
from wsm.actions.surfaces import OPTIONAL, KVCacheSurface, MemorySurface, Runner, require_complete
from wsm.clock import Clock, SystemClock
from wsm.command import WITHOUT_WEIGHTS
from wsm.config import ConfigurationError, EngineWordsConfig, WsmConfig, load_config
from wsm.journal.entry import Journal
from wsm.signals.errors import EngineWordMissingError
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.states.phases import Phase
from wsm.states.view import View
from wsm.states.vocabulary import KVPolicy, KVState
from wsm.typed import LATER, Wait, typed
from wsm.worker._attachment import Attachment
from wsm.worker._command import Work


@final
@typed
class CacheParticipant:
    """The KV-cache process of a group, in this process.

    Not safe for threads: the thread of the process' loop makes every call. The group's configuration must say
    ``kv_cache_process: true``, everywhere.

    Parameters
    ----------
    config : WsmConfig
        The group's configuration; with engine words, this process answers ``kv_cache_status``.
    kv_cache : KVCacheSurface
        What it holds. ``release()`` may wait for the ranks to drop their mappings.
    memory : MemorySurface or None
        Measures this process' memory; None believes what the cache says of itself.
    kv_policies : frozenset of KVPolicy
        What may become of blocks when the weights change; as the ranks' own.
    clock : Clock or None
        For deadlines and for the seconds in receipts; None is the host's.
    directory : path or None
        Where the segment lies; this user's private directory by default.

    Raises
    ------
    ConfigurationError
        If the configuration has no such process, or does not fit the segment that is there.
    GroupError
        If no segment appeared in time. Blocks that long at most.
    SlotTakenError, EpochUsedError
        If another process is, or was in this epoch, the KV-cache process.
    """

    def __init__(
        self,
        config: WsmConfig,
        kv_cache: Annotated[KVCacheSurface, LATER],
        *,
        memory: Annotated[MemorySurface | None, LATER] = None,
        kv_policies: frozenset[KVPolicy] = frozenset({KVPolicy.DROP}),
        clock: Clock | None = None,
        directory: str | Path | None = None,
    ) -> None:
        if not config.kv_cache_process:
            raise ConfigurationError(
                where=f"group {config.name!r}",
                problem="has no KV-cache process",
                fix="set kv_cache_process: true, for all ranks and the supervisor",
            )
        require_complete({"kv_cache": kv_cache} | ({} if memory is None else {"memory": memory}))
        options = PlanOptions(cache_only=True, kv_policies=kv_policies, deadlines=config.deadlines.action_s)
        work = Work(
            _surfaces(kv_cache, memory),
            derive_plans(options),
            lambda _context, _target: {},
            facts={WITHOUT_WEIGHTS: True},
        )
        self._attachment = Attachment(
            config, config.ranks, directory, work=work, clock=clock or SystemClock()
        )
        self._loop = self._attachment.loop
        self._words = self._loop.words
        self._engine_words = CacheWords(config.engine_words, directory)

    @classmethod
    def from_config(cls, path: str | Path, kv_cache: KVCacheSurface, **options: Any) -> CacheParticipant:
        """Read the configuration file, then as the constructor."""
        return cls(load_config(path), kv_cache, **options)

    @property
    def kv(self) -> KVState:
        """Where the cache is."""
        return self._loop.life.kv

    @property
    def journal(self) -> Journal:
        """The bounded, replayable record of what this process did."""
        return self._loop.recorder.journal

    def poll(self) -> bool:
        """Do what a command needs now: at most one action, or a wait of 1 ms.

        Returns
        -------
        bool
            Whether a command is at hand or an epoch is being left, so that the cache may be at work and
            :meth:`poll` should be called again soon.

        Raises
        ------
        InternalError
            If the words contradict the rules; the group must be stopped.
        """
        self._engine_words.show(self.kv, self._words.view())
        self._loop.turn()
        self._engine_words.show(self.kv, self._words.view())
        self._attachment.check()
        return self._loop.state.phase is not Phase.IDLE or self._loop.is_leaving

    @typed
    def wait(self, timeout_s: Wait) -> bool:
        """Wait for a word of the group to change, up to `timeout_s` seconds. Returns whether one did."""
        return self._words.wait(self._words.read(), timeout_s)

    def close(self) -> None:
        """Leave the group's segment. Idempotent. The group can be commanded no more without this process."""
        self._engine_words.close()
        self._attachment.close()

    def __enter__(self) -> CacheParticipant:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _surfaces(kv_cache: KVCacheSurface, memory: MemorySurface | None) -> Runner:
    """Return a runner with a KV cache alone, which counts its bytes itself where there is no `memory`."""
    from wsm.strategies.applier.memory_target import MemoryTarget  # noqa: PLC0415 - no rank needs it

    counted = SimpleNamespace(empty_cache=lambda: None, resident_bytes=kv_cache.allocated_bytes)
    own = {"kv_cache": kv_cache, "memory": memory or counted, "weights": MemoryTarget(()), "requests": None}
    return cast("Runner", SimpleNamespace(**{**OPTIONAL, **own}))


_NORMAL, _UPDATING = int(KVState.NORMAL), int(KVState.UPDATING)
_CLEARING, _CLEARED = int(KVState.CLEARING), int(KVState.CLEARED)


class CacheWords:
    """The words of all data-parallel parts; those that no engine has created yet are looked for again.

    Parameters
    ----------
    config : EngineWordsConfig
        Which; none are answered if ``kv_cache`` is not among its answers.
    directory : path or None
        Where they lie; ``/dev/shm`` by default.
    """

    def __init__(self, config: EngineWordsConfig, directory: str | Path | None = None) -> None:
        self._suffixes: Sequence[int | str] = config.suffixes if "kv_cache" in config.answers else ()
        self._directory = directory
        self._user = config.user
        self._words: dict[int | str, EngineWord] = {}
        self._led: set[EngineWord] = set()  # words that say CLEARING because this object wrote it, unasked

    def show(self, own: KVState, view: View) -> None:
        """Let the words follow the cache."""
        if not self._suffixes:
            return
        said = {status.kv for status in view.statuses}
        for word in self._attached():
            value = word.read()
            following = _following(value, own, said)
            if value != _CLEARING:
                self._led.discard(word)
            elif word in self._led and own is KVState.NORMAL and said == {_NORMAL}:
                following = _CLEARED  # the cache came back before the word had said that it was gone
            if following is not None and word.compare_exchange(value, following) and following == _CLEARING:
                self._led.add(word)

    def close(self) -> None:
        """Let go of the words. Idempotent."""
        for word in self._words.values():
            word.close()
        self._words.clear()
        self._led.clear()

    def _attached(self) -> list[EngineWord]:
        for suffix in self._suffixes:
            word = self._words.get(suffix)
            if word is not None and word.is_replaced():
                self._words.pop(suffix).close()
            if suffix not in self._words:
                try:
                    word = EngineWord(
                        EngineWordKind.KV_CACHE, suffix, directory=self._directory, user=self._user
                    )
                except EngineWordMissingError:
                    continue
                self._words[suffix] = word
        return list(self._words.values())


def _following(value: int, own: KVState, said: set[int]) -> int | None:
    """Return what a word that holds `value` must hold next; None if it stays."""
    if own is KVState.CLEARED and said == {_CLEARED}:
        return {_CLEARING: _CLEARED, _NORMAL: _CLEARING}.get(value)
    if own in (KVState.CLEARING, KVState.CLEARED):
        return _CLEARING if value == _NORMAL else None
    if own is KVState.NORMAL and said == {_NORMAL}:
        return {_UPDATING: _NORMAL, _CLEARED: _UPDATING}.get(value)
    return _UPDATING if value == _CLEARED else None
