"""What a caller asks: the keywords of every command, each written once, and the request that they make.

A request that contradicts itself is refused here, before a group is looked at.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec import structs

from wsm import traces
from wsm.clock import monotonic_ns
from wsm.command import (
    MAX_REQUEST_ID,
    CommandArguments,
    checked_request_id,
    checked_tags,
    partial_update_refused,
)
from wsm.controller.errors import CommandRefusedError, RankFailedError
from wsm.errors import BadInputError, RefusedError, WsmError
from wsm.labels import checked_version
from wsm.receipt import named
from wsm.states.holding import ANY_OWNER, Hold
from wsm.states.vocabulary import (
    ALL_TAGS,
    After,
    HotFallback,
    InFlightPolicy,
    KVPolicy,
    OnFailure,
    OnLease,
    Tag,
    TransferMode,
    UnknownTensors,
    WeightState,
)
from wsm.states.words import Operation
from wsm.typed import Seconds, Wait, annotations_of, require

#: How long a decided command may take to be over on every rank before the caller is told, in seconds.
SETTLE_S = 30.0

#: A record has room for so much beside a version and a hold.
_OPTIONS_BYTES = 8 * 1024

#: What says nothing of an update that loads no weights.
_OF_WEIGHTS = (
    "version",
    "force",
    "partial",
    "transfer_mode",
    "unknown_tensors",
    "verify_checksum",
    "rsync_config",
)

_Self = TypeVar("_Self")
_Keywords = TypeVar("_Keywords")
_Given = TypeVar("_Given")
_P = ParamSpec("_P")


@dataclass(frozen=True)
class CommandRequest:
    """One request to a :class:`wsm.Controller`.

    `arguments`: what travels with it, as far as it is known before the group is looked at.
    `still_wanted`: asked once it is this request's turn, before anything is written.
    `fallback`: why an update that was asked for hot is done in place.
    `in_flight`: as the caller said; None: as the hold says that the group stands under, else the usual one.
    `hold`: the id of the hold that must be in force; None: it does not matter.
    `forced`: of a release: whether another's hold is released, too.
    `on_failure`: what is to become of a group that served; None: as the group is configured.
    """

    operation: Operation
    arguments: CommandArguments
    deadline_s: float
    settle_s: float
    wait_s: float = 0.0
    still_wanted: Callable[[], bool] | None = None
    fallback: str | None = None
    in_flight: InFlightPolicy | None = None
    hold: str | None = None
    owner: str = ""
    forced: bool = False
    on_failure: OnFailure | None = None

    def of_admission(self) -> CommandRequest:
        """Return what is left of an update whose version is there already: a hold, or a release."""
        operation = Operation.HOLD if self.arguments.after is After.HELD else Operation.RELEASE
        asked = structs.replace(
            self.arguments, version=None, tags=frozenset(), kv_policy=KVPolicy.KEEP, of_admission=True
        )
        return replace(self, operation=operation, arguments=asked, forced=True)

    def in_place(self, why: str) -> CommandRequest:
        """Return the ordinary update that does the same with a longer pause."""
        return replace(self, operation=Operation.UPDATE, fallback=why)

    def possible_from(self, state: WeightState) -> CommandRequest:
        """Return what is to be done where the group is: this, or in place what cannot be hot there.

        Raises
        ------
        RefusedError
            If it cannot be hot, and must not be done otherwise.
        """
        if not self.operation.is_hot or state is WeightState.NORMAL:
            return self
        refusal = RefusedError(
            f"a hot update stages beside a version that serves, and every rank is {state.name}; nothing was "
            "changed: ask for an ordinary update, or allow it with the fallback in_place",
            code="nothing-served",
            state=state.name,
        )
        if self.arguments.hot_fallback is HotFallback.REFUSE:
            raise refusal
        return self.in_place(str(refusal))

    def after(self, error: WsmError) -> CommandRequest | None:
        """Return what is to be tried once its command has ended so; None: nothing.

        Only a hot update whose fallback says so is done in place, and only for refusals that an ordinary
        update does not share: a version that cannot be read is no better in place.
        """
        allowed = self.operation.is_hot and self.arguments.hot_fallback is HotFallback.IN_PLACE
        refused = isinstance(error, CommandRefusedError | RankFailedError) and error.context["no_room"]
        return self.in_place(str(error)) if allowed and refused else None


def plain_options(rsync_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options that travel with a command as JSON, and outlive it in the group's record.

    Raises
    ------
    BadInputError
        If they are no plain values, or longer than 8 KiB.
    """
    try:
        text, problem = json.dumps(dict(rsync_config), allow_nan=False), ""
    except (TypeError, ValueError, RecursionError) as error:
        text, problem = "", str(error)
    if len(text) > _OPTIONS_BYTES:
        problem = f"it has {len(text)} bytes of {_OPTIONS_BYTES}"
    if problem:
        raise BadInputError(
            f"rsync_config is no mapping of plain values: {problem}; give FastDeploy's options as JSON has "
            "them",
            code="bad-rsync-config",
            problem=problem,
        )
    return dict(json.loads(text))


def _tags_contradict(tags: frozenset[Tag], argument: str, why: str) -> BadInputError:
    return BadInputError(
        f"{argument!r} says nothing for the tags {', '.join(named(tags))}: {why}; leave one of the two away",
        code="tags-contradict",
        tags=named(tags),
        argument=argument,
        why=why,
    )


def request_id_of(asked: str | None) -> str:
    """Return the name of a request, drawn if none was given; raises BadInputError (``request-id``)."""
    return os.urandom(16).hex() if asked is None else checked_request_id(asked)


def admission_of(
    request_id: str,
    after: After,
    *,
    in_flight: InFlightPolicy = InFlightPolicy.KEEP,
    kv_policy: KVPolicy = KVPolicy.KEEP,
    **more: Any,
) -> CommandArguments:
    """Return the arguments of a hold or a release, which brings and takes nothing."""
    none: frozenset[Tag] = frozenset()
    return CommandArguments(
        request_id,
        in_flight=in_flight,
        kv_policy=kv_policy,
        tags=none,
        after=after,
        of_admission=True,
        **more,
    )


def hold_of(
    hold_id: str,
    owner: str,
    in_flight: InFlightPolicy,
    kv_policy: KVPolicy,
    *,
    lease_s: float | None = None,
    on_lease: OnLease = OnLease.STAY,
) -> Hold:
    """Return a hold that is asked for now; raises BadInputError if owner or policy are none."""
    argument, value, problem = "", "", ""
    if not owner.isprintable() or not 0 < len(owner) <= MAX_REQUEST_ID:
        argument, value = "owner", owner
        problem = f"an owner is a name of 1 to {MAX_REQUEST_ID} characters that can be printed"
    elif kv_policy not in (KVPolicy.KEEP, KVPolicy.DROP):
        argument, value, problem = "kv_policy", str(kv_policy), "a hold keeps all blocks or drops all"
    if problem:
        raise BadInputError(
            f"{argument} is {value!r:.300}: {problem}", code="bad-hold", argument=argument, value=value
        )
    return Hold(hold_id, owner, in_flight, kv_policy, lease_s, on_lease, monotonic_ns())


@dataclass(frozen=True, kw_only=True)
class _CommandKeywords:
    """What every command takes, whatever it asks."""

    deadline_s: Seconds = 60.0
    settle_s: Wait = SETTLE_S
    wait_s: Wait | None = None
    request_id: str | None = None
    still_wanted: Callable[[], bool] | None = None

    def _asking(self, operation: Operation, arguments: CommandArguments, **more: Any) -> CommandRequest:
        traceparent = traces.current_traceparent()
        if traceparent is not None:
            arguments = structs.replace(arguments, traceparent=traceparent)
        wait_s = self.deadline_s if self.wait_s is None else self.wait_s
        times = self.deadline_s, self.settle_s, wait_s
        return CommandRequest(operation, arguments, *times, still_wanted=self.still_wanted, **more)


@dataclass(frozen=True, kw_only=True)
class ClearKeywords(_CommandKeywords):
    """What :meth:`wsm.Controller.clear` takes, which says what each keyword means."""

    tags: Collection[Tag | str] = ALL_TAGS
    in_flight: InFlightPolicy | str | None = None
    kv_policy: KVPolicy | str = KVPolicy.DROP
    wait_s: Wait = 0.0
    hold: str | None = None

    def request(self) -> CommandRequest:
        in_flight = None if self.in_flight is None else InFlightPolicy(self.in_flight)
        arguments = CommandArguments(
            request_id_of(self.request_id),
            in_flight=in_flight or InFlightPolicy.ABORT,
            kv_policy=KVPolicy(self.kv_policy),
            tags=checked_tags(self.tags),
            clears=True,
        )
        return self._asking(Operation.CLEAR, arguments, in_flight=in_flight, hold=self.hold)


@dataclass(frozen=True, kw_only=True)
class UpdateKeywords(ClearKeywords):
    """What :meth:`wsm.Controller.update` takes, which says what each keyword means."""

    version: str | int | None = field(default=None, kw_only=False)
    deadline_s: Seconds = 300.0
    hot: bool = False
    hot_fallback: HotFallback | str = HotFallback.REFUSE
    force: bool = False
    partial: bool = False
    transfer_mode: TransferMode | str | None = None
    unknown_tensors: UnknownTensors | str | None = None
    verify_checksum: bool | None = None
    rsync_config: Mapping[str, Any] | None = None
    after: After | str = After.AS_BEFORE
    owner: str = ANY_OWNER
    on_failure: OnFailure | str | None = None
    restore_s: Seconds | None = None

    def request(self) -> CommandRequest:
        name = request_id_of(self.request_id)
        in_flight = None if self.in_flight is None else InFlightPolicy(self.in_flight)
        left = After(self.after)
        usual = in_flight or (InFlightPolicy.KEEP if self.hot else InFlightPolicy.ABORT)
        begins = None
        if left is After.HELD:
            begins = hold_of(name, self.owner, usual, KVPolicy.KEEP)
        arguments = CommandArguments(
            name,
            None if self.version is None else checked_version(self.version),
            usual,
            KVPolicy(self.kv_policy),
            hot_fallback=HotFallback(self.hot_fallback),
            tags=checked_tags(self.tags),
            reload=self.force,
            partial=self.partial,
            transfer_mode=None if self.transfer_mode is None else TransferMode(self.transfer_mode),
            unknown_tensors=None if self.unknown_tensors is None else UnknownTensors(self.unknown_tensors),
            verify_checksum=self.verify_checksum,
            rsync_config=None if self.rsync_config is None else plain_options(self.rsync_config),
            after=left,
            hold=begins,
            restore_s=self.restore_s,
        )
        tags = arguments.tags
        if self.hot and tags != ALL_TAGS:
            raise _tags_contradict(tags, "hot", "a hot update replaces both")
        if Tag.WEIGHTS not in tags:
            for argument in _OF_WEIGHTS:
                if getattr(self, argument) != getattr(UpdateKeywords, argument):
                    raise _tags_contradict(tags, argument, "no weights are loaded")
        if self.hot and self.partial:
            raise partial_update_refused(why="a hot update stages every tensor anew")
        return self._asking(
            Operation.HOT_UPDATE if self.hot else Operation.UPDATE,
            arguments,
            in_flight=in_flight,
            hold=self.hold,
            owner=self.owner,
            on_failure=None if self.on_failure is None else OnFailure(self.on_failure),
        )


@dataclass(frozen=True, kw_only=True)
class PrepareKeywords(UpdateKeywords):
    """What :meth:`wsm.Controller.prepare` takes, which says what each keyword means."""

    hot: bool = True
    lease_s: Seconds | None = None

    def request(self, *, leased: bool = False) -> CommandRequest:
        """Return the request that they make, whose decision its caller makes, or a lease holds."""
        lease_s = self.deadline_s if self.lease_s is None else self.lease_s
        asked = super().request()
        arguments = structs.replace(asked.arguments, lease_s=lease_s, leased=leased)
        return replace(asked, arguments=arguments)


@dataclass(frozen=True, kw_only=True)
class ReleaseKeywords(_CommandKeywords):
    """What :meth:`wsm.Controller.release` takes, which says what each keyword means."""

    owner: str = ANY_OWNER
    hold: str | None = None
    force: bool = False

    def request(self) -> CommandRequest:
        arguments = admission_of(request_id_of(self.request_id), After.SERVE)
        return self._asking(Operation.RELEASE, arguments, hold=self.hold, owner=self.owner, forced=self.force)


@dataclass(frozen=True, kw_only=True)
class HoldKeywords(_CommandKeywords):
    """What :meth:`wsm.Controller.hold` takes, which says what each keyword means."""

    in_flight: InFlightPolicy | str = InFlightPolicy.ABORT
    kv_policy: KVPolicy | str = KVPolicy.KEEP
    owner: str = ANY_OWNER
    lease_s: Seconds | None = None
    on_lease: OnLease | str = OnLease.STAY

    def request(self) -> CommandRequest:
        name, on_lease = request_id_of(self.request_id), OnLease(self.on_lease)
        in_flight, kv_policy = InFlightPolicy(self.in_flight), KVPolicy(self.kv_policy)
        begins = hold_of(name, self.owner, in_flight, kv_policy, lease_s=self.lease_s, on_lease=on_lease)
        arguments = admission_of(name, After.HELD, in_flight=in_flight, kv_policy=kv_policy, hold=begins)
        return self._asking(Operation.HOLD, arguments, owner=self.owner)


def keywords_of(
    kind: Callable[_P, _Keywords],
) -> Callable[[Callable[[_Self, _Keywords], _Given]], Callable[Concatenate[_Self, _P], _Given]]:
    """Let a method that is written with all keywords in one object be called with each by its name.

    For a reader of ``help()`` and for mypy the method then has the signature of `kind`; what does not fit it
    is a TypeError that names the method, as of any function, and a value that is not as annotated there is a
    BadInputError (``bad-keyword``) before the method is entered.
    """
    taken = inspect.signature(kind)

    def decorate(
        method: Callable[[_Self, _Keywords], _Given],
    ) -> Callable[Concatenate[_Self, _P], _Given]:
        @functools.wraps(method)
        def called(owner: _Self, /, *args: _P.args, **named: _P.kwargs) -> _Given:
            try:
                keywords = kind(*args, **named)
            except TypeError:
                try:  # said as of the method, not of what its keywords are kept in
                    taken.bind(*args, **named)
                except TypeError as error:
                    call = f"{type(owner).__name__}.{method.__name__}()"
                    raise TypeError(f"{call}: {error}; it takes {', '.join(taken.parameters)}") from None
                raise
            require(f"{type(owner).__name__}.{method.__name__}()", annotations_of(kind), vars(keywords))
            return method(owner, keywords)

        own = inspect.signature(method)
        itself = next(iter(own.parameters.values()))
        called.__signature__ = own.replace(parameters=[itself, *taken.parameters.values()])  # type: ignore[attr-defined] # read by help()
        return called

    return decorate
