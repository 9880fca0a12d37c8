"""What a victim is ordered to do, and where: plain data that travels as a file. Knows no process."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass
from pathlib import Path


class Act(enum.Enum):
    """What happens at the point."""

    KILL = "kill"  # SIGKILL to oneself: nothing of the process runs any more
    STOP = "stop"  # SIGSTOP to oneself, and SIGCONT once the caller was told
    FREEZE = "freeze"  # SIGSTOP to oneself, and SIGKILL from outside once the caller was told
    HANG = "hang"  # SIGSTOP to oneself, and no process helps but the group's supervisor
    RAISE = "raise"  # an error of a type that wsm has never seen
    EXHAUST = "exhaust"  # MemoryError, at whatever line it strikes
    STARVE = "starve"  # no descriptor is left to the process, until the caller was told
    LIE = "lie"  # an action returns without having done its work
    DENY = "deny"  # an action did its work, and its probe says that it is not done


@dataclass(frozen=True)
class Fault:
    """One order.

    Parameters
    ----------
    victim : str
        ``rank0`` ..., ``controller`` or ``trainer``.
    point : str
        Where; what points there are is said by :mod:`campaign.points`.
    act : Act
        What.
    nth : int
        At which passage of the point since the order was given.
    """

    victim: str
    point: str
    act: Act
    nth: int = 1

    def __str__(self) -> str:
        """Return the text that cases are called by."""
        return f"{self.victim}/{self.act.value}@{self.point}#{self.nth}"

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read what :meth:`__str__` has written."""
        victim, _, rest = text.partition("/")
        act, _, where = rest.partition("@")
        point, _, nth = where.rpartition("#")
        return cls(victim, point, Act(act), int(nth))


@dataclass(frozen=True)
class Fired:
    """That an order was obeyed: when (monotonic clock of the host, ns) and by which process."""

    at_ns: int
    pid: int


class OrderBook:
    """The directory in which orders lie until their victim has obeyed them.

    Parameters
    ----------
    directory : Path
        Shared by the campaign and its victims.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def order_path(self, victim: str) -> Path:
        """Return where the order for a victim lies."""
        return self._directory / f"{victim}.order"

    def give(self, fault: Fault) -> None:
        """Give an order; the victim's former one is forgotten."""
        self.withdraw(fault.victim)
        path = self.order_path(fault.victim)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({**asdict(fault), "act": fault.act.value}), encoding="utf-8")
        partial.replace(path)

    def read(self, victim: str) -> Fault | None:
        """Return a victim's order, if it has one."""
        try:
            found = json.loads(self.order_path(victim).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return Fault(found["victim"], found["point"], Act(found["act"]), found["nth"])

    def obeyed(self, victim: str, fired: Fired) -> None:
        """Write down that the order is about to be obeyed, and take it away."""
        partial = self._directory / f"{victim}.fired.partial"
        partial.write_text(json.dumps(asdict(fired)), encoding="utf-8")
        partial.replace(self._directory / f"{victim}.fired")
        self.order_path(victim).unlink(missing_ok=True)

    def fired(self, victim: str) -> Fired | None:
        """Return whether, and when, a victim has obeyed its last order."""
        try:
            return Fired(**json.loads((self._directory / f"{victim}.fired").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def withdraw(self, victim: str) -> None:
        """Forget a victim's order, and whether the last one was obeyed."""
        for suffix in ("order", "fired"):
            (self._directory / f"{victim}.{suffix}").unlink(missing_ok=True)

    # -- which points a good run passes ----------------------------------------------------------

    def listen(self, victim: str) -> None:
        """Ask a victim to write down every point that it passes."""
        (self._directory / f"{victim}.points").write_text("", encoding="utf-8")

    def passed(self, victim: str, point: str) -> None:
        """Write down that a victim passes a point, if a listener asked for that."""
        path = self._directory / f"{victim}.points"
        if path.exists():
            with path.open("a", encoding="utf-8") as file:
                file.write(point + "\n")

    def heard_so_far(self, victim: str) -> list[str]:
        """Return the points that a victim has passed since :meth:`listen`."""
        return (self._directory / f"{victim}.points").read_text(encoding="utf-8").splitlines()

    def heard(self, victim: str) -> list[str]:
        """Return the points that a victim has passed since :meth:`listen`, and listen no more."""
        points = self.heard_so_far(victim)
        (self._directory / f"{victim}.points").unlink()
        return points
