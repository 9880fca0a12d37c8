"""A state machine for Hypothesis: commands of all kinds to a group of one's own engines, and faults anywhere.

Hypothesis is an extra (``pip install wsm[testing]``); only this module needs it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from itertools import product
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from wsm.actions.base import ActionContext, Loaded
from wsm.actions.options import PlanOptions
from wsm.actions.plan import derive_plans
from wsm.actions.surfaces import BareRunner
from wsm.errors import WsmError
from wsm.receipt import Outcome
from wsm.states.plan_key import COMMANDED, Request
from wsm.states.vocabulary import ALL_TAGS, After, InFlightPolicy, KVPolicy, KVState, Tag, WeightState
from wsm.strategies.tensor import WeightTarget
from wsm.testing._faults import BEHIND_A_DECISION, WAYS, Fault
from wsm.testing._group import LocalGroup, load_bytes
from wsm.worker.errors import FlipFailedError

_VERSIONS = st.sampled_from(("1", "2", "step:3"))
_OWNERS = st.sampled_from(("trainer", "operator"))
_TAGS = st.sampled_from([ALL_TAGS, frozenset({Tag.WEIGHTS}), frozenset({Tag.KV_CACHE})])


def _faults(request: Request) -> st.SearchStrategy[Fault | None]:
    """Draw no fault, or one in an action that the machine's engine has in a plan for such a request."""
    place = st.runner().flatmap(lambda machine: st.sampled_from(machine.places(request)))
    fault = st.builds(
        lambda place, rank: Fault(place[0], place[1], place[2], rank),
        place,
        st.runner().flatmap(lambda machine: st.integers(0, machine.ranks - 1)),
    )
    return st.one_of(st.none(), st.none(), fault)


class GroupMachine(RuleBasedStateMachine):
    """Commands in any order, with faults, to a group whose every rank has an engine of yours.

    Derive from it, say how an engine is made, add rules and invariants, and hand ``YourMachine.TestCase`` to
    pytest. All ranks live in one thread (:class:`wsm.testing.LocalGroup`).

    Attributes
    ----------
    ranks : int
        Ranks of the group.
    configuration : mapping
        Other options of :class:`wsm.WsmConfig`.
    group : LocalGroup
        The group, with its engines in ``group.runners``.
    """

    ranks: int = 2
    configuration: Mapping[str, Any] = {}

    def __init__(self) -> None:
        super().__init__()
        self._owner: str | None = None  # of the hold that was decided last
        self._undo = contextlib.ExitStack()
        self._digests: dict[tuple[int, str | None], str] = {}
        directory = self._undo.enter_context(tempfile.TemporaryDirectory())
        self.group = LocalGroup(
            self.make_runner,
            directory,
            ranks=self.ranks,
            load=self._load,
            plan_options=self.plan_options,
            configuration=self.configuration,
        )
        self._undo.callback(self.group.close)
        self._options = self.plan_options(self.group.runners[0]).configured(
            shut_down_groups=bool(self.configuration.get("shut_down_groups")), deadlines={}
        )
        self._plans = derive_plans(self._options)

    def make_runner(self, rank: int) -> BareRunner:
        """Return a new engine that holds no weights and no KV cache.

        Raises
        ------
        NotImplementedError
            Unless the machine says how.
        """
        raise NotImplementedError

    def plan_options(self, runner: BareRunner) -> PlanOptions:
        """Return what plans are derived from; by default, what the runner's surfaces say."""
        return PlanOptions.from_runner(runner)

    def load(self, context: ActionContext, target: WeightTarget) -> Loaded | Mapping[str, Any]:
        """Load a version; by default every byte of version v is v."""
        return load_bytes(context, target)

    def places(self, request: Request) -> list[tuple[str, str, str]]:
        """List plan, action and way of everything that can fail in the plans for a request."""
        plans = [self._plans.named(key) for key in COMMANDED if key.operation is request]
        return [
            (plan.name, action.name, way)
            for plan in plans
            for actions, ways in (
                (plan.staging if plan.staged else plan.actions, WAYS),
                (plan.flip if plan.staged else (), BEHIND_A_DECISION),
            )
            for action, way in product(actions, ways)
        ]

    @rule(tags=_TAGS, fault=_faults(Request.CLEAR))
    def clear(self, tags: frozenset[Tag], fault: Fault | None) -> None:
        """Clear what `tags` name."""
        with contextlib.suppress(WsmError):
            self.group.clear(tags=tags, fault=fault)

    @rule(
        tags=_TAGS,
        version=_VERSIONS,
        force=st.booleans(),
        after=st.sampled_from(After),
        owner=_OWNERS,
        fault=_faults(Request.UPDATE),
    )
    def update(
        self,
        *,
        tags: frozenset[Tag],
        version: str,
        force: bool,
        after: After,
        owner: str,
        fault: Fault | None,
    ) -> None:
        """Update what `tags` name, and hold the group or end its hold with that."""
        named = version if Tag.WEIGHTS in tags else None
        with contextlib.suppress(WsmError):
            self.group.update(named, tags=tags, force=force, after=after, owner=owner, fault=fault)
            if after is not After.AS_BEFORE:
                self._owner = (self._owner or owner) if after is After.HELD else None

    @rule(
        owner=_OWNERS,
        kv_policy=st.sampled_from((KVPolicy.KEEP, KVPolicy.DROP)),
        fault=_faults(Request.HOLD),
    )
    def hold(self, owner: str, kv_policy: KVPolicy, fault: Fault | None) -> None:
        """Hold the group, whatever it has in memory, or renew its hold; another's is refused."""
        renews = self._owner == owner
        try:
            receipt = self.group.hold(owner=owner, kv_policy=kv_policy, fault=fault)
        except WsmError:
            assert fault is not None or self._owner not in (None, owner) or self._is_faulted()
        else:
            assert receipt.outcome is (Outcome.HOLD_RENEWED if renews else Outcome.HELD)
            self._owner = owner

    @rule(owner=_OWNERS, force=st.booleans())
    def release(self, owner: str, force: bool) -> None:
        """End the hold, if it is the owner's who asks and the group could serve."""
        with contextlib.suppress(WsmError):
            self.group.release(owner=owner, force=force)
            assert self._owner in (None, owner) or force, f"{owner} released the hold of {self._owner}"
            self._owner = None

    @rule(version=_VERSIONS, fault=_faults(Request.HOT_UPDATE))
    def update_hot(self, version: str, fault: Fault | None) -> None:
        """Update without standing still; what the engine or its state does not allow is refused.

        A rank that fails behind the decision is replaced, and the group serves what was decided.
        """
        try:
            self.group.update(version, hot=True, in_flight=InFlightPolicy.ABORT, fault=fault)
        except FlipFailedError as error:
            self.group.replace(error.context["rank"])
            versions = {worker.version for worker in self.group.workers}
            assert versions == {version}, f"version {version} was decided, and {versions} are served"
        except WsmError:
            pass

    @invariant()
    def steps_are_made_by_one_whole_version(self) -> None:
        """Every rank steps or none, with the version that each has in memory, byte for byte."""
        version = self.group.step()
        status = self.group.controller.status()
        hold = None if status.hold is None else status.hold.owner
        assert hold == self._owner, f"the hold is {hold}'s, and that of {self._owner} was decided last"
        assert version is None or hold is None, f"a step by {version} between a hold and its release"
        assert status.serving is (version is not None), f"{status} and a step by {version}"
        for rank, runner in enumerate(self.group.runners if version is not None else ()):
            digest = self._options.resident_digest(runner.weights, lambda: None)
            assert digest == self._digests[rank, version], f"rank {rank} serves other bytes as {version}"

    @invariant()
    def every_rank_is_in_one_state(self) -> None:
        """One outcome for all, and what is said to be gone holds no memory."""
        workers = self.group.workers
        states = {(worker.weights, worker.kv, worker.version) for worker in workers}
        if WeightState.FAULTED not in {weights for weights, _, _ in states}:
            assert len(states) == 1, f"ranks differ: {states}"
        for worker, up in zip(workers, self.group.memory(), strict=True):
            if worker.weights is WeightState.CLEARED:
                assert not up["weights"], f"rank {worker.rank} is CLEARED and has weights"
            if worker.kv is KVState.CLEARED:
                assert not up.get("kv_cache"), f"rank {worker.rank} is CLEARED and has a KV cache"

    def _is_faulted(self) -> bool:
        return WeightState.FAULTED in {worker.weights for worker in self.group.workers}

    def teardown(self) -> None:
        """See that the journals are possible, and close the group."""
        with self._undo:
            self.group.check_journals()

    def _load(self, context: ActionContext, target: WeightTarget) -> Loaded:
        loaded = Loaded.of(self.load(context, target))
        self._digests[context.rank, loaded.version] = loaded.digest
        return loaded
