"""What a unit of work in a transition is, and what a plan made of such units is.

An action does one thing to the engine, through the surfaces of :mod:`wsm.actions.surfaces`. It
declares everything that a plan, a reviewer or a fault injector wants to know about it, so that the
worker can run it without knowing what it does. It knows neither words nor states: the worker
decides when it runs and what its outcome means.

Life of one action, each call made by the worker from ``poll()``, never from a machine's callback::

    precondition -> (vote, if collective) -> run -> probe    the good path
                                             run raises      -> undo of what was begun, in reverse

A plan is data. It runs nothing; the worker walks through it, one action per turn. How a plan comes
about is in :mod:`wsm.actions.plan`, what order it must have in :mod:`wsm.actions.order`. What the
worker does with a plan::

    admit            when the command is seen: refuses policies, changes nothing
    admission        run then, before anything else; what it raises refuses the command
    before_parking   run each, then keep stepping until all are settled; then park
    actions          one per poll(): precondition, vote if collective, run, probe
    (decision)
    commit           after COMMIT only; cannot fail in practice
    undo             after ABORT where the group keeps what it had: of everything that began, latest first
    (the discard plan instead of undo, where the group drops what it had)

A hot plan differs: its first actions run beside the serving loop, the others after the decision::

    staging          in a thread, while the rank serves; then PREPARED
    (decision)
    before_parking   as above
    flip             all in one poll()
    commit           as above
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from wsm.actions import errors
from wsm.actions.errors import PreconditionError, load_incomplete
from wsm.actions.surfaces import Runner, StagedWeights
from wsm.states.plan_key import CLEAR, DISCARD, HOT, REJOIN, UPDATE, UPDATE_IN_PLACE, PlanKey
from wsm.states.vocabulary import InFlightPolicy, KVPolicy, TransferMode, UnknownTensors
from wsm.strategies.tensor import WeightTarget


def _no_progress() -> None:
    """Stand in for the worker's heartbeat where there is no worker, and for a look at nothing."""


#: What a load must say: without it the served version cannot be told.
_SAID = ("version", "digest", "manifest_digest", "bytes", "tensors")


@dataclass(frozen=True)
class Loaded:
    """What a load function says it has loaded; all of it is in the receipt.

    Parameters
    ----------
    version : str or None
        The version: the one that was asked for, if one was.
    digest : str
        Of all tensors, comparable with that of the resident bytes
        (:func:`wsm.actions.measuring.resident_digest`); they are read again and compared with it.
    manifest_digest : str
        Of what the source declared before it was loaded.
    bytes, tensors : int
        How much was loaded.
    manifest_scope : str or None
        A value of :class:`wsm.strategies.ManifestScope`. ``"group"``: the manifest digest is that of the
        whole publication, and must be equal on all ranks.
    files : sequence of str
        What was read.
    load_s, sync_s, apply_s : float or None
        Seconds, together and in parts.
    peak_extra_bytes, adopted_bytes : int or None
        Memory beside the model while loading, and memory of the source that the model keeps.
    partial : bool or None
        Whether tensors were allowed to be missing.
    kept_tensors : int or None
        How many of them were.
    not_loaded : sequence of str or None
        Which.
    verified_tensors : int or None
        How many tensors had a digest that their source promised, which matched.
    unknown_tensors : int or None
        How many tensors of the source were left out since the model does not have them.
    through_models : bool or None
        Whether the models took the tensors by their own loaders, and may be processed then.
    auxiliary_tensors : int or None
        How many tensors were for auxiliary models, too.
    more : mapping
        Other facts for the receipt, JSON-ready.
    """

    version: str | None
    digest: str
    manifest_digest: str
    bytes: int
    tensors: int
    manifest_scope: str | None = None
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
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, said: object) -> Loaded:
        """Return what a load function returned as one of these; a mapping with the same keys is one.

        Raises
        ------
        BadInputError
            ``load-incomplete``, naming all keys that are missing.
        """
        if isinstance(said, cls):
            return said
        known = dict(said) if isinstance(said, Mapping) else {}
        if not known.keys() >= set(_SAID):
            missing = tuple(name for name in _SAID if name not in known)
            raise load_incomplete(missing, found=type(said).__name__)
        own: dict[str, Any] = {}
        more = {**known.pop("more", {})}
        for name, value in known.items():
            (own if name in _OF_LOADED else more)[name] = value
        return cls(**own, more=more)

    def facts(self) -> dict[str, Any]:
        """Return what was said, by name; what was not said is absent."""
        fields_said = vars(self).items()
        said = {name: value for name, value in fields_said if value is not None or name in _SAID}
        del said["more"]
        return {**said, **self.more}


_OF_LOADED = frozenset(one.name for one in fields(Loaded)) - {"more"}


#: What brings a version: ``load(context, target)`` writes every byte of it into `target`.
LoadFunction = Callable[["ActionContext", WeightTarget], Loaded | Mapping[str, Any]]


@dataclass
class ActionContext:
    """What an action may know about the command that it serves.

    Parameters
    ----------
    runner : Runner
        The engine's surfaces.
    rank, world_size : int
        This rank and the number of ranks in the group.
    epoch, sequence : int
        Identity of the command; together they name an incarnation of what is created by it.
    version : str or None
        The version to load; None for a command that loads nothing.
    in_flight : InFlightPolicy
        What becomes of running requests.
    kv_policy : KVPolicy
        What becomes of the KV cache.
    from_normal : bool
        Whether the rank had all that a step needs when the command began.
    held : bool
        Whether the group was held when the command began: nothing but a release, or an update that says so,
        admits requests again.
    set_aside : bool
        Whether that hold has set requests aside, as far as it is known without asking the scheduler.
    boots : bool
        Whether no weights were committed in this epoch yet: a member of a communicator may be a new process.
    kept_digest : str or None
        Digest of the weights that computed the blocks which a clear of the weights alone has kept; None where
        the cache holds no such blocks.
    partial : bool
        Whether the version may lack tensors, which then keep what they hold.
    bases : tuple of str
        The versions to load before `version`, which is a part and put on them: the whole one, then other
        parts. Empty where it is whole, or is put on what is held.
    promised_digest : str or None
        Digest of all tensors that a load with `bases` must come to; None where it is not known.
    looked : tuple of str
        The files to load that were looked at as the command began; empty where their version says what they
        are.
    look_again : callable
        Raises ``source-changed`` if one of these is not what it was then.
    load : callable or None
        ``load(context, target) -> Loaded``: runs the configured strategy into `target` (which is
        ``runner.weights``, watched for the first byte that is touched). None where nothing is loaded.
    progress : callable
        To be called at least once a second by long work; shows that the rank is alive.
    transfer_mode : TransferMode or None
        By which way the version travels; None for the configured one.
    unknown_tensors : UnknownTensors or None
        What becomes of tensors that the model does not have; None: as configured.
    verify_checksum : bool or None
        Whether a stream must promise digests; None: as configured.
    rsync_config : mapping or None
        Options of the transport for this load alone, besides those that are configured.
    cancelled : callable
        True once the group has decided against the command; long work ends with an error of its own then.

    Attributes
    ----------
    staged : StagedWeights or None
        What a hot update has staged so far, or has flipped and not yet let go.
    facts : dict
        What actions report for the receipt, by name.
    weights_touched : bool
        Set by the first action that takes away something that this rank cannot restore on its own. It
        stays set for the rest of the command: a verified load makes the new weights whole, not the old ones.
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
    looked: tuple[str, ...] = ()
    look_again: Callable[[], None] = _no_progress
    load: LoadFunction | None = None
    progress: Callable[[], None] = _no_progress
    cancelled: Callable[[], bool] = bool
    transfer_mode: TransferMode | None = None
    unknown_tensors: UnknownTensors | None = None
    verify_checksum: bool | None = None
    rsync_config: Mapping[str, Any] | None = None
    staged: StagedWeights | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    weights_touched: bool = False


class Action(abc.ABC):
    """One unit of work.

    Attributes
    ----------
    name : str
        One of :mod:`wsm.actions.names`, unique within a plan; what reports and receipts call it.
    purpose : str
        One short phrase for diagrams and reviewers.
    collective : bool
        Whether :meth:`run` needs every rank inside at the same time; it is entered after a vote only.
    touches_weights : bool
        Whether, once it has begun, this rank may be unable to serve what it served before, by its own
        means: old weights are no longer whole, or something is gone that only the whole group can rebuild.
    deadline_s : float
        Seconds that it may take, run and probe, and that ranks wait for each other's votes before a
        collective one. Beyond that the command is aborted; a collective one is interrupted where the
        communicators can be, others end where they call ``context.progress``.
    """

    name: str
    purpose: str
    collective: bool = False
    touches_weights: bool = False
    deadline_s: float = 60.0

    def precondition(self, context: ActionContext) -> None:  # noqa: B027 - most actions have none
        """Refuse to begin.

        Raises
        ------
        wsm.actions.errors.PreconditionError
            If the work must not begin; nothing was changed.
        """

    @abc.abstractmethod
    def run(self, context: ActionContext) -> None:
        """Do the work. Whatever it raises fails the command for the group."""

    def probe(self, context: ActionContext) -> None:  # noqa: B027 - the plan's verify steps probe for most
        """Measure that the work is really done.

        Raises
        ------
        wsm.actions.errors.PostconditionError
            If it is not, although :meth:`run` returned.
        """

    def undo(self, context: ActionContext) -> None:  # noqa: B027 - nothing to take back for most
        """Take back what :meth:`run` did, where the group keeps what it had.

        Never collective, idempotent, and safe after a partial run. Not called where the outcome is that
        everything is dropped: the discard plan runs then.
        """

    def bytes_needed(self, context: ActionContext) -> int:  # noqa: ARG002 - for those that override it
        """Memory that the action takes and keeps, in bytes."""
        return 0


class SteppedAction(Action):
    """Work that the engine's own steps complete: begun once, then the loop goes on until it is settled.

    Such an action runs before the rank parks, since a parked rank steps no more.
    """

    @abc.abstractmethod
    def settled(self, context: ActionContext) -> bool:
        """Whether the rank may park now. Cheap, without effects: asked in every turn of the loop."""


def require_load(context: ActionContext, *, action: str) -> None:
    """Refuse a command that brings nothing to load (PreconditionError)."""
    if context.load is None:
        raise PreconditionError(
            action=action,
            found="the command has no load function",
            fix="configure a load strategy for this worker",
        )


def require_digest(context: ActionContext, *, action: str) -> None:
    """Refuse to verify what does not say what it should be (PreconditionError)."""
    if not context.facts.get("digest"):
        raise PreconditionError(
            action=action,
            found="the load reported no digest",
            fix="a load strategy must report the digest of what it applied",
        )


@dataclass(frozen=True)
class Plan:
    """The units of work of one transition.

    Parameters
    ----------
    key : PlanKey or None
        What it does; None: nothing.
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
            If the command's KV policy or in-flight policy is not among the plan's, or if the KV policy is
            about running requests and the in-flight policy leaves none.
        """
        if context.kv_policy not in self.kv_policies:
            raise errors.policy_refused(
                plan=self.name,
                policy=f"the KV policy {context.kv_policy.value!r}",
                supported=sorted(policy.value for policy in self.kv_policies),
            )
        if context.in_flight not in self.in_flight_policies:
            raise errors.policy_refused(
                plan=self.name,
                policy=f"the in-flight policy {context.in_flight.value!r}",
                supported=sorted(policy.value for policy in self.in_flight_policies),
            )
        if context.kv_policy is KVPolicy.KEEP_IN_FLIGHT and context.in_flight is not InFlightPolicy.KEEP:
            raise errors.policy_refused(
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
    by_name : mapping of str to Plan
        Every plan, by the text of its key.
    """

    by_name: Mapping[str, Plan]

    def __iter__(self) -> Iterator[Plan]:
        """Iterate over all plans, in the order of :data:`wsm.states.plan_key.PLANS`."""
        return iter(self.by_name.values())

    def named(self, name: PlanKey | str) -> Plan:
        """Return the plan of that key, or with its text for a name."""
        plan = self._by_key.get(name)
        return self.by_name[str(name)] if plan is None else plan

    @functools.cached_property
    def _by_key(self) -> Mapping[PlanKey | str | None, Plan]:
        """Every plan by its key, whose text need not be composed for each command."""
        return {plan.key: plan for plan in self.by_name.values()}

    @property
    def clear(self) -> Plan:
        """From serving to nothing held."""
        return self.named(CLEAR)

    @property
    def update(self) -> Plan:
        """From nothing held to ready to step."""
        return self.named(UPDATE)

    @property
    def update_in_place(self) -> Plan:
        """From serving one version to ready to step with another, without giving memory back."""
        return self.named(UPDATE_IN_PLACE)

    @property
    def hot(self) -> Plan:
        """From serving one version to serving another that was staged beside it."""
        return self.named(HOT)

    @property
    def discard(self) -> Plan:
        """From anywhere to nothing held, by this rank alone: for commands whose outcome is "drop".

        Groups and the DeepEP buffer stay as they are; the next update finds them so on every rank.
        """
        return self.named(DISCARD)

    @property
    def rejoin(self) -> Plan:
        """Before a discard, where the epoch has ended: lets go alone of what broke with a peer."""
        return self.named(REJOIN)
