"""What plans are derived from: the facts about an engine that decide which steps it needs.

Responsible for refusing contradictions before any plan exists. It knows nothing of order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from wsm.actions import errors, names
from wsm.actions.addition import Addition
from wsm.actions.base import Action
from wsm.actions.measuring import AddressContract, MemoryDrop, ResidentDigest, resident_digest
from wsm.actions.surfaces import (
    AbandonableBuffer,
    AbandonableGroups,
    BareRunner,
    FreezingRequestSurface,
    GroupKind,
    HoldingRequestSurface,
    KeepingKVCacheSurface,
    Runner,
    completed,
    processing_of,
)
from wsm.states.vocabulary import InFlightPolicy, KVPolicy


@dataclass(frozen=True)
class PlanOptions:
    """One engine's configuration, as far as it concerns plans.

    Parameters
    ----------
    has_graphs, has_draft_graphs : bool
        Whether the main model, or any auxiliary one, captures CUDA graphs.
    capture_is_collective : bool
        Whether capturing runs collectives; then it is voted on, and an aborted command cannot capture
        again on its own.
    rebuild_is_collective : bool
        Whether another process beside all ranks takes part in rebuilding the KV cache; then that is voted on.
    has_deepep : bool
        Whether there is an expert-parallel exchange buffer.
    has_kv : bool
        Whether there is a KV cache.
    cache_only : bool
        Whether there is nothing else: a process that holds a KV cache for the ranks, and no weights.
    auxiliaries : tuple of str
        Names of the auxiliary models (MTP).
    group_kinds : tuple of GroupKind
        Communicators of this rank.
    shut_down_groups : bool or None
        Whether clear shuts them down and update restarts them (``--shutdown-comm-group-if-worker-idle``);
        None: as the group's configuration says, and not without one.
    rejoins : bool
        Whether communicators, and the buffer on them, can be given up by one rank alone, so that its process
        outlives the death of a peer. Then the first update of each epoch creates them.
    processes_loaded : bool
        Whether the engine makes something else of a checkpoint that its models have loaded
        (:class:`wsm.actions.surfaces.ProcessingRunner`).
    releases_cache : bool
        Whether an update in place gives the KV caches' memory back for its time, and builds them anew: the
        load needs the room. Else blocks are forgotten where they are.
    routing_replay : bool
        Whether expert choices are recorded.
    kv_policies : frozenset of KVPolicy
        What an update of a serving engine may do with KV blocks of the old weights.
    in_flight_policies : frozenset of InFlightPolicy
        What the scheduler can do with running requests.
    memory_drop : MemoryDrop
        How far measured memory must fall when everything is released.
    resident_digest : callable
        Digest of all resident bytes, comparable with the one that the load strategy reports.
    address_contract : AddressContract or None
        Set where captured storage addresses must survive an update, or are recorded anew by capturing.
    deadlines : mapping of str to float
        ``Action.deadline_s``, by a name of :mod:`wsm.actions.names` or of an addition; the others are the
        configuration's, or keep their defaults.
    additions : tuple of Addition
        Units of work of the engine's own.
    instrument : callable or None
        ``instrument(plan, action)`` is called with each action of each plan when the plans are derived. It
        may replace methods of the action: to measure it, or to make it fail in a test.

    Raises
    ------
    BadInputError (``plan-options``)
        If options contradict each other.
    """

    has_graphs: bool = False
    has_draft_graphs: bool = False
    capture_is_collective: bool = True
    rebuild_is_collective: bool = False
    has_deepep: bool = False
    has_kv: bool = True
    cache_only: bool = False
    auxiliaries: tuple[str, ...] = ()
    group_kinds: tuple[GroupKind, ...] = ()
    shut_down_groups: bool | None = None
    rejoins: bool = False
    processes_loaded: bool = False
    releases_cache: bool = False
    routing_replay: bool = False
    kv_policies: frozenset[KVPolicy] = frozenset({KVPolicy.DROP})
    in_flight_policies: frozenset[InFlightPolicy] = frozenset(InFlightPolicy)
    memory_drop: MemoryDrop = field(default_factory=MemoryDrop)
    resident_digest: ResidentDigest = resident_digest
    address_contract: AddressContract | None = None
    deadlines: Mapping[str, float] = field(default_factory=dict)
    additions: tuple[Addition, ...] = ()
    instrument: Callable[[str, Action], None] | None = None

    def __post_init__(self) -> None:
        self._refuse(
            "has_draft_graphs",
            self.has_draft_graphs and not self.auxiliaries,
            "draft graphs belong to an auxiliary model, name it in auxiliaries",
        )
        self._refuse(
            "has_deepep",
            self.has_deepep and GroupKind.EP not in self.group_kinds,
            "a DeepEP buffer lives on an EP group, list it in group_kinds",
        )
        beside = self.has_graphs or self.has_deepep or self.group_kinds or self.routing_replay
        self._refuse(
            "cache_only",
            self.cache_only and (not self.has_kv or bool(beside)),
            "a KV-cache process has a cache, and no graphs, buffers, groups or routing records",
        )
        self._refuse(
            "releases_cache",
            self.releases_cache and (not self.has_kv or self.cache_only),
            "there is no KV cache beside weights",
        )
        self._refuse(
            "shut_down_groups",
            bool(self.shut_down_groups) and not self.group_kinds,
            "there is no group to shut down",
        )
        self._refuse(
            "group_kinds", len(set(self.group_kinds)) < len(self.group_kinds), "each kind at most once"
        )
        self._refuse(
            "kv_policies",
            self.kv_policies > {KVPolicy.DROP} and not self.has_kv,
            "there is no KV cache to keep",
        )
        added = [action.name for addition in self.additions for action in addition.actions()]
        for name in added:
            taken = name in names.ALL or added.count(name) > 1
            self._refuse("additions", taken, f"an action has a name of its own, and {name!r} is taken")
        for name, seconds in self.deadlines.items():
            known = name in names.ALL or name in added
            self._refuse("deadlines", not known, f"unknown action {name!r}, see wsm.actions.names")
            self._refuse("deadlines", not seconds > 0, f"{name} needs a positive number of seconds")

    def _refuse(self, option: str, contradiction: bool, allowed: str) -> None:
        if contradiction:
            raise errors.plan_options(option=option, value=getattr(self, option), allowed=allowed)

    @classmethod
    def from_runner(
        cls,
        runner: BareRunner,
        *,
        shut_down_groups: bool | None = None,
        capture_is_collective: bool = True,
        kv_policies: frozenset[KVPolicy] = frozenset({KVPolicy.DROP}),
        in_flight_policies: frozenset[InFlightPolicy] | None = None,
        memory_drop: MemoryDrop | None = None,
        digest: ResidentDigest = resident_digest,
        address_contract: AddressContract | None = None,
        deadlines: Mapping[str, float] | None = None,
    ) -> PlanOptions:
        """Read from a runner which surfaces it has; the keywords are what a runner cannot tell.

        A runner that has work of its own in plans lists it in an attribute `additions`.

        Parameters
        ----------
        in_flight_policies : frozenset of InFlightPolicy or None
            None takes all that the runner's scheduler can honour.

        Raises
        ------
        BadInputError (``plan-options``)
            If options contradict each other, or promise what the runner cannot do
            (:meth:`require_offered`).
        """
        runner = completed(runner)
        options = cls(
            has_graphs=runner.graphs is not None,
            has_draft_graphs=any(auxiliary.graphs is not None for auxiliary in runner.auxiliaries),
            capture_is_collective=capture_is_collective,
            has_deepep=runner.deepep is not None,
            has_kv=runner.kv_cache is not None,
            auxiliaries=tuple(auxiliary.name for auxiliary in runner.auxiliaries),
            group_kinds=() if runner.groups is None else tuple(runner.groups.kinds()),
            shut_down_groups=shut_down_groups,
            rejoins=isinstance(runner.groups, AbandonableGroups)
            and (runner.deepep is None or isinstance(runner.deepep, AbandonableBuffer)),
            processes_loaded=processing_of(runner) is not None,
            routing_replay=runner.routing_replay is not None,
            kv_policies=kv_policies,
            in_flight_policies=_honoured(runner) if in_flight_policies is None else in_flight_policies,
            memory_drop=memory_drop or MemoryDrop(),
            resident_digest=digest,
            address_contract=address_contract,
            deadlines=deadlines or {},
            additions=tuple(getattr(runner, "additions", ())),
        )
        options.require_offered(runner)
        return options

    def require_offered(self, runner: Runner) -> None:
        """See that a runner can do all that these options promise, before anything relies on it.

        Raises
        ------
        BadInputError (``plan-options``)
            If a policy needs more than the runner's scheduler or caches offer, or the options name a surface
            that the runner does not have.
        """
        present = {
            "has_graphs": runner.graphs is not None,
            "has_draft_graphs": any(auxiliary.graphs is not None for auxiliary in runner.auxiliaries),
            "has_deepep": runner.deepep is not None,
            "has_kv": runner.kv_cache is not None,
            "routing_replay": runner.routing_replay is not None,
            "auxiliaries": set(self.auxiliaries) <= {auxiliary.name for auxiliary in runner.auxiliaries},
            "group_kinds": set(self.group_kinds)
            <= (set() if runner.groups is None else set(runner.groups.kinds())),
        }
        for option, is_there in present.items():
            self._refuse(
                option, bool(getattr(self, option)) and not is_there, "the runner has none; see from_runner"
            )
        if self.in_flight_policies - _honoured(runner):
            raise errors.plan_options(
                option="in_flight_policies",
                value=sorted(policy.value for policy in self.in_flight_policies),
                allowed="keep needs requests.freeze(), see wsm.actions.surfaces",
            )
        caches = (runner.kv_cache, *(auxiliary.kv_cache for auxiliary in runner.auxiliaries))
        can_hold = isinstance(runner.requests, HoldingRequestSurface) and all(
            isinstance(cache, KeepingKVCacheSurface) for cache in caches
        )
        if KVPolicy.KEEP_IN_FLIGHT in self.kv_policies and runner.kv_cache is not None and not can_hold:
            raise errors.plan_options(
                option="kv_policies",
                value=sorted(policy.value for policy in self.kv_policies),
                allowed="keep-in-flight needs requests.hold() and kv_cache.forget_idle(), see "
                "wsm.actions.surfaces",
            )

    def configured(
        self, *, shut_down_groups: bool, deadlines: Mapping[str, float], releases_cache: bool = False
    ) -> PlanOptions:
        """Return these options with what the group's configuration says where they say nothing.

        Parameters
        ----------
        shut_down_groups : bool
            As configured.
        deadlines : mapping of str to float
            As configured, seconds by action.
        releases_cache : bool
            Whether the configured strategy needs the KV caches' memory for an update in place.

        Raises
        ------
        BadInputError (``plan-options``)
            If both say something, and not the same; or the configuration asks for what cannot be.
        """
        said = "the configuration says {}: say it there alone, or the same in plan_options"
        self._refuse(
            "shut_down_groups",
            self.shut_down_groups not in (None, shut_down_groups),
            said.format(f"shut_down_groups: {str(shut_down_groups).lower()}"),
        )
        for name in self.deadlines.keys() & deadlines.keys():
            self._refuse(
                "deadlines",
                self.deadlines[name] != deadlines[name],
                said.format(f"deadlines: action_s: {name}: {deadlines[name]:g}"),
            )
        return replace(
            self,
            shut_down_groups=shut_down_groups,
            deadlines={**deadlines, **self.deadlines},
            releases_cache=self.releases_cache or (releases_cache and self.has_kv and not self.cache_only),
        )


def _honoured(runner: Runner) -> frozenset[InFlightPolicy]:
    """Return what a scheduler can do with running requests, by the surfaces that it has."""
    can_freeze = isinstance(runner.requests, FreezingRequestSurface)
    return frozenset(InFlightPolicy) - (frozenset() if can_freeze else {InFlightPolicy.KEEP})
