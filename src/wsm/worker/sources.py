"""From a configuration to the source that one rank loads from, whatever the strategy.

Responsible for making each source once, for letting go what it keeps between loads, and for keeping published
versions that are loaded again. It opens nothing itself, and knows no strategy, words, states or actions.
"""

from __future__ import annotations

from contextlib import ExitStack

from wsm.config import WsmConfig
from wsm.strategies import errors
from wsm.strategies.registry import strategy_called
from wsm.strategies.snapshot.version_pins import VersionPins


class Sources:
    """The sources of one worker process, each made once: some keep a connection between loads.

    Parameters
    ----------
    config : WsmConfig
        The group's configuration.

    Raises
    ------
    wsm.errors.WsmError
        If there is no such strategy (:func:`wsm.strategies.registry.strategy_called`), or no load could use
        what the configuration says to it: now, not at the first update.
    """

    def __init__(self, config: WsmConfig) -> None:
        self._config = config
        self._strategy = strategy_called(config.strategy)
        self._sections = config.strategy_sections()
        self._made: dict[tuple[int, str | None], object] = {}
        self._strategy.check(self._sections)

    @property
    def strategy(self) -> str:
        """The strategy that loads from these sources."""
        return self._config.strategy

    @property
    def rereadable(self) -> bool:
        """Whether they may be read whole by others than the ranks, which notice nothing."""
        return self._strategy.rereadable

    @property
    def threads(self) -> int | None:
        """How many threads of a rank copy and digest; None where a load decides."""
        return self._config.load_threads or None

    def of(self, rank: int, mode: str | None = None) -> object:
        """Return where `rank` loads from, in the transfer mode that a command asked for.

        Raises
        ------
        RefusedError
            If the strategy has no such mode, or it is not available here.
        """
        usual = self._strategy.default_mode(self._sections)
        if mode is not None and usual is None:
            problem = f"the strategy {self.strategy} has no transfer modes"
            raise errors.transfer_mode_unavailable(mode=mode, problem=problem, available=())
        used = mode or usual
        sections = self._sections if used is None else self._strategy.in_mode(self._sections, used)
        if (rank, used) not in self._made:
            self._made[rank, used] = self._strategy.source(sections, rank, self._config.ranks)
        return self._made[rank, used]

    def close(self) -> None:
        """Let every connection go, also where one of them fails to. Idempotent."""
        with ExitStack() as closing:
            for source in self._made.values():
                closing.callback(self._strategy.close, source)
            self._made.clear()


def pins_for(config: WsmConfig) -> VersionPins:
    """Return what keeps published versions that a group may have to load again.

    Raises
    ------
    wsm.errors.WsmError
        If there is no such strategy, as :func:`wsm.strategies.registry.strategy_called`.
    """
    return VersionPins(strategy_called(config.strategy).retired_from(config.strategy_sections()))
