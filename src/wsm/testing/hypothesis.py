"""A state machine for Hypothesis: commands of all kinds to a group of one's own engines, and faults anywhere.

Hypothesis is an extra (``pip install wsm[testing]``); only this module needs it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wsm.actions import names
from wsm.actions.base import ActionContext, Loaded
from wsm.actions.plan import derive_plans
from wsm.actions.surfaces import BareRunner
from wsm.errors import BadInputError, RefusedError, WsmError
from wsm.receipt import Outcome
from wsm.states.plan_key import COMMANDED
from wsm.states.vocabulary import ALL_TAGS, After, InFlightPolicy, KVPolicy, KVState, Tag, WeightState
from wsm.states.words import Operation
from wsm.strategies.tensor import WeightTarget
from wsm.testing._engine import EngineUnderTest
from wsm.testing._faults import BEHIND_A_DECISION, WAYS, Fault
from wsm.worker import Worker
from wsm.worker.errors import FlipFailedError

_Requests = Sequence[int] | None


def _drawn(choices: Callable[[Any], Sequence[Any]]) -> st.SearchStrategy[Any]:
    """Draw one of what is to be chosen from by the state of the machine."""
    return st.runner().flatmap(lambda machine: st.sampled_from(choices(machine)))


_VERSIONS = st.sampled_from(("1", "2", "step:3"))
#: The holder of the group gives commands more often than another.
_OWNERS = _drawn(lambda machine: [machine._owner or "trainer", "trainer", "operator"])
_POLICIES = _drawn(lambda machine: [each for each in InFlightPolicy if machine.can(each)])
_REQUESTS = st.lists(st.integers(1, 30), max_size=3)  # steps of each
_BEGINNING = st.none() | _REQUESTS  # the group as it is; or one that serves, with such requests
_TAGS = st.sampled_from([ALL_TAGS, frozenset({Tag.WEIGHTS}), frozenset({Tag.KV_CACHE})])


def _faults(request: Operation) -> st.SearchStrategy[Fault | None]:
    """Draw no fault, or one in an action that the machine's engine has in a plan for such a request."""
    places = _drawn(lambda machine: list(product(machine.places(request), range(machine.ranks))))
    fault = places.map(lambda drawn: Fault(*[*drawn[0], drawn[1]]))
    return st.one_of(st.none(), st.none(), fault)


class GroupMachine(EngineUnderTest, RuleBasedStateMachine):
    """Commands in any order, with faults, to a group whose every rank has an engine of yours.

    Derive from it, say how an engine is made (:class:`wsm.testing.EngineUnderTest`), add rules and
    invariants, and hand ``YourMachine.TestCase`` to pytest. The group serves when a run begins, and before
    half of its commands. A command that fails where no fault was drawn fails the run; one that is refused
    does not.

    Attributes
    ----------
    group : LocalGroup
        The group, with its engines in ``group.runners``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._owner: str | None = None  # of the hold that was decided last
        self._undo = contextlib.ExitStack()
        self._digests: dict[tuple[int, str | None], str] = {}
        self._submitted = [0] * self.ranks  # to the engine that the rank has now
        self._steps = 0  # of all requests
        self._late = set[int]()  # ranks that were asked while their requests drained
        directory = self._undo.enter_context(tempfile.TemporaryDirectory())
        self.group = self.make_group(directory)
        self._undo.callback(self.group.close)
        self._options = self.plan_options(self.group.runners[0]).configured(
            shut_down_groups=bool(self.configuration.get("shut_down_groups")), deadlines={}
        )
        self._plans = derive_plans(self._options)

    @initialize()
    def first_update(self) -> None:
        """Let the group serve, before anything is drawn."""
        self._serve()

    def can(self, policy: InFlightPolicy) -> bool:
        """Whether the engine can do this with running requests."""
        return policy in self._options.in_flight_policies

    def places(self, request: Operation) -> list[tuple[str, str, str]]:
        """List plan, action and way of everything that can fail in the plans for a request."""
        return [
            (plan.name, action.name, way)
            for plan in (self._plans.named(key) for key in COMMANDED if key.operation is request)
            for actions, ways in (
                (plan.staging if plan.staged else plan.actions, WAYS),
                (plan.flip if plan.staged else (), BEHIND_A_DECISION),
            )
            for action, way in product(actions, ways)
        ]

    @rule(tags=_TAGS, in_flight=st.none() | _POLICIES, requests=_BEGINNING, fault=_faults(Operation.CLEAR))
    def clear(self, requests: _Requests, fault: Fault | None, **options: Any) -> None:
        """Clear what the tags name."""
        with self._commanding(fault, requests):
            self.group.clear(fault=fault, **options)

    @rule(
        tags=_TAGS,
        version=_VERSIONS,
        in_flight=st.none() | _POLICIES,
        requests=_BEGINNING,
        force=st.booleans(),
        after=st.sampled_from((After.AS_BEFORE, *After)),
        owner=_OWNERS,
        fault=_faults(Operation.UPDATE),
    )
    def update(
        self, *, after: After, owner: str, requests: _Requests, fault: Fault | None, **options: Any
    ) -> None:
        """Update what the tags name, and hold the group or end its hold with that."""
        if Tag.WEIGHTS not in options["tags"]:
            options |= {"version": None, "force": False}
        with self._commanding(fault, requests):
            self.group.update(after=after, owner=owner, fault=fault, **options)
            if after is not After.AS_BEFORE:
                self._owner = (self._owner or owner) if after is After.HELD else None

    @rule(
        owner=_OWNERS,
        in_flight=_POLICIES,
        kv_policy=st.sampled_from((KVPolicy.KEEP, KVPolicy.DROP)),
        requests=_BEGINNING,
        fault=_faults(Operation.HOLD),
    )
    def hold(self, owner: str, requests: _Requests, fault: Fault | None, **options: Any) -> None:
        """Hold the group, whatever it has in memory, or renew its hold; another's is refused."""
        with self._commanding(fault, requests):
            renews = self._owner == owner
            try:
                receipt = self.group.hold(owner=owner, fault=fault, **options)
            except WsmError:
                assert fault is not None or self._owner not in (None, owner) or self._is_faulted()
                raise
            assert receipt.outcome is (Outcome.HOLD_RENEWED if renews else Outcome.HELD)
            self._owner = owner

    @rule(owner=_OWNERS, force=st.booleans())
    def release(self, owner: str, force: bool) -> None:
        """End the hold, if it is the owner's who asks and the group could serve."""
        with self._commanding():
            self.group.release(owner=owner, force=force)
            assert self._owner in (None, owner) or force, f"{owner} released the hold of {self._owner}"
            self._owner = None

    @rule(
        version=_VERSIONS,
        in_flight=st.none() | _POLICIES,
        requests=_BEGINNING,
        fault=_faults(Operation.HOT_UPDATE),
    )
    def update_hot(self, version: str, requests: _Requests, fault: Fault | None, **options: Any) -> None:
        """Update without standing still; what the engine or its state does not allow is refused.

        A rank that fails behind the decision is replaced, and the group serves what was decided.
        """
        with self._commanding(fault, requests):
            try:
                self.group.update(version, hot=True, fault=fault, **options)
            except FlipFailedError as error:
                if fault is None:
                    raise
                before = list(self.group.runners)
                self.group.replace(error.context["rank"])
                for rank, runner in enumerate(self.group.runners):
                    self._submitted[rank] *= runner is before[rank]
                versions = {worker.version for worker in self.group.workers}
                assert versions == {version}, f"version {version} was decided, and {versions} are served"

    @precondition(lambda self: not self.missing_for_requests())
    @rule(steps=_REQUESTS, turns=st.integers(0, 3))
    def submit_requests(self, steps: Sequence[int], turns: int) -> None:
        """Put the same requests into every engine, and let the loops go round some times."""
        for rank in range(self.ranks):
            self._submit(rank, *steps)
        for _ in range(turns):
            self.group.turn()

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

    @invariant()
    def no_request_is_answered_twice(self) -> None:
        """There are no more answers than requests."""
        if any(self._submitted):
            for rank, runner in enumerate(self.group.runners):
                answered = self.answered(runner)
                assert answered <= self._submitted[rank], f"rank {rank} answers {answered} requests"

    @contextlib.contextmanager
    def _commanding(self, fault: Fault | None = None, requests: _Requests = None) -> Iterator[None]:
        """Let a command be refused, or fail by a fault.

        First, if requests are given, the group serves, answers those that it has, and begins some of these.
        """
        self._late.clear()
        if requests is not None:
            self._serve()
        if requests and not self.missing_for_requests():
            self.submit_requests(steps=requests, turns=1)
            self.submit_requests(steps=requests[:1], turns=0)
        try:
            yield
        except WsmError as error:
            if fault is None and not isinstance(error, RefusedError | BadInputError):
                raise

    def _serve(self) -> None:
        """Let the group serve, whatever became of it, and give each request its answer: none may be lost."""
        if self._is_faulted():
            self.group.clear()
        if not self.group.controller.status().serving:
            keep = InFlightPolicy.KEEP if self.can(InFlightPolicy.KEEP) else None  # whatever a hold has said
            self.group.update("1", in_flight=keep, after=After.SERVE, owner=self._owner or "trainer")
            self._owner = None
        if any(self._submitted):
            self.let_answer(self.group, self._submitted, turns=4 * self._steps + 100)
            self._steps = 0

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

    def _turn(self, worker: Worker, runner: BareRunner) -> None:
        """Ask once more while the requests of a command drain, and see that this does not begin."""
        rank = worker.rank
        if not (self._drains(rank) and runner.requests.in_flight()):
            self.turn(worker, runner)
            return
        if rank not in self._late:
            self._late.add(rank)
            self._submit(rank, 1)
        before = runner.requests.in_flight() + self.answered(runner)
        self.turn(worker, runner)
        if self._drains(rank):
            begun = runner.requests.in_flight() + self.answered(runner) - before
            assert begun <= 0, f"rank {rank} begins {begun} request(s) behind stop_admitting()"

    def _drains(self, rank: int) -> bool:
        """Whether the command at hand has ended admission on a rank, and has not brought it back."""
        begun, ended = {name for _, name in self.group.begun(rank)}, names.STOP_ADMITTING
        return ended in begun and names.RESUME_ADMITTING not in begun and ended not in self.group.undone(rank)

    def _submit(self, rank: int, *steps: int) -> None:
        for each in steps:
            self.submit(self.group.runners[rank], each)
            self._submitted[rank] += 1
            self._steps += each
