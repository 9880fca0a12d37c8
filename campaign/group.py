"""The group that a case is played on: started by the real supervisor, commanded, looked at, ended.

It knows how to bring a group into the state that a case begins in, and what is left of it. What a case
does, and whether the outcome is a right one, is for others.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, final

import psutil

from campaign import asking
from campaign.asking import HANG_S, Answer, HangError
from campaign.cache_rank import VICTIM as CACHE
from campaign.environment import victims_environment
from campaign.fault import Fault, Fired, OrderBook
from campaign.journals import forget_journals, impossible_entries
from campaign.leftovers import directory_prefix, left_by, remove_leftovers
from campaign.load import CampaignLoad
from campaign.operations import operation_of
from campaign.played_config import played_config, publish_version
from campaign.step_audit import StepAudit
from campaign.token_audit import TokenAudit
from examples.rollout.supervisor import RolloutSupervisor
from wsm import Controller
from wsm.errors import WsmError
from wsm.states.vocabulary import KVPolicy
from wsm.status.facts import GroupStatus, who

_STANDING = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
_LOOK_S = 0.002
_MODULES = {"gloo": "campaign.gloo_rank"}


class Mark(NamedTuple):
    """How many recoveries were completed, the epoch, and how much the supervisor has told."""

    recoveries: int
    epoch: int
    told: int


@final
class GroupUnderFault:
    """A context manager around one rollout group and its directory of orders, snapshots and step records.

    Parameters
    ----------
    kind : str
        One of :data:`campaign.case.KINDS`.
    ranks : int
        How many.
    shut_down_groups : bool or None
        Whether a clear shuts communicators down; None: where there are any.
    journals, load : bool
        Whether ranks keep journals in files, and a ``gloo`` group answers requests all the time.
    arrives : str
        How versions come from a trainer at :attr:`trainer_address`: ``ipc_async`` or ``mooncake``; empty:
        from a directory.
    """

    def __init__(
        self,
        kind: str,
        ranks: int,
        *,
        shut_down_groups: bool | None = None,
        journals: bool = True,
        load: bool = True,
        arrives: str = "",
    ) -> None:
        self.kind = kind
        self.ranks = ranks
        self._loads = load and kind == "gloo"
        self.directory = Path(tempfile.mkdtemp(prefix=directory_prefix(os.getpid())))
        self.orders = OrderBook(self.directory / "orders")
        self.snapshots = self.directory / "snapshots"
        self.trainer_address = f"ipc://{self.directory}/trainer"
        self.config = played_config(
            ranks,
            self.directory,
            self.snapshots,
            shut_down_groups=kind == "gloo" if shut_down_groups is None else shut_down_groups,
            journals=journals,
            cache_process=kind == "cache",
            arrives=arrives,
            trainer_address=self.trainer_address,
        )
        self.published = 0
        self.damaged = False  # whether its words were, so that its journals may tell of anything
        self._policies: dict[int, KVPolicy] = {}
        self.contents: dict[int, int] = {}  # seeds of versions that are not called by them
        shape = self.config.engine.shape
        self._steps = StepAudit(self.directory, shape, ranks, self._policies, self.contents)
        self._tokens = TokenAudit(self.config.engine.shape, self._policies)
        self._load: CampaignLoad | None = None
        self.told: list[tuple[int, str]] = []
        self._supervisor: RolloutSupervisor | None = None
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> GroupUnderFault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    # -- who takes part -------------------------------------------------------------------------------

    @property
    def victims(self) -> list[str]:
        """What orders call those who take part in commands, in the order of their numbers."""
        return [*(f"rank{rank}" for rank in range(self.ranks)), *([CACHE] if self.kind == "cache" else [])]

    def number(self, victim: str) -> int:
        """Return the number of a participant, as errors name it."""
        return self.victims.index(victim)

    # -- the life of the group -----------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the group was started and not ended yet."""
        return self._supervisor is not None

    @property
    def supervisor(self) -> RolloutSupervisor:
        """The owner of the running group."""
        if self._supervisor is None:
            raise RuntimeError("the group is not running")
        return self._supervisor

    @property
    def controller(self) -> Controller:
        """A controller in this process."""
        return self.supervisor.controller

    @property
    def rank_module(self) -> str:
        """What its ranks run."""
        return _MODULES.get(self.kind, "campaign.memory_rank")

    def start(self) -> None:
        """Start the group on the newest published version. Raises what the supervisor does."""
        os.environ.update(victims_environment(self.directory))  # the supervisor hands its own on
        if not self.published:
            self.publish()
        self.begin_audit()
        self.told.clear()
        supervisor = RolloutSupervisor(
            self.config,
            rank_module=self.rank_module,
            cache_module="campaign.cache_rank",
            tell=lambda said: self.told.append((time.monotonic_ns(), said)),
        )
        self._undo.enter_context(supervisor)
        self._supervisor = supervisor
        if self._loads:
            self._load = CampaignLoad(self.config.group.name).start()
            self._undo.callback(self._load.close)

    def stop(self) -> list[str]:
        """End the group, if it runs; return what it left behind, journals that cannot be included."""
        supervisor, self._supervisor = self._supervisor, None
        self._undo.close()
        gave_up = self.damaged and supervisor is not None and _gave_up(supervisor)
        found = left_by(self.config.group.name, self.directory)
        if gave_up:  # its logs stay, for a reader who looks for the reason
            found = [left for left in found if not left.endswith(".run")]
        if not self.damaged:
            found += impossible_entries(self.directory / "journals")
        forget_journals(self.directory / "journals")
        self.damaged = False
        remove_leftovers(self.config.group.name)
        return found

    def begin_audit(self) -> None:
        """Forget the steps that were seen: a group that is started anew numbers its epochs anew."""
        self._steps.begin()

    def audit(self) -> tuple[int, list[str]]:
        """Hold what was served since the last call against the versions that should have served it."""
        if self._load is not None:
            checked, problems = self._tokens.check(self._load.take())
            return checked, [*problems, *self._load.problems()]
        return self._steps.check()

    def await_service(self, version: int) -> tuple[int, list[str]]:
        """Wait until steps of `version` were seen; return what :meth:`audit` says up to there."""
        audit = self._tokens if self._load is not None else self._steps
        audit.last_version = None
        checked, problems = 0, []

        def seen() -> bool:
            nonlocal checked
            more, wrong = self.audit()
            checked += more
            problems.extend(wrong)
            return audit.last_version == version

        self.until(seen, f"version {version} serves")
        return checked, problems

    def ensure_running(self) -> None:
        """Start the group where it does not run."""
        if not self.running:
            self.start()

    # -- recoveries ----------------------------------------------------------------------------------

    def mark(self) -> Mark:
        """Return what grows with every recovery."""
        return Mark(self.supervisor.recoveries, self.status().epoch, len(self.told))

    def is_whole(self) -> bool:
        """Whether every rank lives, is done with its command, and no process is at work on the group.

        Raises
        ------
        RestartLimitError
            If the supervisor has given up.
        """
        self.supervisor.check()
        status = self.status()
        there = all(
            rank.life == "alive" and rank.epoch == status.epoch and rank.step_kind != "broken"
            for rank in status.ranks
        )
        return there and status.over and status.controller_pid is None and self.supervisor.wait_until_whole(0)

    def told_ns(self, victim: str, mark: Mark) -> int | None:
        """Return when the supervisor first told of a participant since its `mark`; None if it did not."""
        name = f"{who(self.config.participants[self.number(victim)])} "
        return next((at for at, said in self.told[mark.told :] if said.startswith(name)), None)

    # -- versions ------------------------------------------------------------------------------------

    def publish(self) -> int:
        """Publish the next version: the weights whose seed is its number."""
        self.published += 1
        publish_version(self.snapshots, self.config, self.published)
        return self.published

    # -- commands ------------------------------------------------------------------------------------

    def command(
        self, operation: str, version: int | None = None, *, deadline_s: float = 20.0, wait_s: float = 0.0
    ) -> Answer:
        """Ask the group for what an operation asks for; blocks as :func:`campaign.asking.ask`."""
        policy = operation_of(operation).kv_policy
        if version is not None or policy is not KVPolicy.DROP:  # without a version, the newest is meant
            self._policies[self.published if version is None else version] = policy
        return asking.ask(self.controller, operation, version, deadline_s=deadline_s, wait_s=wait_s)

    def status(self) -> GroupStatus:
        """What the group says of itself now."""
        return self.controller.status()

    def until(self, question: Callable[[], object], what: str, patience_s: float = HANG_S) -> None:
        """Ask until the answer is true.

        Raises
        ------
        HangError
            If it never is.
        """
        deadline = time.monotonic() + patience_s
        while not question():
            if time.monotonic() > deadline:
                raise HangError(f"it never came true: {what}; {self._describe()}")
            time.sleep(_LOOK_S)

    def settled(self) -> GroupStatus:
        """Return the status of a moment in which no command is open; the keeper may begin one at any."""
        statuses: list[GroupStatus] = []

        def look() -> bool:
            statuses[:] = [self.status()]
            return statuses[0].over

        self.until(look, "no command is open")
        return statuses[0]

    def await_standing(self, pid: int) -> bool:
        """Wait until a process that was ordered to stop does stand still; False if it has ended."""

        def stands_or_is_gone() -> bool:
            return not psutil.pid_exists(pid) or self._state_of(pid) in _STANDING

        self.until(stands_or_is_gone, f"process {pid} stands still")
        return self._state_of(pid) == psutil.STATUS_STOPPED

    @staticmethod
    def _state_of(pid: int) -> str:
        try:
            return str(psutil.Process(pid).status())
        except psutil.NoSuchProcess:
            return str(psutil.STATUS_ZOMBIE)

    def _describe(self) -> str:
        """Say where every process is, for the search for a hang."""
        if not self.running:
            return "the group does not run"
        try:
            status = self.status()
        except WsmError as error:
            return str(error)
        ranks = [
            f"rank {rank.rank} {rank.life} {rank.weights} {rank.code} epoch {rank.epoch} seq {rank.sequence} "
            f"step {rank.step} {rank.step_kind}"
            for rank in status.ranks
        ]
        told = [said for _, said in self.told[-3:]]
        return f"{status.sentence()}; role: {status.controller_pid}; {'; '.join(ranks)}; told: {told}"

    # -- faults --------------------------------------------------------------------------------------

    def arm(self, fault: Fault) -> None:
        """Give the order."""
        self.orders.give(fault)

    def fired(self, fault: Fault) -> Fired | None:
        """Return when the order was obeyed, if it was."""
        return self.orders.fired(fault.victim)

    def await_fired(self, fault: Fault, patience_s: float = 10.0) -> Fired | None:
        """Wait until the order was obeyed; None if it is not in time."""
        with contextlib.suppress(HangError):
            self.until(lambda: self.fired(fault), "the order is obeyed", patience_s)
        return self.fired(fault)


def _gave_up(supervisor: RolloutSupervisor) -> bool:
    """Whether the supervisor restarts nothing any more: too many deaths, or unreadable words."""
    try:
        supervisor.check()
    except WsmError:
        return True
    return False
