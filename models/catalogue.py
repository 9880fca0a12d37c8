"""Which model is checked within which bounds, and which seeded faults must be caught. Runs nothing.

A check that is ``small`` takes seconds and belongs to the test suite; the others are for ``make models``.
The reasons of a mutant name the rule that it drops, in the words of :mod:`wsm.states`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Check:
    """One exhaustive search.

    Attributes
    ----------
    model : str
        The file, without its suffix.
    bounds : str
        What is defined, as ``NAME=VALUE`` or ``NAME``, blanks between.
    what : str
        What these bounds are for.
    small : bool
        Whether the test suite runs it.
    must_fail : bool
        Whether an error is what it must find: a seeded fault, or the design that wsm replaces.
    cycles : bool
        Look for any cycle in the graph instead of errors: without one, good ends are liveness.
    """

    model: str
    bounds: str
    what: str
    small: bool = True
    must_fail: bool = False
    cycles: bool = False

    @property
    def path(self) -> Path:
        """The model's file."""
        return HERE / f"{self.model}.pml"

    @property
    def within(self) -> str:
        """Say the bounds, and what is looked for where that is not an error."""
        return (self.bounds or "defaults") + (", any cycle" if self.cycles else "")

    @property
    def title(self) -> str:
        """Name the check on one line."""
        return f"{self.model}: {self.within}"


CHECKS = (
    Check("oneword", "", "two ranks: must deadlock", must_fail=True),
    Check("oneword", "N=3", "three ranks: must deadlock", must_fail=True),
    Check("oneword", "SLEEPS N=3 CYCLES=3", "what the sleep hides"),
    Check("oneword", "SEQUENCE N=3 CYCLES=3", "a sequence instead of a level"),
    Check("park_and_vote", "", "three ranks, decided"),
    Check("park_and_vote", "FOLLOW", "three ranks, each serves on at once"),
    Check("park_and_vote", "FOLLOW N=2 WORK=3 CMDS=3", "two ranks, more of everything"),
    Check("park_and_vote", "FOLLOW N=2", "no endless run", cycles=True),
    Check("park_and_vote", "N=4", "four ranks, decided", small=False),
    Check("park_and_vote", "FOLLOW N=4", "four ranks, each serves on at once", small=False),
    Check("park_and_vote", "N=4 WORK=3 CMDS=3", "four ranks, more of everything", small=False),
    Check("park_and_vote", "HOLDS CMDS=4", "hold, release, hold, release"),
    Check("park_and_vote", "HOLDS N=2 WORK=3 CMDS=4", "no endless run", cycles=True),
    Check("recovery", "", "a death at any point of a command"),
    Check("recovery", "RCRASH=2 FAILS=1 OPS=3", "a second death before the restore has ended"),
    Check("recovery", "RCRASH=2 CCRASH=1 CMDS=2 OPS=3", "the process that raises the epoch dies too"),
    Check("recovery", "RCRASH=2 CCRASH=1 OPS=3", "no endless run", cycles=True),
    Check("recovery", "CCRASH=1 CMDS=2 LEASES=1 OPS=4", "hold, release, a lease that runs out"),
    Check("recovery", "RCRASH=2 LEASES=1 OPS=12", "updates under a hold, and such that hold or serve"),
    Check("recovery", "RCRASH=2 CCRASH=2 CMDS=2 FAILS=1 OPS=3", "more of everything", small=False),
    Check("recovery", "RCRASH=2 CCRASH=2 CMDS=2 OPS=4", "two die before their words", small=False),
    Check("recovery", "RCRASH=2 CCRASH=1 CMDS=2 LEASES=1", "everything under a hold", small=False),
    Check("recovery", "CCRASH=1 CMDS=2 LEASES=1 FAILS=1", "no endless run", small=False, cycles=True),
    Check("transaction", "", "any command, the controller may give up"),
    Check("transaction", "CMDS=2 FAILS=1", "two commands, one failure, refusal or deadline"),
    Check("transaction", "FAILS=3 CMDS=2 OPS=1 CLEARVOTE=1", "a group that becomes FAULTED and is repaired"),
    Check("transaction", "CCRASH=1 FAILS=1", "a controller dies"),
    Check("transaction", "RCRASH=1 OPS=2", "a rank dies in an update"),
    Check("transaction", "RCRASH=1 OPS=4", "a rank dies in a hot update"),
    Check("transaction", "BREAKS=1 OPS=4", "a step or a flip raises in a hot update"),
    Check("transaction", "MISREADS=1", "a rank prepares another version"),
    Check("transaction", "H=1 OPS=3", "a helper takes part"),
    Check("transaction", "H=1 OPS=4", "a helper takes part in a hot update"),
    Check("transaction", "N=3 OPS=4", "three ranks, hot update"),
    Check("transaction", "FAILS=1", "no endless run", cycles=True),
    Check("transaction", "LOSSES=1", "a controller dies, and none follows"),
    Check("transaction", "STOPS=1 FAILS=1", "a controller is stopped for good"),
    Check("transaction", "STOPS=2", "a controller is stopped, and goes on"),
    Check("transaction", "DECIDERS=6 OPS=6", "decided by a caller, or by its lease"),
    Check("transaction", "DECIDERS=6 OPS=4 LOSSES=1", "who holds a decision dies"),
    Check("transaction", "DECIDERS=6 OPS=4 STOPS=2", "who holds a decision is stopped, and goes on"),
    Check("transaction", "DECIDERS=6 OPS=4 CCRASH=1", "another controller finds a decision that is held"),
    Check("transaction", "DECIDERS=6 OPS=4", "no endless run", cycles=True),
    Check("transaction", "DECIDERS=6 OPS=4 RCRASH=1", "a rank dies while a decision is held", small=False),
    Check("transaction", "DECIDERS=6 OPS=2 RCRASH=1", "the same in place", small=False),
    Check("transaction", "DECIDERS=7 OPS=6 CMDS=2 FAILS=1", "two commands, one failure", small=False),
    Check("transaction", "DECIDERS=6 OPS=4 RCRASH=1 LOSSES=1", "a rank and the holder die", small=False),
    Check("transaction", "DECIDERS=6 OPS=4 STOPS=2 LOSSES=1", "a stopped holder is ended", small=False),
    Check("transaction", "DECIDERS=6 OPS=6 H=1", "a helper takes part", small=False),
    Check("transaction", "LOSSES=1 FAILS=1", "no endless run", small=False, cycles=True),
    Check("transaction", "LOSSES=1 CCRASH=1 FAILS=1", "who ends its command dies, too", small=False),
    Check("transaction", "LOSSES=1 CCRASH=1 CMDS=2 FAILS=1", "the next controller comes late", small=False),
    Check("transaction", "STOPS=2 LOSSES=1 FAILS=1", "a stopped controller is ended", small=False),
    Check("transaction", "STOPS=1 RCRASH=1 OPS=4", "a rank dies beside a stopped controller", small=False),
    Check("transaction", "STOPS=1 LOSSES=1 H=1 OPS=6", "a helper, a controller is stopped", small=False),
    Check("transaction", "FAILS=1 BREAKS=1 OPS=6", "no endless run", small=False, cycles=True),
    Check("transaction", "FAILS=2 CMDS=2 WORK=2", "more of everything", small=False),
    Check("transaction", "CMDS=2 CCRASH=2 FAILS=1", "two controllers die", small=False),
    Check("transaction", "RCRASH=1 CCRASH=1 FAILS=1 MISREADS=1", "everything once", small=False),
    Check("transaction", "RCRASH=1 BREAKS=1 OPS=6", "a rank dies and a step raises", small=False),
    Check("transaction", "RCRASH=2 FAILS=1", "two deaths", small=False),
    Check("transaction", "CMDS=2 RCRASH=1 OPS=5", "two commands and a death", small=False),
    Check("transaction", "H=1 CCRASH=1 FAILS=1", "a helper, a controller dies", small=False),
    Check("transaction", "H=1 RCRASH=1", "a helper, a rank or the helper dies", small=False),
    Check("transaction", "N=3 FAILS=1", "three ranks, one failure", small=False),
    Check("transaction", "N=3 CCRASH=1 OPS=2", "three ranks, a controller dies", small=False),
    Check("transaction", "N=3 BREAKS=1 OPS=4", "three ranks, a step raises", small=False),
)


def _mutant(model: str, name: str, bounds: str, rule: str) -> Check:
    return Check(model, f"M_{name} {bounds}".strip(), rule, must_fail=True)


MUTANTS = (
    _mutant(
        "park_and_vote", "HELD_RANK_STEPS", "HOLDS CMDS=4", "a rank under a hold begins and joins no step"
    ),
    _mutant("park_and_vote", "NO_JOIN_IN_PARKING", "", "a rank that stands joins a step that others are in"),
    _mutant("park_and_vote", "PARKED_WITHOUT_SEQUENCE", "", "PARKED names the command"),
    _mutant("park_and_vote", "RUNNING_WITHOUT_SEQUENCE", "FOLLOW", "RUNNING names the last finished command"),
    _mutant("park_and_vote", "SERVES_BEFORE_ALL_ACCEPT", "", "who accepted serves after the decision only"),
    _mutant(
        "recovery",
        "ARGUMENTS_OVER_THE_LAST",
        "OPS=4 RCRASH=2 CCRASH=2 CMDS=2",
        "the arguments of the last command stay until the next word",
    ),
    _mutant("recovery", "COMMAND_FORGETS", "RCRASH=2", "a command says what an unrestored group is owed"),
    _mutant("recovery", "EPOCH_BEGINS_OPEN", "OPS=4", "a new epoch begins held"),
    _mutant("recovery", "EPOCH_LOSES_COMMIT", "", "a commit is recorded before a new epoch"),
    _mutant("recovery", "EPOCH_LOSES_HOLD", "OPS=4", "HELD stands in the committed word of a new epoch"),
    _mutant("recovery", "GOAL_IS_NOT_STORED", "", "that nothing is owed stands in the committed word"),
    _mutant("recovery", "GOAL_IS_WHAT_IS_HELD", "", "a command that was cut short counts as not given"),
    _mutant("recovery", "HOLD_IS_RESTORED", "OPS=4", "the goal of a hold is the version before it"),
    _mutant("recovery", "HOLD_TAKES_DEBT", "OPS=4 RCRASH=2", "hold and release take no debt away"),
    _mutant("recovery", "LEASE_IS_NOT_READ_AGAIN", "OPS=4 LEASES=1 CMDS=2", "the role, then the lease"),
    _mutant("recovery", "LEASE_SERVES_ANYTHING", "OPS=5 LEASES=1 CMDS=2", "a lease releases what is whole"),
    _mutant("recovery", "RECORD_WHERE_IT_IS_NEEDED", "CCRASH=1", "the record goes where none is needed"),
    _mutant("recovery", "RESTORE_HAS_EMPTY_HANDS", "RCRASH=2", "a restore says what the group served"),
    _mutant("recovery", "RESTORE_OPENS", "OPS=4 RCRASH=2", "a restore under a hold stays under it"),
    _mutant("recovery", "SUCCESSOR_HOLDS", "OPS=4 CCRASH=1", "a successor aborts an undecided hold"),
    _mutant("recovery", "UNDECIDED_IS_RESTORED", "", "what was not decided is not restored"),
    _mutant("recovery", "UNDO_OPENS", "OPS=6 CMDS=2 FAILS=1", "no undo under a hold resumes admission"),
    _mutant("recovery", "WORD_BEFORE_RECORD", "CCRASH=1", "the record is written before the word"),
    _mutant("transaction", "ABORT_RESUMES", "OPS=1", "after an ABORT no rank serves before all have stopped"),
    _mutant("transaction", "BROKEN_PARKS", "BREAKS=1 OPS=2", "BROKEN is never overwritten in its epoch"),
    _mutant("transaction", "CALLER_IS_NOT_ASKED", "DECIDERS=2 OPS=2", "a caller's COMMIT needs its word"),
    _mutant("transaction", "CLEARED_IS_UNTOUCHED", "OPS=1 FAILS=1", "DONE_CLEARED counts as touched"),
    _mutant("transaction", "CLEAR_IS_NEVER_DECIDED", "OPS=1 FAILS=1", "a failed clear is aborted"),
    _mutant("transaction", "COMMIT_DOES_NOT_FOLLOW", "OPS=4", "who has flipped proves that all stood"),
    _mutant("transaction", "COMMIT_UNSEEN", "OPS=2 MISREADS=1", "COMMIT needs reports that agree"),
    _mutant("transaction", "DEADLINE_ENDS_PREPARED", "OPS=2 FAILS=1", "PREPARED is a promise"),
    _mutant("transaction", "DEADLINE_UNPARKS", "OPS=2 FAILS=1", "an expired deadline leads nowhere"),
    _mutant("transaction", "EPOCH_LOSES_COMMIT", "OPS=2 RCRASH=1", "a commit is recorded before a new epoch"),
    _mutant("transaction", "FAULTED_IS_UNTOUCHED", "OPS=1 FAILS=2", "DONE_FAULTED counts as touched"),
    _mutant("transaction", "FAULTED_UPDATES", "OPS=3 FAILS=2 CMDS=2", "FAULTED is left by clearing only"),
    _mutant("transaction", "HELPER_FOLLOWS_AT_ONCE", "H=1 OPS=4", "a helper drops blocks once one flipped"),
    _mutant("transaction", "HELPER_IS_EARLY", "H=1 OPS=1", "a helper begins when a rank has accepted"),
    _mutant("transaction", "HELPER_IS_WAITED_FOR", "H=1 OPS=2", "only ranks vote for a collective"),
    _mutant("transaction", "HELPER_NOT_ASKED", "H=1 OPS=2 FAILS=1", "COMMIT needs the helpers PREPARED too"),
    _mutant("transaction", "HOT_FLIP_WITHOUT_PARKING", "OPS=4", "a hot commit is parked and voted on"),
    _mutant(
        "transaction",
        "KEEPER_FORGETS_VERSION",
        "OPS=2 LOSSES=1",
        "the process that commits stores the version",
    ),
    _mutant("transaction", "LEASE_COUNTS_FROM_START", "DECIDERS=2 OPS=4", "a lease counts from all PREPARED"),
    _mutant("transaction", "LEASE_HAS_NO_END", "DECIDERS=4 OPS=4", "a lease that is over ends by ABORT"),
    _mutant("transaction", "LEASE_IS_NOT_ASKED_AGAIN", "DECIDERS=4 OPS=4", "with the role it looks again"),
    _mutant("transaction", "LEASE_OVERRULES_STOPPED", "DECIDERS=2 OPS=4 STOPS=2", "a holder is ended first"),
    _mutant("transaction", "NEXT_COMMAND_EARLY", "OPS=1 CMDS=2", "the next command waits for all"),
    _mutant("transaction", "NEXT_CONTROLLER_ENDS_LEASE", "DECIDERS=4 OPS=4 CCRASH=1", "others are Busy"),
    _mutant("transaction", "NOBODY_KEEPS", "OPS=2 LOSSES=1", "the group ends what a dead controller left"),
    _mutant("transaction", "NO_JOIN_IN_PARKING", "OPS=2", "who stands joins a step that others are in"),
    _mutant("transaction", "NO_JOIN_WHEN_STOPPED", "OPS=2", "a rank that stopped unaccepted still joins"),
    _mutant("transaction", "OUTCOME_IS_LOCAL", "OPS=2", "the outcome of an ABORT is the group's"),
    _mutant("transaction", "REFUSAL_IS_TERMINAL", "OPS=2 FAILS=1", "who refuses waits for the group's ABORT"),
    _mutant("transaction", "RUNNING_WITHOUT_SEQUENCE", "OPS=4", "RUNNING names the last finished command"),
    _mutant("transaction", "SAME_EPOCH_RESTART", "OPS=2 RCRASH=1", "a replacement joins a new epoch only"),
    _mutant("transaction", "SPLIT_BRAIN", "OPS=2 CCRASH=1", "a successor proves that the other is dead"),
    _mutant("transaction", "STAND_IN_IS_LATE", "OPS=1 FAILS=1 CMDS=2 STOPS=2", "no word comes in between"),
    _mutant("transaction", "STOPPED_IS_OVERRULED", "OPS=4 STOPS=2", "after PREPARED none decides for it"),
    _mutant("transaction", "STEP_WITHOUT_EPOCH", "OPS=2 RCRASH=1", "no rank follows a step of another epoch"),
    _mutant("transaction", "SUCCESSOR_COMMITS_FOR_CALLER", "DECIDERS=2 OPS=4 CCRASH=1", "it says ABORT"),
    _mutant("transaction", "TAKEOVER_DECIDES_AGAIN", "OPS=2 CCRASH=1", "a decision that stands is completed"),
    _mutant("transaction", "VOTE_IS_WITHDRAWN", "OPS=2", "a vote ends only where a peer will never be ready"),
)
