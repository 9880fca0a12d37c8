"""The shell of a process that holds KV cache for the ranks: it takes part in every command, and in no step.

Embedded like :class:`wsm.Worker`: the process' own loop calls ``poll()``. It votes and acknowledges with
words of its own, begins when a rank shows that all ranks stand, and never parks. If it dies, the group has
lost a participant, as with a rank.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, final

from wsm.actions.options import PlanOptions
from wsm.actions.plan import derive_plans
from wsm.actions.surfaces import KVCacheSurface, MemorySurface, require_complete
from wsm.clock import Clock, SystemClock
from wsm.config import WsmConfig, load_config
from wsm.report import WITHOUT_WEIGHTS
from wsm.states.journal import Journal
from wsm.states.rank_state import Phase
from wsm.states.vocabulary import KVPolicy, KVState
from wsm.worker.attaching import attach_cache_process
from wsm.worker.cache_surfaces import CacheSurfaces
from wsm.worker.cache_word import CacheWords
from wsm.worker.holding import Holding
from wsm.worker.participation import Work, join_group


@final
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
        Where the segment lies; ``/dev/shm`` by default.

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
        kv_cache: KVCacheSurface,
        *,
        memory: MemorySurface | None = None,
        kv_policies: frozenset[KVPolicy] = frozenset({KVPolicy.DROP}),
        clock: Clock | None = None,
        directory: str | Path | None = None,
    ) -> None:
        clock, index = clock or SystemClock(), config.ranks
        require_complete({"kv_cache": kv_cache} | ({} if memory is None else {"memory": memory}))
        runner = CacheSurfaces(kv_cache, memory)
        options = PlanOptions(cache_only=True, kv_policies=kv_policies, deadlines=config.deadlines.action_s)
        plans = derive_plans(options)
        work = Work(
            runner,
            plans,
            lambda _context, _target: {},
            holding=Holding(compares_blocks=False),
            facts={WITHOUT_WEIGHTS: True},
        )
        with ExitStack() as undo:
            self._part = join_group(
                undo,
                config,
                index,
                work=work,
                clock=clock,
                attach=lambda: attach_cache_process(config, directory),
            )
            undo.pop_all()
        self._driver = self._part.driver
        self._words = self._part.words
        self._engine_words = CacheWords(config.engine_words, directory)

    @classmethod
    def from_config(cls, path: str | Path, kv_cache: KVCacheSurface, **options: Any) -> CacheParticipant:
        """Read the configuration file, then as the constructor."""
        return cls(load_config(path), kv_cache, **options)

    @property
    def kv(self) -> KVState:
        """Where the cache is."""
        return self._driver.life.kv

    @property
    def journal(self) -> Journal:
        """The bounded, replayable record of what this process did."""
        return self._part.recorder.journal

    def poll(self) -> bool:
        """Do what a command needs now: at most one action, or a wait of 1 ms.

        Returns
        -------
        bool
            Whether a command is at hand, so that the cache may be at work and :meth:`poll` should be called
            again soon.

        Raises
        ------
        InternalError
            If the words contradict the rules; the group must be stopped.
        """
        self._engine_words.show(self.kv, self._words.view())
        self._driver.turn()
        self._engine_words.show(self.kv, self._words.view())
        self._part.attachment.check(self._driver.state.sequence)
        return self._driver.state.phase is not Phase.IDLE

    def wait(self, timeout_s: float) -> bool:
        """Wait for a word of the group to change, up to `timeout_s` seconds. Returns whether one did."""
        return self._words.wait(self._words.watches(), timeout_s)

    def close(self) -> None:
        """Leave the group's segment. Idempotent. The group can be commanded no more without this process."""
        self._engine_words.close()
        self._part.close()

    def __enter__(self) -> CacheParticipant:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
