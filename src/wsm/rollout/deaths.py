"""What is known about the end of a rank's process, and how often ends may follow each other. Pure."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from wsm.rollout.config import RecoveryConfig
from wsm.status.facts import who


@dataclass(frozen=True)
class Death:
    """The end of one rank's process.

    Parameters
    ----------
    rank, pid, epoch : int
        Who (the KV-cache process has a number, too), and in which epoch.
    code : int
        As ``subprocess`` gives it: what it exited with, or minus the signal that killed it.
    why : str
        Why the supervisor ended it; empty if it ended by itself.
    log : str
        The last lines that it wrote.
    """

    rank: int
    pid: int
    epoch: int
    code: int
    why: str
    log: str

    @property
    def cause(self) -> str:
        """How it ended, in a few words."""
        if self.why:
            return f"was ended because {self.why}"
        if self.code < 0:
            return f"was killed by {_signal_name(-self.code)}"
        return f"ended with code {self.code}"

    def sentence(self) -> str:
        """Say it in one line, with the last line of the log where it ended by itself."""
        last = self.log.splitlines()[-1] if self.log and not self.why and self.code >= 0 else ""
        said = f"; the last it wrote: {last}" if last else ""
        return f"{who(self.rank)} (process {self.pid}) {self.cause} in epoch {self.epoch}{said}"


class RestartBudget:
    """How many recoveries may follow each other how closely, and how long each one waits.

    Parameters
    ----------
    config : RecoveryConfig
        The limits.
    """

    def __init__(self, config: RecoveryConfig) -> None:
        self._config = config
        self._recent: deque[tuple[float, Sequence[Death]]] = deque()

    def take(self, deaths: Sequence[Death], now_s: float) -> float | None:
        """Count a recovery that begins now.

        Returns
        -------
        float or None
            Seconds to wait before the dead are replaced: none the first time, then twice as long each time
            within the window. None if that would be one too many.
        """
        while self._recent and now_s - self._recent[0][0] > self._config.within_s:
            self._recent.popleft()
        self._recent.append((now_s, deaths))
        nth = len(self._recent)
        if nth > self._config.restarts:
            return None
        return min(self._config.delay_s * 2.0 ** (nth - 2), self._config.longest_delay_s) if nth > 1 else 0.0

    def recent(self) -> list[Death]:
        """Return the deaths that were counted within the window, oldest first."""
        return [death for _, deaths in self._recent for death in deaths]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
