"""What a group is doing, as plain data for people and programs. Read-only, works on a dead group too."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from wsm.controller.activity import action_inside
from wsm.controller.group_view import GroupView
from wsm.receipt import named
from wsm.states.decide import is_over
from wsm.states.group import Resident, resident_on_all
from wsm.states.vocabulary import KVState, Tag, WeightState
from wsm.states.words import Operation, code_name
from wsm.status.facts import words_for


@dataclass(frozen=True)
class RankStatus:
    """One participant.

    Parameters
    ----------
    rank : int
        Who; a KV-cache process follows the ranks.
    life : str
        ``alive``, ``stopped`` (by SIGSTOP or a debugger), ``dead`` or ``never``.
    pid : int or None
        Of the process that stands or stood there.
    weights, kv : str
        Names of the states.
    code : str
        How far it is with `sequence`.
    epoch, sequence : int
        What its status word belongs to.
    action : int
        Index of the action in its plan.
    step_kind : str
        ``running``, ``parked`` or ``broken``.
    step : int
        The last step that it entered.
    heartbeat : int
        A counter that grows with every turn that is not the quiet path.
    doing : str or None
        The action that it is inside of.
    since_s : float or None
        Seconds since it said `code`; None where it never said when.
    """

    rank: int
    life: str
    pid: int | None
    weights: str
    kv: str
    code: str
    epoch: int
    sequence: int
    action: int
    step_kind: str
    step: int
    heartbeat: int
    doing: str | None = None
    since_s: float | None = None

    @property
    def held(self) -> Resident:
        """What it holds."""
        return Resident(WeightState[self.weights], KVState[self.kv])

    @property
    def serving(self) -> bool:
        """Whether it may step."""
        return (
            self.life == "alive"
            and self.weights == WeightState.NORMAL.name
            and self.kv == KVState.NORMAL.name
            and self.step_kind != "broken"
        )


@dataclass(frozen=True)
class GroupStatus:
    """A whole group.

    Parameters
    ----------
    name, run_id : str
        The group, and this start of it.
    epoch, sequence : int
        Of the last command.
    operation : str
        What it asks, or what was decided.
    over : bool
        Whether every participant is done with it.
    version : int or None
        The committed version.
    controller_pid, owner_pid : int or None
        Who has the controller role now, and who owns the segment.
    controller_stopped : bool
        Whether the process that has the controller role lives and is stopped.
    ranks : tuple of RankStatus
        The participants.
    """

    name: str
    run_id: str
    epoch: int
    sequence: int
    operation: str
    over: bool
    version: int | None
    controller_pid: int | None
    owner_pid: int | None
    ranks: tuple[RankStatus, ...]
    controller_stopped: bool = False

    @property
    def serving(self) -> bool:
        """Whether every rank may step."""
        return bool(self.ranks) and all(rank.serving for rank in self.ranks)

    @property
    def state(self) -> str:
        """The weights' state if all ranks agree, else ``MIXED``."""
        states = {rank.weights for rank in self.ranks}
        return states.pop() if len(states) == 1 else "MIXED"

    @property
    def engine_state(self) -> WeightState | None:
        """What FastDeploy's weights word can truly say of the whole group.

        NORMAL if it serves, CLEARED if weights or KV cache are away on every rank, FAULTED (to an engine:
        CLEARING) if a teardown failed; None while a command is open or no single word fits.
        """
        if not self.over:
            return None
        if self.serving:
            return WeightState.NORMAL
        if WeightState.FAULTED.name in {rank.weights for rank in self.ranks}:
            return WeightState.FAULTED
        held = resident_on_all(rank.held for rank in self.ranks)
        lacks = held is not None and held.missing and held.as_whole is WeightState.CLEARED
        return WeightState.CLEARED if lacks else None

    @property
    def has_cache_process(self) -> bool:
        """Whether a KV-cache process takes part; it comes last among the ranks."""
        return any(rank.step_kind == "none" for rank in self.ranks)

    @property
    def missing(self) -> frozenset[Tag]:
        """What some rank lacks for serving."""
        return frozenset(tag for rank in self.ranks for tag in rank.held.missing)

    @property
    def holds_half(self) -> bool:
        """Whether all ranks hold the weights and no KV cache, or the other way round."""
        held = resident_on_all(rank.held for rank in self.ranks)
        return held is not None and self.engine_state is WeightState.CLEARED and len(held.missing) == 1

    def to_mapping(self) -> Mapping[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            **asdict(self),
            "serving": self.serving,
            "state": self.state,
            "missing": named(self.missing),
        }

    def without_times(self) -> GroupStatus:
        """Return it without what changes by itself as time passes."""
        return replace(self, ranks=tuple(replace(rank, since_s=None, heartbeat=0) for rank in self.ranks))

    def sentence(self) -> str:
        """Say in a few words what the group holds; what errors quote."""
        held = f"serves version {self.version}" if self.serving else f"is {self.state}, and does not serve"
        if self.holds_half:
            held = words_for(self.missing, self.version)
        still = "" if self.over else f"; command {self.sequence} ({self.operation}) is still open"
        return f"the group {held}{still}"


def read_status(group: GroupView) -> GroupStatus:
    """Read what a group is doing now. Does not block."""
    segment, view = group.segment, group.view()
    now_ns = time.monotonic_ns()
    ranks = []
    for index, status in enumerate(view.statuses):
        step = view.steps[index] if index < len(view.steps) else None
        joined = status.epoch != 0  # a word that nobody has written yet names no state
        presence = group.presence(index)
        inside = action_inside(group, index, status.epoch)
        ranks.append(
            RankStatus(
                rank=index,
                life="stopped" if group.stopped(index) else group.life(index).value,
                pid=group.pid(index),
                weights=WeightState(status.weights if joined else WeightState.CLEARED).name,
                kv=KVState(status.kv if joined else KVState.CLEARED).name,
                code=code_name(view.command.operation, status.code),
                epoch=status.epoch,
                sequence=status.sequence,
                action=status.action,
                step_kind=step.kind.name.lower() if step is not None else "none",
                step=step.step if step is not None else 0,
                heartbeat=presence.heartbeat,
                doing=None if inside is None else inside.name,
                since_s=max(now_ns - presence.told_at_ns, 0) / 1e9 if presence.told_at_ns else None,
            )
        )
    owner = segment.owner
    return GroupStatus(
        name=segment.name,
        run_id=segment.run_id,
        epoch=view.command.epoch,
        sequence=view.command.sequence,
        operation=Operation(view.command.operation).name,
        over=is_over(view),
        version=view.committed.version,
        controller_pid=group.role.holder(),
        controller_stopped=group.role.stopped_holder() is not None,
        owner_pid=owner.pid if owner is not None else None,
        ranks=tuple(ranks),
    )
