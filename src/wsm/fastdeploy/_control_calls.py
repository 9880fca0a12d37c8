"""FastDeploy's control requests: a model runner's own method is run inside one command of the group.

It runs once on each rank, behind the vote by which all ranks stand, where the command's plan begins to change
something. What it calls of the weight manager are units of that plan, each run once; the plan then does what
is left, measures, and the group decides. So every rank returns, or raises, alike.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from wsm.actions import names
from wsm.actions.base import Action, ActionContext, Plans
from wsm.actions.surfaces import GraphSurface, GroupKind, KVCacheSurface, Runner
from wsm.errors import BadInputError, RefusedError
from wsm.fastdeploy._calls import saying
from wsm.states.plan_key import COMMANDED, DISCARDS
from wsm.states.vocabulary import ALL_TAGS, Tag, TransferMode
from wsm.states.words import Operation

#: FastDeploy's names of what a request is about.
TAGS = {"weight": Tag.WEIGHTS, "kv_cache": Tag.KV_CACHE}

#: Seconds for the command of each request: FastDeploy's engine waits 60, 300 and 60.
DEADLINES_S = {"sleep": 45.0, "wakeup": 280.0, "update_weights": 45.0}

#: Seconds that rank 0 waits besides, for ranks that are still inside; then it raises without them.
REST_S = 3.0

_PLANS = frozenset(str(key) for key in COMMANDED if key.operation in (Operation.CLEAR, Operation.UPDATE))
_TEARDOWNS = frozenset(map(str, DISCARDS))

#: What a plan does before the method runs: graphs go before what they point at, a draft's, too.
_FIRST = frozenset(
    (
        names.STOP_ADMITTING,
        names.SETTLE_REQUESTS,
        names.FORGET_ROUTING_REPLAY,
        names.DROP_MAIN_GRAPHS,
        names.DROP_DRAFT_GRAPHS,
    )
)

#: What a method does itself, besides what it calls of the manager and what can be seen.
_DOES: Mapping[str, tuple[str, ...]] = {"wakeup": (names.RESET_INPUTS, names.RESET_AUXILIARY_INPUTS)}


class ControlRequest(NamedTuple):
    """What a control request asks for.

    Parameters
    ----------
    method : str
        The model runner's.
    tags : frozenset of Tag
        What it is about.
    version : str or None
        The version to load, where it names one.
    options : mapping
        Of the load, for the command.
    """

    method: str
    tags: frozenset[Tag]
    version: str | None = None
    options: Mapping[str, Any] = {}

    @classmethod
    def of(cls, method: str, body: Callable[..., Any], *arguments: Any, **named: Any) -> ControlRequest:
        """Read the arguments of a model runner's method, as its build takes them.

        Raises
        ------
        BadInputError (``unknown-tag``)
            If a tag is none of FastDeploy's.
        """
        bound = inspect.signature(body).bind(*arguments, **named)
        bound.apply_defaults()
        said = bound.arguments
        if method == "update_weights":
            options = {
                name: said[name]
                for name in ("verify_checksum", "transfer_mode", "rsync_config")
                if said.get(name) is not None
            }
            return cls(method, frozenset({Tag.WEIGHTS}), said.get("version") or None, options)
        asked = said.get("tags")
        if asked is None:
            return cls(method, ALL_TAGS)
        several = asked.split(",") if isinstance(asked, str) else asked
        words = [str(word).strip() for word in several] if isinstance(several, Iterable) else [str(asked)]
        for word in words:
            if word not in TAGS:
                raise BadInputError(
                    f"{method} was asked for {word!r}; known are {', '.join(TAGS)}",
                    code="unknown-tag",
                    method=method,
                    tag=word,
                    known=tuple(TAGS),
                )
        return cls(method, frozenset(TAGS[word] for word in words))


@dataclass
class OpenCall:
    """One control request that is open on this rank.

    Parameters
    ----------
    asked : ControlRequest
        What it asks for.
    body : callable
        FastDeploy's method.
    is_its : callable
        ``is_its(sequence)``: whether the command of that number is this request's.
    plans : Plans
        This rank's.

    Attributes
    ----------
    entered, inside : bool
        Whether FastDeploy's method was begun, and whether it runs now.
    plan : str
        The plan that it runs in.
    context : ActionContext
        Of that command, once the method was begun.
    result : object
        What the method has returned; None where there was nothing to do.
    done : set of str
        Units of the plan that have run already.
    down : sequence of GroupKind
        Groups that were down before the method ran.
    buffer_gone : bool
        Whether the DeepEP buffer was not there before.
    """

    asked: ControlRequest
    body: Callable[[], Any]
    is_its: Callable[[int], bool]
    plans: Plans
    entered: bool = False
    inside: bool = False
    plan: str = ""
    context: ActionContext = field(init=False)
    result: Any = None
    done: set[str] = field(default_factory=set)
    down: Sequence[GroupKind] = ()
    buffer_gone: bool = False

    def has_run(self, action: Action, context: ActionContext) -> bool:
        """Whether an action of the request's command is a unit that the method has run."""
        own = self.entered and self.context.done is context.done and self.plan == action.plan
        return own and action.name in self.done

    def enter(self, plan: str, context: ActionContext) -> None:
        """Run FastDeploy's method; where it fails, what it did to caches is taken back or owned up to."""
        self.entered, self.plan, self.context = True, plan, context
        before = [cache.allocated_bytes() > 0 for cache in _caches(context.runner)]
        groups, buffer = context.runner.groups, context.runner.deepep
        if groups is not None:  # a buffer's group is taken down first, as in a clear
            self.down = [
                kind for kind in reversed(GroupKind) if kind in groups.kinds() and not groups.alive(kind)
            ]
        self.buffer_gone = buffer is not None and not buffer.allocated()
        self.inside, began = True, time.monotonic()
        try:
            self.result = self.body()
        except BaseException:
            for cache, was_there in zip(_caches(context.runner), before, strict=True):
                is_there = cache.allocated_bytes() > 0
                context.done.weights_touched |= was_there and not is_there
                if is_there and not was_there:
                    cache.release()
            raise
        finally:
            self.inside = False
            context.facts["control_request"] = self.asked.method
            context.facts["control_request_s"] = round(time.monotonic() - began, 4)
        self.done.update(_DOES.get(self.asked.method, ()))

    def units(self, *wanted: str) -> None:
        """Run those units of the command's plan that it has and that did not run yet, with their checks."""
        units = {action.name: action for action in self.plans.named(self.plan)}
        for name in wanted:
            if name in units and name not in self.done:
                action = units[name]
                action.precondition(self.context)
                saying(action, self.context, partial(action.run, self.context))
                action.probe(self.context)
                self.done.add(name)

    def load(self, *, verify_checksum: bool | None = None, transfer_mode: str | None = None) -> None:
        """Load and verify, as the method says."""
        own: dict[str, Any] = {"verify_checksum": verify_checksum}
        own["transfer_mode"] = None if transfer_mode is None else TransferMode(transfer_mode)
        self.context = replace(self.context, **{name: said for name, said in own.items() if said is not None})
        self.units(names.FREE_CACHES_FOR_LOAD, names.LOAD_WEIGHTS, names.PROCESS_LOADED, names.VERIFY_LOADED)

    def take_down(self) -> None:
        """Take down the groups that the method brought up in a command that failed, and the buffer on them.

        Another rank may have failed before it came to that, so nothing is met upon: all ranks do this, and
        the next request creates the groups on every rank alike.
        """
        if not self.entered:
            return
        buffer, groups = self.context.runner.deepep, self.context.runner.groups
        if self.buffer_gone and buffer is not None and buffer.allocated():
            buffer.clear_buffer()
        for kind in self.down:
            if groups is not None and groups.alive(kind):
                groups.shut_down(kind)


class ControlCalls:
    """The control request that is open on one rank, and the units of its plan."""

    def __init__(self) -> None:
        self._call: OpenCall | None = None

    @property
    def inside(self) -> OpenCall | None:
        """The request whose method runs now, so that what it calls of the manager are units."""
        return self._call if self._call is not None and self._call.inside else None

    def passes_through(self, method: str) -> bool:
        """Whether a method is called by itself: a class calls the one of its base.

        Raises
        ------
        RefusedError (``call-open``)
            If another one is open.
        """
        if self._call is None:
            return False
        open_method = self._call.asked.method
        if self._call.inside and method == open_method:
            return True
        raise RefusedError(
            f"{method} was called while {open_method} is open on this rank; wait for its end, and ask again",
            code="call-open",
            method=method,
            open_method=open_method,
        )

    @contextmanager
    def open(
        self,
        asked: ControlRequest,
        body: Callable[[], Any],
        is_its: Callable[[int], bool],
        plans: Plans,
    ) -> Iterator[OpenCall]:
        """Let a request be open; another process may command the group before its command is written."""
        self._call = call = OpenCall(asked, body, is_its, plans)
        try:
            with plans.allowing(DEADLINES_S[asked.method]):  # the method runs inside one of their actions
                yield call
        except BaseException:
            call.take_down()
            raise
        finally:
            self._call = None

    def around(self, action: Action, context: ActionContext, run: Callable[[], None]) -> None:
        """Let FastDeploy's method run before an action that changes something; for ``PlanOptions.around``.

        A unit that the method has run is not run again.
        """
        call = self._call
        if action.plan in _TEARDOWNS and action.name == names.RELEASE_WEIGHTS:
            _drop_graphs(context.runner)  # the method may have captured them in a command that failed
        if call is not None and action.plan in _PLANS and action.name not in _FIRST:
            if not call.entered and call.is_its(context.sequence):
                call.enter(action.plan, context)
            if call.has_run(action, context):
                return
        saying(action, context, run)


def give_back_unheld(runner: Runner, *, weights: bool, kv: bool) -> None:
    """Give back what a method has brought in a command that failed: what the rank does not hold.

    Parameters
    ----------
    runner : Runner
        This rank's surfaces.
    weights, kv : bool
        What the rank holds.
    """
    if not (weights and kv):
        _drop_graphs(runner)
    if not kv:
        for cache in _caches(runner):
            cache.release()


def _drop_graphs(runner: Runner) -> None:
    found: list[GraphSurface | None] = [runner.graphs, *(each.graphs for each in runner.auxiliaries)]
    for graphs in found:
        if graphs is not None and graphs.captured():
            graphs.drop()


def _caches(runner: Runner) -> Iterator[KVCacheSurface]:
    """Iterate over the caches, a draft's before the main one."""
    yield from (each.kv_cache for each in runner.auxiliaries)
    if runner.kv_cache is not None:
        yield runner.kv_cache
