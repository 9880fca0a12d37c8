"""How large an exploration is: the group, what it is asked, and how often the adversary may strike.

Every number bounds the space; nothing here knows what the numbers are spent on. A survey is a set of
explorations that are run again and again: each line of bounds is there for what it mixes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from explorer.errors import ScopeError
from wsm.states.words import Operation


class Budget(enum.IntEnum):
    """What is bounded, in the order in which a world stores what is left of it."""

    COMMANDS = 0  # commands that a caller opens
    STEPS = 1  # steps that a rank begins because it has work
    FAILURES = 2  # actions that raise, or a rank's deadlines that expire
    GIVE_UPS = 3  # the controller's deadline, or a caller that gives up
    RANK_CRASHES = 4
    CONTROLLER_CRASHES = 5
    BROKEN_STEPS = 6  # steps and collective actions that raise although no rank died
    STALE_READS = 7  # words that a reader goes on seeing as they were
    CONTROLLER_LOSSES = 8  # controllers that die, and none follows
    CONTROLLER_STOPS = 9  # controllers that are stopped with the role, and such that go on again
    LEASES = 10  # leases of holds that run out
    HANGS = 11  # processes that live, and never look again


class Start(enum.Enum):
    """Where a group can be at first."""

    SERVING = "serving"  # version 1 on every rank
    CLEARED = "cleared"  # every rank has attached and holds nothing
    EMPTY = "empty"  # a segment that no rank has attached to


#: The largest bounds that the packed worlds can hold.
MAX_PARTICIPANTS = 6
MAX_BUDGET = 9

#: Who decides, as :class:`Scope` numbers it.
DECIDERS = BY_CONTROLLER, BY_CALLER, BY_OUTSIDE, BY_LEASE = 1, 2, 4, 8

_OPERATIONS = {
    "clear": Operation.CLEAR,
    "update": Operation.UPDATE,
    "hot_update": Operation.HOT_UPDATE,
    "hold": Operation.HOLD,
    "release": Operation.RELEASE,
}


@dataclass(frozen=True)
class Scope:
    """The bounds of one exploration.

    Parameters
    ----------
    ranks, helpers : int
        The group: 1 rank or more.
    commands, steps, failures, give_ups, rank_crashes, controller_crashes, broken_steps : int
    stale_reads, controller_losses, controller_stops, leases, hangs : int
        How often each thing may happen, in all; see :class:`Budget`.
    operations : tuple of Operation
        What the commands ask for.
    starts : tuple of Start
        Where the group is at first; every start is explored.
    afters : bool
        Whether updates also hold the group, or end its hold.
    owners : bool
        Whether holds have one of two owners, ids that commands name, and leases that may leave them.
    requests : bool
        Whether holds set requests aside or end them, keep blocks or drop them, and commands say likewise.
    halves : bool
        Whether commands are also about the weights alone, or the KV cache alone.
    long_plans : bool
        Whether a clear has a collective action too (communicators are shut down).
    deciders : int
        Who decides updates: 1 the controller, 2 its caller, 4 one outside, 8 a caller by its lease, while
        no process has the role; sums mean any of them.
    fine : bool
        Whether reading the words, writing each of one's own, and working are moves of their own, so that
        others move (and the rank dies) in between. Otherwise one poll is one move.
    symmetric : bool
        Whether worlds that differ only in who is which rank count as one.

    Raises
    ------
    ScopeError
        If a bound is out of range.
    """

    ranks: int = 2
    helpers: int = 0
    commands: int = 1
    steps: int = 1
    failures: int = 0
    give_ups: int = 0
    rank_crashes: int = 0
    controller_crashes: int = 0
    broken_steps: int = 0
    stale_reads: int = 0
    controller_losses: int = 0
    controller_stops: int = 0
    leases: int = 0
    hangs: int = 0
    operations: tuple[Operation, ...] = (Operation.CLEAR, Operation.UPDATE, Operation.HOT_UPDATE)
    starts: tuple[Start, ...] = (Start.SERVING, Start.CLEARED)
    afters: bool = False
    owners: bool = False
    requests: bool = False
    halves: bool = False
    long_plans: bool = False
    deciders: int = 1
    fine: bool = False
    symmetric: bool = True

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.helpers < 0 or self.participants > MAX_PARTICIPANTS:
            raise ScopeError(
                bound="ranks and helpers",
                value=f"{self.ranks} and {self.helpers}",
                fix=f"ask for 1 rank or more, and at most {MAX_PARTICIPANTS} participants",
            )
        for budget in Budget:
            value = self.budget(budget)
            if not 0 <= value <= MAX_BUDGET:
                name = budget.name.lower()
                raise ScopeError(bound=name, value=str(value), fix=f"give 0 to {MAX_BUDGET}")
        if not self.operations or not set(self.operations) <= set(_OPERATIONS.values()):
            raise ScopeError(
                bound="operations",
                value=str([each.name for each in self.operations]),
                fix=f"name some of {', '.join(_OPERATIONS)}",
            )
        if not 1 <= self.deciders <= sum(DECIDERS):
            raise ScopeError(bound="deciders", value=str(self.deciders), fix="give 1 to 15")
        if not self.starts:
            raise ScopeError(
                bound="starts", value="none", fix=f"name some of {', '.join(each.value for each in Start)}"
            )

    @property
    def participants(self) -> int:
        """Number of ranks and helpers."""
        return self.ranks + self.helpers

    def budget(self, budget: Budget) -> int:
        """Return how often a thing may happen."""
        value: int = getattr(self, budget.name.lower())
        return value

    def with_budget(self, budget: Budget, value: int) -> Scope:
        """Return the same bounds, but for how often one thing may happen."""
        return replace(self, **{budget.name.lower(): value})  # type: ignore[arg-type]  # all of them are numbers

    def as_text(self) -> str:
        """Return one line that :meth:`from_text` reads: what differs from the defaults."""
        return " ".join(f"{name}={value}" for name, value in self._changed().items()) or "defaults"

    @classmethod
    def from_text(cls, text: str) -> Scope:
        """Read what :meth:`as_text` wrote.

        Raises
        ------
        ScopeError
            If a name or a value is none.
        """
        if text.strip() == "defaults":
            return cls()
        found: dict[str, object] = {}
        known = {field.name for field in fields(cls)}
        for part in text.split():
            name, equals, value = part.partition("=")
            if not equals or name not in known:
                raise ScopeError(bound=name, value=value or "nothing", fix=f"name some of {sorted(known)}")
            found[name] = _value(name, value)
        return replace(cls(), **found)  # type: ignore[arg-type]  # each value was read by its field's name

    def _changed(self) -> Mapping[str, str]:
        default = Scope()
        return {
            field.name: _text(getattr(self, field.name))
            for field in fields(self)
            if getattr(self, field.name) != getattr(default, field.name)
        }


def operations_of(names: str) -> tuple[Operation, ...]:
    """Read operations from their names, separated by commas.

    Raises
    ------
    ScopeError
        If one is unknown.
    """
    unknown = [name for name in names.split(",") if name not in _OPERATIONS]
    if unknown:
        raise ScopeError(
            bound="operations", value=", ".join(unknown), fix=f"name some of {', '.join(_OPERATIONS)}"
        )
    return tuple(_OPERATIONS[name] for name in names.split(","))


def starts_of(names: str) -> tuple[Start, ...]:
    """Read starts from their names, separated by commas.

    Raises
    ------
    ScopeError
        If one is unknown.
    """
    known = {start.value: start for start in Start}
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        raise ScopeError(bound="starts", value=", ".join(unknown), fix=f"name some of {', '.join(known)}")
    return tuple(known[name] for name in names.split(","))


def _text(value: object) -> str:
    if isinstance(value, tuple):
        names = {operation: name for name, operation in _OPERATIONS.items()}
        return ",".join(each.value if isinstance(each, Start) else names[each] for each in value)
    return str(value)


def _value(name: str, text: str) -> object:
    if name == "operations":
        return operations_of(text)
    if name == "starts":
        return starts_of(text)
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        raise ScopeError(bound=name, value=text, fix="give a number") from None


def _scopes(*texts: str) -> tuple[Scope, ...]:
    return tuple(Scope.from_text(text) for text in texts)


class Survey(enum.Enum):
    """Sets of explorations."""

    DAILY = "daily"  # a million worlds, in every run of the tests
    DEEP = "deep"  # ten million

    @property
    def scopes(self) -> Sequence[Scope]:
        """Return the bounds of each exploration."""
        return _SCOPES[self]


_DAILY = _scopes(
    "commands=2 steps=2 failures=1 give_ups=1 rank_crashes=1 operations=clear,update",
    "commands=2 rank_crashes=1 controller_crashes=1",
    "fine=True rank_crashes=1 controller_crashes=1",
    "stale_reads=1 rank_crashes=1 give_ups=1",
    "ranks=3 failures=1 rank_crashes=1",
    "rank_crashes=2 failures=1 starts=empty,serving",
    "broken_steps=1 rank_crashes=1 failures=1 long_plans=True",
    "helpers=1 rank_crashes=1 give_ups=1",
    "commands=2 steps=0 halves=True failures=1 rank_crashes=1 operations=clear,update",
    "helpers=1 halves=True steps=0 failures=1 operations=clear,update",
    "rank_crashes=1 failures=2 give_ups=1 steps=0 operations=clear,update starts=serving",
    "controller_losses=1 controller_stops=2 failures=1",
    "controller_losses=1 controller_crashes=1 controller_stops=2 fine=True steps=0",
    "hangs=1 controller_stops=1 steps=1 operations=clear,update",
    "failures=6 steps=0 operations=clear starts=serving",
    "deciders=14 rank_crashes=1 give_ups=1 steps=0 operations=hot_update starts=serving",
    "deciders=14 controller_crashes=1 controller_losses=1 controller_stops=2 steps=0 operations=hot_update",
    "deciders=14 commands=2 steps=0 rank_crashes=1 controller_losses=1 operations=hold,release",
    "failures=4 rank_crashes=1 steps=0 operations=clear,update starts=serving",
    "commands=2 steps=1 failures=1 rank_crashes=1 operations=hold,release starts=serving",
    "commands=2 steps=1 controller_crashes=1 rank_crashes=1 operations=hold,release",
    "commands=3 steps=1 leases=1 failures=1 operations=hold,release,clear starts=serving",
    "commands=2 afters=True steps=1 rank_crashes=1 operations=hold,update,hot_update starts=serving",
    "fine=True steps=1 rank_crashes=1 operations=hold,release starts=serving",
    "controller_losses=1 controller_stops=2 leases=1 operations=hold,release starts=serving",
    "commands=3 steps=0 owners=True leases=1 rank_crashes=1 operations=hold,release,update starts=serving",
    "commands=2 steps=1 requests=True failures=1 operations=hold,update,hot_update starts=serving",
)

_DEEP = (
    *_DAILY,
    *_scopes(
        "commands=2 steps=2 failures=2 give_ups=1 rank_crashes=1",
        "commands=2 failures=1 give_ups=1 rank_crashes=1 controller_crashes=1",
        "commands=2 stale_reads=1 rank_crashes=1 controller_crashes=1",
        "commands=1 stale_reads=2 rank_crashes=1 failures=1",
        "fine=True stale_reads=1 rank_crashes=1 give_ups=1",
        "fine=True failures=1 rank_crashes=1 controller_crashes=1 give_ups=1",
        "ranks=3 stale_reads=1 rank_crashes=1",
        "ranks=3 failures=1 give_ups=1 rank_crashes=1 controller_crashes=1",
        "commands=2 rank_crashes=3 failures=1",
        "helpers=1 failures=1 give_ups=1 stale_reads=1",
        "ranks=3 helpers=1 failures=1 rank_crashes=1",
        "commands=3 halves=True failures=1 give_ups=1",
        "controller_losses=1 controller_crashes=1 rank_crashes=1 failures=1 commands=2",
        "controller_losses=1 controller_stops=2 stale_reads=1 failures=1",
        "ranks=3 controller_losses=1 controller_stops=2 failures=1",
        "deciders=15 commands=2 rank_crashes=1 controller_losses=1 operations=update,hot_update",
        "deciders=14 stale_reads=1 controller_losses=1 rank_crashes=1 operations=update,hot_update",
        "deciders=14 fine=True controller_crashes=1 controller_stops=2 operations=update,hot_update",
        "helpers=1 controller_losses=1 controller_stops=2 fine=True steps=0 failures=1",
        "helpers=1 hangs=1 controller_stops=2 failures=1 long_plans=True",
        "ranks=3 hangs=2 controller_losses=1 steps=0 operations=update,hot_update",
        "commands=3 steps=1 afters=True rank_crashes=1 failures=1 leases=1 operations=hold,release,update",
        "commands=2 steps=1 rank_crashes=2 controller_crashes=1 leases=1 operations=hold,release,clear",
        "commands=2 helpers=1 stale_reads=1 steps=1 operations=hold,release",
        "commands=2 steps=0 owners=True leases=1 rank_crashes=1 controller_crashes=1 controller_losses=1"
        " operations=hold,release,update starts=serving",
        "commands=3 steps=0 requests=True failures=1 operations=hold,release,update,clear,hot_update",
    ),
)

_SCOPES = {Survey.DAILY: _DAILY, Survey.DEEP: _DEEP}
