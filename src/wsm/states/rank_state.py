"""What a rank remembers to follow the protocol, and what the protocol answers it: the words of :mod:`.rank`.

Plain immutable values; the rules are in :mod:`.rank`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from wsm.states.words import Operation, StatusWord, StepWord


class Phase(enum.Enum):
    """Where a rank is within a command."""

    IDLE = "idle"
    BEGINNING = "beginning"
    DRAINING = "draining"
    PARKING = "parking"
    WORKING = "working"
    VOTING = "voting"
    PREPARED = "prepared"
    COMMITTING = "committing"
    FAILED = "failed"
    STOPPING = "stopping"
    STOPPED = "stopped"
    SETTLING = "settling"
    STAGING = "staging"
    STAGED = "staged"


class Todo(enum.Enum):
    """The next thing to do, and in brackets the events that can come of it."""

    SERVE = "serve"  # a step may be entered if there is work [ENTERED]
    JOIN = "join"  # the next step must be entered: others are in it [ENTERED]
    WAIT = "wait"  # until a word changes
    LOOK = "look"  # something was written: read the words again
    REJOIN = "rejoin"  # a new epoch has begun [join]
    BEGIN = "begin"  # read the command's arguments, check that it is legal here [BEGAN, REFUSED]
    DRAIN = "drain"  # serve on, without admitting [DRAINED, FAILED]
    ACCEPT = "accept"  # all stand at the same boundary: the transition begins [ACCEPTED, FAILED]
    RUN = "run"  # action number state.action [ACTION_DONE, FAILED]
    FORSAKEN = "forsaken"  # a peer will never be ready for this collective action [FAILED]
    FINISH = "finish"  # the plan is done: report it [FINISHED]
    STAGE = "stage"  # stage the new weights beside the old ones, and serve [STAGED, FAILED]
    COMMIT = "commit"  # serve the new version [COMMITTED]
    UNDO = "undo"  # stop, take back what can be taken back [STOPPED]
    KEEP = "keep"  # aborted, nobody touched anything: as before the command [KEPT]
    DROP = "drop"  # aborted, somebody touched: hold no weights [CLEARED, FAULTED]


@dataclass(frozen=True)
class RankState:
    """Everything that a rank must remember to follow the protocol.

    Attributes
    ----------
    rank, epoch : int
        Who, and in which incarnation of the group.
    step : int
        The last step that was entered.
    done : int
        The last sequence that this rank is terminal for.
    holds : bool
        Whether it holds all that a step needs: verified weights, and a KV cache.
    broken : bool
        Whether a step raised; no further step in this epoch.
    weights, kv : int
        Signed state codes for the status word; the shell keeps them true.
    phase, sequence, operation
        The command at hand; `operation` is what was asked, not what was decided.
    parked : bool
        Whether the step word says PARKED for this command at this step.
    accepted, touched : bool
        Whether all ranks stood, and whether this rank's weights are no longer the old ones.
    collective : tuple of bool
        One per action of the plan: whether it needs a vote.
    action, ready : int
        The next action's index; one more than the index of the last vote.
    steps : bool
        Whether it takes part in steps. A helper does not: it has no step word, and stands nowhere.
    """

    rank: int
    epoch: int
    step: int = 0
    done: int = 0
    holds: bool = False
    broken: bool = False
    weights: int = -2
    kv: int = -2
    phase: Phase = Phase.IDLE
    sequence: int = 0
    operation: Operation = Operation.NONE
    parked: bool = True
    accepted: bool = False
    touched: bool = False
    collective: tuple[bool, ...] = ()
    action: int = 0
    ready: int = 0
    steps: bool = True


@dataclass(frozen=True)
class Move:
    """What follows: the new state, the words to write in this order, the next thing to do."""

    state: RankState
    todo: Todo
    step: StepWord | None = None
    status: StatusWord | None = None
