"""What plans are derived from: the facts about an engine that decide which steps it needs, its own too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from wsm.actions import names
from wsm.actions.base import Action, Around
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
from wsm.errors import BadInputError
from wsm.states.vocabulary import InFlightPolicy, KVPolicy, Tag
from wsm.typed import Seconds, typed


def plan_options(*, option: str, value: object, allowed: str) -> BadInputError:
    """Return the error of options that contradict themselves or each other."""
    return BadInputError(
        f"plan option {option} = {value!r} cannot be: {allowed}",
        code="plan-options",
        option=option,
        value=value,
        allowed=allowed,
    )


@typed
@dataclass(frozen=True)
class Addition:
    """One thing that an engine takes down and brings back by actions of its own.

    Parameters
    ----------
    takes, brings : callable or None
        Each returns a new :class:`wsm.actions.base.Action` whenever a plan is derived. Both are idempotent
        and neither is collective: no rank votes before them, and in a flip what they raise leaves the rank
        broken. `takes` runs wherever what `tags` name is given back or replaced, in the teardown after a
        failure, too, where a rank is alone. `brings` runs wherever that comes or was replaced.
    tags : frozenset of Tag
        What it goes and comes with.
    takes_before, brings_after : tuple of str
        Names of actions: `takes` stands before the first of them that a plan has, `brings` behind the last.
        Empty: before the memory of `tags` goes, and once what `tags` name is verified.

    Raises
    ------
    BadInputError (``plan-options``)
        If there is no action, no tag, or an unknown name.
    """

    takes: Callable[[], Action] | None
    brings: Callable[[], Action] | None
    tags: frozenset[Tag] = frozenset({Tag.WEIGHTS})
    takes_before: tuple[str, ...] = ()
    brings_after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for missing, allowed in (
            (self.takes is None and self.brings is None, "an addition takes something down or brings it"),
            (not self.tags, "an addition goes and comes with the weights, the KV cache, or both"),
        ):
            if missing:
                raise plan_options(option="additions", value=self, allowed=allowed)
        for name in (*self.takes_before, *self.brings_after):
            if name not in names.ALL:
                raise plan_options(
                    option="additions",
                    value=name,
                    allowed="the place of an addition is one of wsm.actions.names",
                )

    def actions(self) -> Iterator[Action]:
        """Make one of each action, to ask what it says of itself; BadInputError if that makes none."""
        for make in filter(None, (self.takes, self.brings)):
            problem = "it returns an Action"
            try:
                action = make()
            except Exception as error:  # noqa: BLE001 - of the engine's own
                action, problem = None, f"it raised {type(error).__name__}: {error}"
            if not isinstance(action, Action):
                raise plan_options(option="additions", value=make, allowed=problem)
            yield action


@typed
@dataclass(frozen=True)
class PlanOptions:
    """One engine's configuration, as far as it concerns plans.

    Parameters
    ----------
    capture_is_collective, rebuild_is_collective : bool
        Whether capturing graphs runs collectives, so that an aborted command cannot capture again on its own;
        whether another process beside all ranks takes part in rebuilding the KV cache. Both are voted on.
    cache_only : bool
        Whether there is nothing but a KV cache: a process that holds it for the ranks.
    auxiliaries : tuple of str
        Names of the auxiliary models (MTP).
    shut_down_groups : bool or None
        Whether clear shuts communicators down (``--shutdown-comm-group-if-worker-idle``); None: as
        configured.
    rejoins : bool
        Whether one rank alone can give up communicators, and the buffer on them, so that its process outlives
        the death of a peer. Then the first update of each epoch creates them.
    processes_loaded : bool
        Whether the engine makes something else of a checkpoint that its models have loaded
        (:class:`wsm.actions.surfaces.ProcessingRunner`).
    releases_cache : bool
        Whether an update in place frees the KV caches for its time: the load needs the room.
    kv_policies, in_flight_policies : frozenset
        What may become of KV blocks of the old weights, and of running requests.
    resident_digest : callable
        Digest of all resident bytes, comparable with the one that the load strategy reports.
    address_contract : AddressContract or None
        Set where captured storage addresses must survive an update, or are recorded anew by capturing.
    deadlines : mapping of str to float
        Seconds by an action's name; the others are the configuration's, or the action's own.
    around : callable or None
        ``around(action, context, run)`` is called in the place of the run of each action of a plan, and calls
        `run()`: to say or measure something, or to do the engine's own work first. Where it calls nothing,
        the action's probe sees whether the work is done.

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
    deadlines: Mapping[str, Seconds] = field(default_factory=dict)
    additions: tuple[Addition, ...] = ()
    around: Around | None = None

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
        actions = [action for addition in self.additions for action in addition.actions()]
        added = [action.name for action in actions]
        for action in actions:
            name, taken = action.name, action.name in names.ALL or added.count(action.name) > 1
            self._refuse("additions", taken, f"an action has a name of its own, and {name!r} is taken")
            why = "it runs behind the decision for a hot update, and in teardowns, where no rank votes"
            self._refuse("additions", action.collective, f"{name!r} cannot be collective: {why}")
        for name in self.deadlines:
            known = name in names.ALL or name in added
            self._refuse("deadlines", not known, f"unknown action {name!r}, see wsm.actions.names")

    def _refuse(self, option: str, contradiction: bool, allowed: str) -> None:
        if contradiction:
            raise plan_options(option=option, value=getattr(self, option), allowed=allowed)

    @classmethod
    def from_runner(
        cls,
        runner: BareRunner,
        **said: Any,
    ) -> PlanOptions:
        """Read from a runner which surfaces it has; `said`: options that a runner cannot tell, by name.

        A runner that has work of its own in plans lists it in an attribute `additions`. Without
        `in_flight_policies` these are all that the runner's scheduler can honour.

        Raises
        ------
        BadInputError (``plan-options``)
            If options contradict each other, or promise what the runner cannot do (:meth:`require_offered`).
        """
        runner = completed(runner)
        alone = runner.deepep is None or isinstance(runner.deepep, AbandonableBuffer)
        read = {
            **_surfaces_of(runner),
            "rejoins": alone and isinstance(runner.groups, AbandonableGroups),
            "processes_loaded": processing_of(runner) is not None,
            "in_flight_policies": _honoured(runner),
            "additions": tuple(getattr(runner, "additions", ())),
        }
        options = cls(**{**read, **said})
        options.require_offered(runner)
        return options

    def require_offered(self, runner: Runner) -> None:
        """See that a runner can do all that these options promise, before anything relies on it.

        Raises
        ------
        BadInputError (``plan-options``)
            If the runner lacks a surface, or a policy needs more than its scheduler or caches offer.
        """
        for option, there in _surfaces_of(runner).items():
            asked = getattr(self, option)
            lacking = set(asked) - set(there) if isinstance(there, tuple) else asked and not there
            self._refuse(option, bool(lacking), "the runner has none; see from_runner")
        self._refuse(
            "in_flight_policies",
            bool(self.in_flight_policies - _honoured(runner)),
            "keep needs requests.freeze(), see wsm.actions.surfaces",
        )
        caches = (runner.kv_cache, *(auxiliary.kv_cache for auxiliary in runner.auxiliaries))
        can_hold = isinstance(runner.requests, HoldingRequestSurface) and all(
            isinstance(cache, KeepingKVCacheSurface) for cache in caches
        )
        holds = KVPolicy.KEEP_IN_FLIGHT in self.kv_policies and runner.kv_cache is not None
        self._refuse(
            "kv_policies",
            holds and not can_hold,
            "keep-in-flight needs requests.hold() and kv_cache.forget_idle(), see wsm.actions.surfaces",
        )

    def configured(
        self, *, shut_down_groups: bool, deadlines: Mapping[str, float], releases_cache: bool = False
    ) -> PlanOptions:
        """Return these options with what the group's configuration says where they say nothing (seconds).

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


def _surfaces_of(runner: Runner) -> dict[str, Any]:
    return {
        "has_graphs": runner.graphs is not None,
        "has_draft_graphs": any(auxiliary.graphs is not None for auxiliary in runner.auxiliaries),
        "has_deepep": runner.deepep is not None,
        "has_kv": runner.kv_cache is not None,
        "routing_replay": runner.routing_replay is not None,
        "auxiliaries": tuple(auxiliary.name for auxiliary in runner.auxiliaries),
        "group_kinds": () if runner.groups is None else tuple(runner.groups.kinds()),
    }


def _honoured(runner: Runner) -> frozenset[InFlightPolicy]:
    can_freeze = isinstance(runner.requests, FreezingRequestSurface)
    return frozenset(InFlightPolicy) - (frozenset() if can_freeze else {InFlightPolicy.KEEP})
