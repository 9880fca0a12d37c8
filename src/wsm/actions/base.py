"""What a unit of work in a transition is, and what a plan made of such units is.

An action does one thing to the engine, through the surfaces of :mod:`wsm.actions.surfaces`. It declares what
a plan, a reviewer or a fault injector wants to know. It knows neither words nor states: the worker decides
when it runs and what its outcome means. The worker makes each call from ``poll()``::

    precondition -> (vote, if collective) -> run -> probe    the good path
                                             run raises      -> undo of what was begun, in reverse

A plan is data (:mod:`wsm.actions.plan` composes it). The worker walks through it, one action per turn::

    admit            when the command is seen: refuses policies, changes nothing
    admission        run then, before anything else; what it raises refuses the command
    before_parking   run each, then keep stepping until all are settled; then park
    actions          one per poll(): precondition, vote if collective, run, probe
    (decision)
    commit           after COMMIT only; cannot fail in practice
    undo             after ABORT where the group keeps what it had: of everything that began, latest first
    (the discard plan instead of undo, where the group drops what it had)

In a hot plan a thread runs the first actions (``staging``) while the rank serves, until PREPARED. After the
decision the rank parks, runs the others (``flip``) in one poll(), and commits.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

from wsm.actions.errors import PostconditionError
from wsm.actions.surfaces import Runner, StagedWeights
from wsm.errors import InternalError, RefusedError, UnfitError
from wsm.payload import plain_facts
from wsm.states.plan_key import PlanKey
from wsm.states.vocabulary import InFlightPolicy, KVPolicy, TransferMode, UnknownTensors
from wsm.strategies.tensor import WeightTarget
from wsm.typed import CountFrom0, ShortText, annotations_of


def _no_progress() -> None:
    """Stand in for the worker's heartbeat where there is no worker, and for a look at nothing."""


def _loads_nothing(_context: object, _target: object) -> NoReturn:
    raise InternalError("a command that loads weights was made without a function that loads them")


#: What a load must say: without it the served version cannot be told.
_SAID = ("version", "digest", "manifest_digest", "bytes", "tensors")


@dataclass(frozen=True)
class Loaded:
    """What a load function says it has loaded; all of it is in the receipt.

    Parameters
    ----------
    digest, manifest_digest : str
        Of all tensors, which are read again and compared with it
        (:func:`wsm.actions.measuring.resident_digest`); and of what the source declared before it was loaded.
    manifest_scope : str or None
        A value of :class:`wsm.strategies.ManifestScope`. ``"group"``: the manifest digest is that of the
        whole version, and must be equal on all ranks.
    publication : str or None
        The publication that it is of; must be equal on all ranks, too, where the manifest digest must be.
    load_s, sync_s, apply_s : float or None
        Seconds, together and in parts.
    peak_extra_bytes, adopted_bytes : int or None
        Memory beside the model while loading, and memory of the source that the model keeps.
    partial, kept_tensors, not_loaded
        Whether tensors were allowed to be missing, how many were, and which.
    verified_tensors, unknown_tensors : int or None
        How many matched a digest that their source promised; how many the model does not have.
    through_models : bool or None
        Whether the models took the tensors by their own loaders, and may be processed then.
    bases : sequence of str or None
        The versions that this one, a part, was put on: the whole one, then other parts. wsm says so itself,
        and in `restorable` whether all of these are kept.
    tensor_set : str or None
        Which tensors models took that say nothing beforehand (:class:`wsm.strategies.load.LoadReport`).
    more : mapping
        Other facts for the receipt, JSON-ready.
    """

    version: ShortText | None
    digest: ShortText
    manifest_digest: ShortText | None
    bytes: CountFrom0
    tensors: CountFrom0
    manifest_scope: ShortText | None = None
    publication: ShortText | None = None
    files: Sequence[str] | None = None
    load_s: float | None = None
    sync_s: float | None = None
    apply_s: float | None = None
    peak_extra_bytes: int | None = None
    adopted_bytes: int | None = None
    partial: bool | None = None
    kept_tensors: int | None = None
    not_loaded: Sequence[str] | None = None
    verified_tensors: int | None = None
    unknown_tensors: int | None = None
    through_models: bool | None = None
    auxiliary_tensors: int | None = None
    bases: Sequence[ShortText] | None = None
    restorable: bool | None = None
    tensor_set: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, said: object) -> Loaded:
        """Return what a load function returned as one of these; a mapping with the same keys is one.

        The caller compares the version with its own.

        Raises
        ------
        BadInputError
            ``load-incomplete``: keys are missing; ``bad-fact``: a value is none of JSON, or not as annotated
            here.
        """
        known = vars(said) if isinstance(said, cls) else said if isinstance(said, Mapping) else {}
        if not known.keys() >= set(_SAID):
            missing = tuple(name for name in _SAID if name not in known)
            raise UnfitError(
                f"the load function returned a {type(said).__name__} without {', '.join(missing)}; return a "
                "wsm.Loaded, or a mapping with all of these",
                code="load-incomplete",
                missing=missing,
            )
        annotations = {name: kind for name, kind in annotations_of(cls).items() if name != "version"}
        facts = plain_facts("the load function", known, annotations)
        own = {name: facts.pop(name) for name in annotations if name in facts and name != "more"}
        return cls(version=facts.pop("version"), **own, more={**facts.pop("more", {}), **facts})

    def facts(self) -> dict[str, Any]:
        """Return what was said, by name; what was not said is absent."""
        fields_said = vars(self).items()
        said = {name: value for name, value in fields_said if value is not None or name in _SAID}
        del said["more"]
        return {**self.more, **said}


@dataclass
class WorkDone:
    """What the actions of one command have done so far.

    The first action that takes away something that this rank cannot restore on its own sets
    `weights_touched`. It stays set for the rest of the command: a verified load makes the new weights whole,
    not the old ones.
    """

    staged: StagedWeights | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    weights_touched: bool = False


@dataclass(frozen=True)
class ActionContext:
    """What an action may know about the command that it serves; `done` alone changes while it is carried out.

    Parameters
    ----------
    epoch, sequence : int
        Identity of the command; together they name an incarnation of what is created by it.
    version : str or None
        The version to load; None for a command that loads nothing.
    from_normal : bool
        Whether the rank had all that a step needs when the command began.
    held, set_aside : bool
        Whether the group was held when the command began, so that only a release, or an update that says so,
        admits requests; and whether that hold has set requests aside, as far as is known without the
        scheduler.
    boots : bool
        Whether no weights were committed in this epoch yet: a member of a communicator may be a new process.
    kept_digest : str or None
        Digest of the weights that computed the blocks which a clear of the weights alone has kept.
    partial : bool
        Whether the version may lack tensors, which then keep what they hold.
    bases : tuple of str
        The versions to load before `version`, which is a part: the whole one, then other parts. Empty where
        it is whole, or is put on what is held. The result must have `promised_digest`, if that is known.
    before : str or None
        The ``tensor_set`` that a load through such models must bring again; any if None, or with `anew`.
    looked, look_again
        The files that were looked at as the command began; empty where their version says what they are. The
        call raises ``source-changed`` if one of them is not what it was then.
    load : callable
        ``load(context, target) -> Loaded``: runs the configured strategy into `target` (``runner.weights``,
        watched for the first byte that is touched).
    progress : callable
        Long work calls it at least once a second to show that the rank is alive.
    transfer_mode, unknown_tensors, verify_checksum
        For this load alone; None: as configured. `rsync_config` adds options of the transport.
    cancelled : callable
        True once the group has decided against the command; long work ends with an error of its own then.
    """

    runner: Runner
    rank: int
    world_size: int
    epoch: int
    sequence: int
    version: str | None = None
    in_flight: InFlightPolicy = InFlightPolicy.ABORT
    kv_policy: KVPolicy = KVPolicy.DROP
    from_normal: bool = True
    held: bool = False
    set_aside: bool = False
    boots: bool = False
    kept_digest: str | None = None
    partial: bool = False
    bases: tuple[str, ...] = ()
    promised_digest: str | None = None
    before: str | None = None
    anew: bool = False
    looked: tuple[str, ...] = ()
    look_again: Callable[[], None] = _no_progress
    load: LoadFunction = _loads_nothing
    progress: Callable[[], None] = _no_progress
    cancelled: Callable[[], bool] = bool
    transfer_mode: TransferMode | None = None
    unknown_tensors: UnknownTensors | None = None
    verify_checksum: bool | None = None
    rsync_config: Mapping[str, Any] | None = None
    done: WorkDone = field(default_factory=WorkDone)

    @property
    def facts(self) -> dict[str, Any]:
        """What actions report for the receipt, by name."""
        return self.done.facts


#: What brings a version: ``load(context, target)`` writes every byte of it into `target`.
LoadFunction = Callable[[ActionContext, WeightTarget], Loaded | Mapping[str, Any]]


#: What stands around an action of a plan: ``around(action, context, run)`` does the work by `run()`, or
#: leaves it out where it is done. What it raises fails the command, as what the action raises.
Around: TypeAlias = Callable[["Action", ActionContext, Callable[[], None]], None]


#: Where the words of a class's name meet.
_WORDS_OF_A_CLASS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Action(abc.ABC):
    """One unit of work.

    Attributes
    ----------
    name, purpose : str
        Its name, unique within a plan: that of its class (``LoadWeights``: ``load_weights``) where it says
        none; wsm's own are in :mod:`wsm.actions.names`. And a short phrase for diagrams and reviewers.
    collective : bool
        Whether :meth:`run` needs every rank inside at the same time; it is entered after a vote only.
    touches_weights : bool
        Whether, once it has begun, this rank may be unable to serve what it served before, by its own
        means: old weights are no longer whole, or something is gone that only the whole group can rebuild.
    deadline_s : float
        Seconds for run and probe, and for the votes before a collective one. Beyond that the command is
        aborted. A collective action is interrupted where the communicators can be; others end where they
        call ``context.progress``.
    plan : str
        The name of the plan that it stands in.
    around : callable or None
        ``PlanOptions.around``.
    """

    name: str
    purpose: str
    collective: bool = False
    touches_weights: bool = False
    deadline_s: float = 60.0
    plan: str = ""
    around: Around | None = None

    def __init_subclass__(cls) -> None:
        """Name an action that says what it is for after its class, unless it says a name."""
        if "purpose" in vars(cls) and "name" not in vars(cls):
            cls.name = _WORDS_OF_A_CLASS.sub("_", cls.__name__).lower()

    def precondition(self, context: ActionContext) -> None:  # noqa: B027 - most actions have none
        """Raise :class:`wsm.actions.errors.PreconditionError` if the work must not begin; change nothing."""

    @abc.abstractmethod
    def run(self, context: ActionContext) -> None:
        """Do the work. Whatever it raises fails the command for the group."""

    def probe(self, context: ActionContext) -> None:  # noqa: B027 - the plan's verify steps probe for most
        """Raise :class:`wsm.actions.errors.PostconditionError` if the work is not done after :meth:`run`."""

    def undo(self, context: ActionContext) -> None:  # noqa: B027 - nothing to take back for most
        """Take back what :meth:`run` did, where the group keeps what it had; else the discard plan runs.

        Never collective, idempotent, and safe after a partial run.
        """

    def carry_out(self, context: ActionContext) -> None:
        """Run and probe, as a plan does: with what is around it."""
        if self.around is None:
            self.run(context)
        else:
            self.around(self, context, functools.partial(self.run, context))
        self.probe(context)

    def _expect(self, holds: object, expected: str, found: object) -> None:
        if not holds:
            raise PostconditionError(action=self.name, expected=expected, found=str(found))

    def bytes_needed(self, context: ActionContext) -> int:  # noqa: ARG002 - for those that override it
        """Memory that the action takes and keeps, in bytes."""
        return 0


@contextlib.contextmanager
def facts_kept_plain(action: Action, context: ActionContext) -> Iterator[None]:
    """Run an action, or its undo, in this context; a report can hold the facts that it has said.

    Raises
    ------
    BadInputError (``bad-fact``)
        If it said what cannot be held; its facts are as they were before.
    """
    before = dict(context.facts)
    try:
        yield
    finally:
        said, context.done.facts = context.facts, before
        known = annotations_of(Loaded)
        plain = plain_facts(f"the action {action.name}", said, known)
        unsaid = {name for name in known if plain.get(name) is None} - set(_SAID)
        context.done.facts = {name: value for name, value in plain.items() if name not in unsaid}


class SteppedAction(Action):
    """Work that the engine's own steps complete: begun before the rank parks, settled by its loop."""

    @abc.abstractmethod
    def settled(self, context: ActionContext) -> bool:
        """Whether the rank may park now. Cheap, without effects: asked in every turn of the loop."""


@dataclass(frozen=True)
class Plan:
    """The units of work of one transition.

    Parameters
    ----------
    key : PlanKey or None
        What it does; None: nothing.
    before_parking : tuple of SteppedAction
        Begun while the rank still steps.
    commit, admission : tuple of Action
        Run after COMMIT; and when the command is seen, where they change nothing. Local.
    staged : int
        How many of the actions, from the first, run beside the serving loop.
    """

    key: PlanKey | None
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

    @functools.cached_property
    def name(self) -> str:
        """The text of its key, by which diagrams, journals and errors call it."""
        return "nothing" if self.key is None else str(self.key)

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
        RefusedError (``policy-refused``)
            If the plan has not the command's KV policy or in-flight policy, or these contradict each other.
        """
        kv, in_flight = context.kv_policy, context.in_flight
        asked = f"the in-flight policy {in_flight.value!r}"
        beside = f"{asked} beside the KV policy {kv.value!r}, which it leaves nothing to keep"
        checks: tuple[tuple[str, enum.Enum, Collection[enum.Enum]], ...] = (
            (f"the KV policy {kv.value!r}", kv, self.kv_policies),
            (asked, in_flight, self.in_flight_policies),
            (beside, in_flight, {InFlightPolicy.KEEP} if kv is KVPolicy.KEEP_IN_FLIGHT else {in_flight}),
        )
        for refused, policy, supported in checks:
            if policy not in supported:
                values = tuple(sorted(each.value for each in supported))
                raise RefusedError(
                    f"the plan {self.name!r} cannot honour {refused}, nothing was changed; "
                    f"ask for: {', '.join(values)}",
                    code="policy-refused",
                    plan=self.name,
                    policy=refused,
                    supported=values,
                )


@dataclass(frozen=True)
class Plans:
    """All plans of one engine, by the text of their keys."""

    by_name: Mapping[str, Plan]

    def __iter__(self) -> Iterator[Plan]:
        """Iterate over all plans, in the order of :data:`wsm.states.plan_key.PLANS`."""
        return iter(self.by_name.values())

    @contextlib.contextmanager
    def allowing(self, seconds: float) -> Iterator[None]:
        """Let each action take so long, at least; for an engine whose own call runs inside one of them."""
        before = [(action, action.deadline_s) for plan in self for action in plan]
        for action, deadline_s in before:
            action.deadline_s = max(deadline_s, seconds)
        try:
            yield
        finally:
            for action, deadline_s in before:
                action.deadline_s = deadline_s

    def named(self, name: PlanKey | str) -> Plan:
        """Return the plan of that key, or with its text for a name."""
        return self.by_name[str(name)]
