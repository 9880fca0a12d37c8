"""What a caller asks: the keywords of every command, each written once, and the request that they make.

A request that contradicts itself is refused here, before a group is looked at. What a caller that decides
its command says of it later goes through the request's :class:`HeldDecision`.
"""

from __future__ import annotations

import enum
import functools
import inspect
import json
import math
import os
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from wsm import traces
from wsm.clock import Clock, monotonic_ns
from wsm.command import (
    MAX_REQUEST_ID,
    CommandArguments,
    CommandArgumentsError,
    checked_request_id,
    checked_tags,
    partial_update_refused,
)
from wsm.controller import errors
from wsm.controller.errors import CommandRefusedError, CommandWithdrawnError, RankFailedError
from wsm.errors import BadInputError, WsmError
from wsm.labels import checked_version
from wsm.receipt import Receipt, named
from wsm.states import holding
from wsm.states.holding import Hold
from wsm.states.vocabulary import (
    ALL_TAGS,
    After,
    HotFallback,
    InFlightPolicy,
    KVPolicy,
    OnLease,
    Tag,
    TransferMode,
    UnknownTensors,
    WeightState,
)
from wsm.states.words import Operation

#: The owner of a hold whose caller names none.
ANY_OWNER = "unnamed"

#: How long a decided command may take to be over on every rank before the caller is told, in seconds.
SETTLE_S = 30.0

#: A record has room for so much beside a version and a hold.
_OPTIONS_BYTES = 8 * 1024

_Choice = TypeVar("_Choice", bound=enum.Enum)
_Self = TypeVar("_Self")
_Keywords = TypeVar("_Keywords")
_Given = TypeVar("_Given")
_P = ParamSpec("_P")


class HeldDecision:
    """What a caller says of its prepared command to the thread that drives it. Safe for threads.

    Parameters
    ----------
    clock : Clock
        The clock of that thread, which counts the caller's lease.

    Attributes
    ----------
    prepared : Future of Receipt
        Done once all are PREPARED; or once the command has ended before, in any way.
    said_ns : int or None
        When something was said, by the clock: what was said in time is in time, however late it is heard.
    """

    def __init__(self, clock: Clock) -> None:
        self.prepared: Future[Receipt] = Future()
        self.said_ns: int | None = None
        self._clock = clock
        self._lock = threading.Lock()
        self._said: bool | None = None

    @property
    def said(self) -> bool | None:
        """Whether the caller wants it committed; None: it has not said so yet."""
        return self._said

    def say(self, *, commit: bool) -> bool:
        """Say it, unless something was said before; return what counts."""
        with self._lock:
            if self._said is None:
                self.said_ns = self._clock.monotonic_ns()  # first: it is read without the lock
                self._said = commit
            return self._said

    def tell(self, receipt: Receipt) -> None:
        """Tell the caller that all are PREPARED, or that nothing had to be."""
        with self._lock:
            if not self.prepared.done():
                self.prepared.set_result(receipt)

    def told(self, drive: Callable[[], Receipt]) -> Callable[[], Receipt]:
        """Return `drive`, after which the caller is told how it ended, if it was told nothing before."""

        def driven() -> Receipt:
            try:
                receipt = drive()
            except BaseException as error:
                with self._lock:
                    if not self.prepared.done():
                        self.prepared.set_exception(error)
                raise
            self.tell(receipt)
            return receipt

        return driven


@dataclass(frozen=True)
class CommandRequest:
    """One request to a :class:`wsm.Controller`.

    Parameters
    ----------
    operation : Operation
        What is asked of the ranks: ``CLEAR``, ``UPDATE`` or ``HOT_UPDATE``.
    arguments : CommandArguments
        What travels with it, as far as it is known before the group is looked at.
    deadline_s : float
        Seconds after which an undecided command is aborted.
    settle_s : float
        Seconds after a decision until the caller is told who is not done.
    wait_s : float
        Seconds to wait for another controller to finish its command.
    still_wanted : callable or None
        Asked once it is this request's turn, before anything is written.
    fallback : str or None
        Why an update that was asked for hot is done in place.
    in_flight : InFlightPolicy or None
        As the caller said; None: as the hold says that the group stands under, else the usual one.
    hold : str or None
        The id of the hold that must be in force; None: it does not matter.
    owner : str
        Of a hold or a release: who asks.
    forced : bool
        Of a release: whether another's hold is released, too.
    held : HeldDecision or None
        What its caller will say, if it decides; None: the controller does.
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
    held: HeldDecision | None = None

    def consistent(self) -> CommandRequest:
        """Return this request, an update, if its arguments go together.

        Raises
        ------
        BadInputError
            If the tags do not go with the other arguments.
        RefusedError
            If a partial update is to be hot.
        """
        asked = self.arguments
        if self.operation.is_hot and asked.tags != ALL_TAGS:
            why = "a hot update replaces both"
            raise errors.tags_contradict(tags=named(asked.tags), argument="hot", why=why)
        if Tag.WEIGHTS not in asked.tags:
            of_weights = {
                "version": asked.version is not None,
                "force": asked.reload,
                "partial": asked.partial,
                "transfer_mode": asked.transfer_mode is not None,
                "unknown_tensors": asked.unknown_tensors is not None,
                "verify_checksum": asked.verify_checksum is not None,
                "rsync_config": asked.rsync_config is not None,
            }
            for argument, given in of_weights.items():
                if given:
                    why = "no weights are loaded"
                    raise errors.tags_contradict(tags=named(asked.tags), argument=argument, why=why)
        if asked.partial and self.operation.is_hot:
            raise partial_update_refused(why="a hot update stages every tensor anew")
        return self

    def changes_admission(self, *, held: bool) -> bool:
        """Whether the group would be held, or open, other than it is, once this is done."""
        return holding.held_after(self.arguments.after, held=held) is not held

    def of_admission(self) -> CommandRequest:
        """Return what is left of an update whose version is there already: a hold, or a release."""
        operation = Operation.HOLD if self.arguments.after is After.HELD else Operation.RELEASE
        asked = replace(
            self.arguments, version=None, tags=frozenset(), kv_policy=KVPolicy.KEEP, of_admission=True
        )
        return replace(self, operation=operation, arguments=asked, forced=True)

    def in_place(self, why: str) -> CommandRequest:
        """Return the ordinary update that does the same with a longer pause."""
        return replace(self, operation=Operation.UPDATE, fallback=why)

    def require_wanted(self) -> None:
        """Raise :class:`CommandWithdrawnError` if its caller no longer wants it."""
        if self.still_wanted is not None and not self.still_wanted():
            operation = self.operation.name.lower()
            raise CommandWithdrawnError(operation=operation, request_id=self.arguments.request_id)

    @property
    def is_taken_back(self) -> bool:
        """Whether its caller, who decides, has said that it is to be aborted."""
        return self.held is not None and self.held.said is False

    def possible_from(self, state: WeightState) -> CommandRequest:
        """Return what is to be done where the group is: this, or in place what cannot be hot there.

        Raises
        ------
        RefusedError
            If it cannot be hot, and must not be done otherwise.
        """
        if not self.operation.is_hot or state is WeightState.NORMAL:
            return self
        refusal = errors.nothing_served(state=state.name)
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


def plain_options(rsync_config: object) -> Mapping[str, Any]:
    """Return options that travel with a command as JSON, and outlive it in the group's record.

    Raises
    ------
    BadInputError
        If they are no mapping of plain values, or longer than 8 KiB.
    """
    if not isinstance(rsync_config, Mapping):
        raise errors.bad_rsync_config(problem=f"it is {rsync_config!r}")
    try:
        text = json.dumps(dict(rsync_config), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise errors.bad_rsync_config(problem=str(error)) from error
    if len(text) > _OPTIONS_BYTES:
        raise errors.bad_rsync_config(problem=f"it has {len(text)} bytes of {_OPTIONS_BYTES}")
    return dict(json.loads(text))


def request_id_of(asked: str | None) -> str:
    """Return the name of a request, drawn if none was given.

    Raises
    ------
    wsm.command.RequestIdError
        If it cannot name a request.
    """
    return os.urandom(16).hex() if asked is None else checked_request_id(asked)


def is_number(value: object) -> bool:
    """Whether a value counts seconds: an integer or float, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def hold_of(
    hold_id: str,
    owner: str,
    in_flight: InFlightPolicy,
    kv_policy: KVPolicy,
    *,
    lease_s: float | None = None,
    on_lease: OnLease | str = OnLease.STAY,
) -> Hold:
    """Return a hold that is asked for now.

    Raises
    ------
    BadInputError
        If owner, policy or lease are none.
    """
    if not owner.isprintable() or not 0 < len(owner) <= MAX_REQUEST_ID:
        problem = f"an owner is a name of 1 to {MAX_REQUEST_ID} characters that can be printed"
        raise errors.bad_hold(argument="owner", value=owner, problem=problem)
    if kv_policy not in (KVPolicy.KEEP, KVPolicy.DROP):
        raise errors.bad_hold(
            argument="kv_policy", value=kv_policy, problem="a hold keeps all blocks or drops all"
        )
    if lease_s is not None and not (is_number(lease_s) and 0 < lease_s < holding.LATEST):
        raise errors.bad_hold(argument="lease_s", value=lease_s, problem="it must be more than 0 seconds")
    return Hold(
        hold_id,
        owner,
        in_flight,
        kv_policy,
        lease_s,
        choice_of(OnLease, on_lease, errors.unknown_lease_end),
        monotonic_ns(),
    )


def choice_of(kinds: type[_Choice], asked: object, refusal: Callable[..., BadInputError]) -> _Choice:
    """Return the member of an enumeration that was asked for, by itself or by its value.

    Raises
    ------
    BadInputError
        As `refusal` makes it, if there is none.
    """
    try:
        return kinds(asked)
    except ValueError:
        raise refusal(value=asked, allowed=[str(each.value) for each in kinds]) from None


@dataclass(frozen=True, kw_only=True)
class _CommandKeywords:
    """What every command takes, whatever it asks."""

    deadline_s: float = 60.0
    settle_s: float = SETTLE_S
    wait_s: float | None = None
    request_id: str | None = None
    still_wanted: Callable[[], bool] | None = None

    def _asking(
        self,
        operation: Operation,
        arguments: CommandArguments,
        *,
        in_flight: InFlightPolicy | None = None,
        hold: str | None = None,
        owner: str = "",
        forced: bool = False,
    ) -> CommandRequest:
        for name in ("deadline_s", "settle_s", "wait_s"):
            seconds = getattr(self, name)
            if seconds is not None and not (is_number(seconds) and not math.isnan(seconds)):
                raise errors.bad_keyword(problem=f"{name} is {seconds!r}, no number of seconds")
        traceparent = traces.current_traceparent()
        if traceparent is not None:
            arguments = replace(arguments, traceparent=traceparent)
        try:
            arguments.require_kinds()
        except CommandArgumentsError as error:
            raise errors.bad_keyword(problem=str(error)) from error
        return CommandRequest(
            operation,
            arguments,
            self.deadline_s,
            self.settle_s,
            self.deadline_s if self.wait_s is None else self.wait_s,
            self.still_wanted,
            in_flight=in_flight,
            hold=hold,
            owner=owner,
            forced=forced,
        )


@dataclass(frozen=True, kw_only=True)
class ClearKeywords(_CommandKeywords):
    """What :meth:`wsm.Controller.clear` takes, which says what each keyword means."""

    tags: Collection[Tag] = ALL_TAGS
    in_flight: InFlightPolicy | None = None
    kv_policy: KVPolicy = KVPolicy.DROP
    wait_s: float = 0.0
    hold: str | None = None

    def request(self) -> CommandRequest:
        """Return the request that they make, if they go together."""
        arguments = CommandArguments(
            request_id_of(self.request_id),
            in_flight=self.in_flight or InFlightPolicy.ABORT,
            kv_policy=self.kv_policy,
            tags=checked_tags(self.tags),
            clears=True,
        )
        return self._asking(Operation.CLEAR, arguments, in_flight=self.in_flight, hold=self.hold)


@dataclass(frozen=True, kw_only=True)
class UpdateKeywords(ClearKeywords):
    """What :meth:`wsm.Controller.update` takes, which says what each keyword means."""

    version: str | int | None = field(default=None, kw_only=False)
    deadline_s: float = 300.0
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

    def request(self) -> CommandRequest:
        """Return the request that they make, if they go together."""
        mode = self.transfer_mode
        if mode is not None:
            mode = choice_of(TransferMode, mode, errors.unknown_transfer_mode)
        unknown = self.unknown_tensors
        if unknown is not None:
            unknown = choice_of(UnknownTensors, unknown, errors.bad_unknown_tensors)
        name = request_id_of(self.request_id)
        usual = self.in_flight or (InFlightPolicy.KEEP if self.hot else InFlightPolicy.ABORT)
        left = choice_of(After, self.after, errors.unknown_after)
        begins = None
        if left is After.HELD:
            begins = hold_of(name, self.owner, usual, KVPolicy.KEEP)
        arguments = CommandArguments(
            name,
            None if self.version is None else checked_version(self.version),
            usual,
            self.kv_policy,
            hot_fallback=choice_of(HotFallback, self.hot_fallback, errors.hot_fallback),
            tags=checked_tags(self.tags),
            reload=self.force,
            partial=self.partial,
            transfer_mode=mode,
            unknown_tensors=unknown,
            verify_checksum=self.verify_checksum,
            rsync_config=None if self.rsync_config is None else plain_options(self.rsync_config),
            after=left,
            hold=begins,
        )
        operation = Operation.HOT_UPDATE if self.hot else Operation.UPDATE
        request = self._asking(
            operation, arguments, in_flight=self.in_flight, hold=self.hold, owner=self.owner
        )
        return request.consistent()


@dataclass(frozen=True, kw_only=True)
class PrepareKeywords(UpdateKeywords):
    """What :meth:`wsm.Controller.prepare` takes, which says what each keyword means."""

    hot: bool = True
    lease_s: float | None = None

    def held_by(self, held: HeldDecision, *, leased: bool) -> CommandRequest:
        """Return the request that they make, with a decision that its caller makes, or a lease holds."""
        lease_s = self.deadline_s if self.lease_s is None else self.lease_s
        if not (is_number(lease_s) and lease_s > 0):
            raise errors.bad_keyword(problem=f"lease_s is {lease_s!r}; it must be more than 0 seconds")
        asked = self.request()
        return replace(asked, arguments=replace(asked.arguments, lease_s=lease_s, leased=leased), held=held)


@dataclass(frozen=True, kw_only=True)
class ReleaseKeywords(_CommandKeywords):
    """What :meth:`wsm.Controller.release` takes, which says what each keyword means."""

    owner: str = ANY_OWNER
    hold: str | None = None
    force: bool = False

    def request(self) -> CommandRequest:
        """Return the request that they make."""
        arguments = CommandArguments(
            request_id_of(self.request_id),
            in_flight=InFlightPolicy.KEEP,
            kv_policy=KVPolicy.KEEP,
            tags=frozenset(),
            after=After.SERVE,
            of_admission=True,
        )
        return self._asking(Operation.RELEASE, arguments, hold=self.hold, owner=self.owner, forced=self.force)


@dataclass(frozen=True, kw_only=True)
class HoldKeywords(_CommandKeywords):
    """What :meth:`wsm.Controller.hold` takes, which says what each keyword means."""

    in_flight: InFlightPolicy = InFlightPolicy.ABORT
    kv_policy: KVPolicy = KVPolicy.KEEP
    owner: str = ANY_OWNER
    lease_s: float | None = None
    on_lease: OnLease | str = OnLease.STAY

    def request(self) -> CommandRequest:
        """Return the request that they make, if they go together."""
        name = request_id_of(self.request_id)
        begins = hold_of(
            name, self.owner, self.in_flight, self.kv_policy, lease_s=self.lease_s, on_lease=self.on_lease
        )
        arguments = CommandArguments(
            name,
            in_flight=self.in_flight,
            kv_policy=self.kv_policy,
            tags=frozenset(),
            after=After.HELD,
            hold=begins,
            of_admission=True,
        )
        return self._asking(Operation.HOLD, arguments, owner=self.owner)


def keywords_of(
    kind: Callable[_P, _Keywords],
) -> Callable[[Callable[[_Self, _Keywords], _Given]], Callable[Concatenate[_Self, _P], _Given]]:
    """Let a method that is written with all keywords in one object be called with each by its name.

    For a reader of ``help()`` and for mypy the method then has the signature of `kind`; what does not fit it
    is a TypeError that names the method, as of any function.
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
            return method(owner, keywords)

        own = inspect.signature(method)
        itself = next(iter(own.parameters.values()))
        called.__signature__ = own.replace(parameters=[itself, *taken.parameters.values()])  # type: ignore[attr-defined] # read by help()
        return called

    return decorate
