"""How large an exploration is: the group, what it is asked, and how often the adversary may strike.

Every number bounds the space; nothing here knows what the numbers are spent on. A survey is a set of
explorations that are run again and again: each line of bounds is there for what it mixes.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct, ValidationError, convert, structs

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


#: Who decides, as :class:`Scope` numbers it.
BY_CONTROLLER, BY_CALLER, BY_LEASE = 1, 2, 4

_OPERATIONS = {
    operation.name.lower(): operation
    for operation in (
        Operation.CLEAR,
        Operation.UPDATE,
        Operation.HOT_UPDATE,
        Operation.HOLD,
        Operation.RELEASE,
    )
}

_Ranks = Annotated[int, Meta(ge=1, le=6)]
_Count = Annotated[int, Meta(ge=0, le=9)]


class Scope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    restores : bool
        Whether updates in place also ask that the version before is restored if they fail.
    halves : bool
        Whether commands are also about the weights alone, or the KV cache alone.
    long_plans : bool
        Whether a clear has a collective action too (communicators are shut down).
    deciders : int
        Who decides updates: 1 the controller, 2 its caller, 4 a caller by its lease, while
        no process has the role; sums mean any of them.
    fine : bool
        Whether reading the words, writing each of one's own, and working are moves of their own, so that
        others move (and the rank dies) in between. Otherwise one poll is one move.
    symmetric : bool
        Whether worlds that differ only in who is which rank count as one.
    """

    ranks: _Ranks = 2
    helpers: _Count = 0
    commands: _Count = 1
    steps: _Count = 1
    failures: _Count = 0
    give_ups: _Count = 0
    rank_crashes: _Count = 0
    controller_crashes: _Count = 0
    broken_steps: _Count = 0
    stale_reads: _Count = 0
    controller_losses: _Count = 0
    controller_stops: _Count = 0
    leases: _Count = 0
    hangs: _Count = 0
    operations: Annotated[tuple[Operation, ...], Meta(min_length=1)] = tuple(_OPERATIONS.values())[:3]
    starts: tuple[Start, ...] = (Start.SERVING, Start.CLEARED)
    afters: bool = False
    owners: bool = False
    requests: bool = False
    restores: bool = False
    halves: bool = False
    long_plans: bool = False
    deciders: Annotated[int, Meta(ge=1, le=7)] = 1
    fine: bool = False
    symmetric: bool = True

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
        return structs.replace(self, **{budget.name.lower(): value})

    def as_text(self) -> str:
        """Return one line that :meth:`from_text` reads: what differs from the defaults."""
        changed = {
            name: value for name, value in structs.asdict(self).items() if value != getattr(Scope(), name)
        }
        return " ".join(f"{name}={_text(value)}" for name, value in changed.items()) or "defaults"

    @classmethod
    def from_text(cls, text: str) -> Scope:
        """Read what :meth:`as_text` wrote.

        Raises
        ------
        ScopeError
            If a name or a value is none, or out of range.
        """
        found: dict[str, object] = {}
        for part in [] if text.strip() == "defaults" else text.split():
            name, _, value = part.partition("=")
            found[name] = value
            if name == "operations":
                found[name] = [_OPERATIONS.get(each) for each in value.split(",")]
            elif name == "starts":
                found[name] = value.split(",")
        try:
            return convert(found, cls, strict=False)
        except ValidationError as error:
            fix = f"operations are {', '.join(_OPERATIONS)}, starts {', '.join(each.value for each in Start)}"
            raise ScopeError(f"the bounds {text!r} cannot be explored: {error}; {fix}") from error


def _text(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)
    return ",".join(each.value if isinstance(each, Start) else each.name.lower() for each in value)


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
    "commands=2 steps=1 failures=1 give_ups=1 rank_crashes=1 operations=clear,update",
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
    "deciders=6 rank_crashes=1 give_ups=1 steps=0 operations=hot_update starts=serving",
    "deciders=6 controller_crashes=1 controller_losses=1 controller_stops=2 steps=0 operations=hot_update",
    "deciders=6 commands=2 steps=0 rank_crashes=1 controller_losses=1 operations=hold,release",
    "failures=4 rank_crashes=1 steps=0 operations=clear,update starts=serving",
    "commands=2 steps=1 failures=1 rank_crashes=1 operations=hold,release starts=serving",
    "commands=2 steps=1 controller_crashes=1 rank_crashes=1 operations=hold,release",
    "commands=3 steps=1 leases=1 failures=1 operations=hold,release,clear starts=serving",
    "commands=2 afters=True steps=1 rank_crashes=1 operations=hold,update,hot_update starts=serving",
    "fine=True steps=1 rank_crashes=1 operations=hold,release starts=serving",
    "controller_losses=1 controller_stops=2 leases=1 operations=hold,release starts=serving",
    "commands=3 steps=0 owners=True leases=1 rank_crashes=1 operations=hold,release,update starts=serving",
    "commands=2 steps=1 requests=True failures=1 operations=hold,update,hot_update starts=serving",
    "commands=2 restores=True failures=1 rank_crashes=1 steps=0 operations=clear,update starts=serving",
    "restores=True deciders=6 failures=1 controller_losses=1 steps=0 operations=update starts=serving",
    "restores=True failures=1 controller_crashes=1 fine=True steps=0 operations=update starts=serving",
    "failures=1 give_ups=1 controller_crashes=1 controller_losses=1 deciders=6 steps=0"
    " operations=update,hot_update starts=serving",
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
        "deciders=7 commands=2 rank_crashes=1 controller_losses=1 operations=update,hot_update",
        "deciders=6 stale_reads=1 controller_losses=1 rank_crashes=1 operations=update,hot_update",
        "deciders=6 fine=True controller_crashes=1 controller_stops=2 operations=update,hot_update",
        "helpers=1 controller_losses=1 controller_stops=2 fine=True steps=0 failures=1",
        "helpers=1 hangs=1 controller_stops=2 failures=1 long_plans=True",
        "ranks=3 hangs=2 controller_losses=1 steps=0 operations=update,hot_update",
        "commands=3 steps=1 afters=True rank_crashes=1 failures=1 leases=1 operations=hold,release,update",
        "commands=2 steps=1 rank_crashes=2 controller_crashes=1 leases=1 operations=hold,release,clear",
        "commands=2 helpers=1 stale_reads=1 steps=1 operations=hold,release",
        "commands=2 steps=0 owners=True leases=1 rank_crashes=1 controller_crashes=1 controller_losses=1"
        " operations=hold,release,update starts=serving",
        "commands=3 steps=0 requests=True failures=1 operations=hold,release,update,clear,hot_update",
        "commands=2 restores=True failures=2 rank_crashes=1 steps=0 operations=clear,update starts=serving",
        "commands=2 restores=True halves=True failures=2 steps=0 operations=hold,clear,update starts=serving",
        "restores=True failures=1 controller_crashes=1 controller_losses=1 fine=True steps=0"
        " operations=update starts=serving",
        "restores=True deciders=7 give_ups=1 failures=1 controller_losses=1 controller_crashes=1 steps=0"
        " operations=update starts=serving",
    ),
)

_SCOPES = {Survey.DAILY: _DAILY, Survey.DEEP: _DEEP}
