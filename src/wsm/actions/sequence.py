"""What a plan is: ordered units of work for one transition, with what comes before and after them.

A plan is data. It runs nothing; the worker walks through it, one action per turn. How a plan comes
about is in :mod:`wsm.actions.plan`, what order it must have in :mod:`wsm.actions.order`.

What the worker does with a plan::

    admit            when the command is seen: refuses policies, changes nothing
    admission        run then, before anything else; what it raises refuses the command
    before_parking   run each, then keep stepping until all are settled; then park
    actions          one per poll(): precondition, vote if collective, run, probe
    (decision)
    commit           after COMMIT only; cannot fail in practice
    undo             after ABORT where the group keeps what it had: of everything that began, latest first
    (the discard plan instead of undo, where the group drops what it had)

A hot plan is another matter: its first actions run beside the serving loop, the others after the decision::

    staging          in a thread, while the rank serves; then PREPARED
    (decision)
    before_parking   as above
    flip             all in one poll()
    commit           as above
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from wsm.actions.base import Action, ActionContext, SteppedAction
from wsm.actions.errors import PolicyRefusedError
from wsm.states.vocabulary import InFlightPolicy, KVPolicy, PlanName


@dataclass(frozen=True)
class Plan:
    """The units of work of one transition.

    Parameters
    ----------
    name : str
        A value of :class:`wsm.states.vocabulary.PlanName`.
    actions : tuple of Action
        In order.
    before_parking : tuple of SteppedAction
        Begun while the rank still steps.
    commit : tuple of Action
        Run after COMMIT. Local.
    kv_policies, in_flight_policies : frozenset
        What the plan can honour.
    admission : tuple of Action
        Run when the command is seen. Local, changes nothing.
    staged : int
        How many of the actions, from the first, run beside the serving loop.
    """

    name: str
    actions: tuple[Action, ...]
    before_parking: tuple[SteppedAction, ...] = ()
    commit: tuple[Action, ...] = ()
    kv_policies: frozenset[KVPolicy] = frozenset({KVPolicy.DROP})
    in_flight_policies: frozenset[InFlightPolicy] = field(default_factory=lambda: frozenset(InFlightPolicy))
    admission: tuple[Action, ...] = ()
    staged: int = 0

    def __iter__(self) -> Iterator[Action]:
        """Iterate over every action in the order in which it would run, admission to commit."""
        yield from self.admission
        yield from self.staging
        yield from self.before_parking
        yield from self.flip
        yield from self.commit

    @property
    def staging(self) -> tuple[Action, ...]:
        """The actions that run beside the serving loop, before the decision."""
        return self.actions[: self.staged]

    @property
    def flip(self) -> tuple[Action, ...]:
        """The actions that need every rank to stand; all of them, but in a hot plan."""
        return self.actions[self.staged :]

    def names(self) -> tuple[str, ...]:
        """Names of :attr:`actions`, in order."""
        return tuple(action.name for action in self.actions)

    def admit(self, context: ActionContext) -> None:
        """Refuse what this plan cannot honour, before anything is touched.

        Raises
        ------
        PolicyRefusedError
            If the command's KV policy or in-flight policy is not among the plan's, or if the KV policy is
            about running requests and the in-flight policy leaves none.
        """
        if context.kv_policy not in self.kv_policies:
            raise PolicyRefusedError(
                plan=self.name,
                policy=f"the KV policy {context.kv_policy.value!r}",
                supported=sorted(policy.value for policy in self.kv_policies),
            )
        if context.in_flight not in self.in_flight_policies:
            raise PolicyRefusedError(
                plan=self.name,
                policy=f"the in-flight policy {context.in_flight.value!r}",
                supported=sorted(policy.value for policy in self.in_flight_policies),
            )
        if context.kv_policy is KVPolicy.KEEP_IN_FLIGHT and context.in_flight is not InFlightPolicy.KEEP:
            raise PolicyRefusedError(
                plan=self.name,
                policy=f"the in-flight policy {context.in_flight.value!r} beside the KV policy "
                f"{context.kv_policy.value!r}, which it leaves nothing to keep",
                supported=[InFlightPolicy.KEEP.value],
            )


@dataclass(frozen=True)
class Plans:
    """All plans of one engine.

    Parameters
    ----------
    clear : Plan
        From serving to nothing held.
    update : Plan
        From nothing held to ready to step.
    update_in_place : Plan
        From serving one version to ready to step with another, without giving memory back.
    hot : Plan
        From serving one version to serving another that was staged beside it.
    discard : Plan
        From anywhere to nothing held, by this rank alone: for commands whose outcome is "drop".
        Groups and the DeepEP buffer stay as they are; the next update finds them so on every rank.
    rejoin : Plan
        Before a discard, where the epoch has ended: lets go alone of what broke with a peer.
    partial : mapping of PlanName to Plan
        The plans that move one half, or bring back what is missing beside the other
        (:mod:`wsm.states.halves`).
    """

    clear: Plan
    update: Plan
    update_in_place: Plan
    hot: Plan
    discard: Plan
    rejoin: Plan
    partial: Mapping[PlanName, Plan] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Plan]:
        """Iterate over all plans."""
        whole = (self.clear, self.update, self.update_in_place, self.hot, self.discard, self.rejoin)
        yield from whole
        yield from self.partial.values()

    def named(self, name: PlanName) -> Plan:
        """Return the plan of that name.

        Raises
        ------
        KeyError
            If a partial plan was not derived.
        """
        whole = {
            PlanName.CLEAR: self.clear,
            PlanName.UPDATE: self.update,
            PlanName.UPDATE_IN_PLACE: self.update_in_place,
            PlanName.HOT: self.hot,
            PlanName.DISCARD: self.discard,
            PlanName.REJOIN: self.rejoin,
        }
        return whole[name] if name in whole else self.partial[name]
