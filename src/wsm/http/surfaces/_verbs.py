"""The verbs of a surface as rows of one table, from which are made: its routes, and the document of them.

A row is a function of a :class:`.Call`, under the paths that it answers. Its annotations say the rest:
`asked` is the body that it takes, `query` the query, and what it returns is the answer. A verb that cannot be
honoured is refused, and not left unknown: a trainer that does not look at the answer must not train on with
stale weights.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from wsm import log
from wsm.http.answers import HttpAnswer, receipt_headers
from wsm.http.bodies import Label, as_struct, object_of, query_of, without_nulls
from wsm.http.commands import Commands
from wsm.http.surface import InHold, Surface, SurfaceOptions, SurfaceRoute
from wsm.http.surfaces._call import Call, ServedSurface

_Verb = TypeVar("_Verb", bound=Callable[..., Awaitable[Any]])


class ToldReceipt(Struct):
    """What the last command of a verb did."""

    request_id: str
    outcome: str
    version: str | None
    manifest_digest: str | None
    serving: bool
    sentence: str
    warning: str | None


class DoneAnswer(Struct):
    """What is answered to a verb that was done, with what its command did."""

    message: str
    status: str | UnsetType = UNSET
    success: bool | UnsetType = UNSET
    wsm: ToldReceipt | UnsetType = UNSET


class FinishBody(Struct):
    """Of the end of an update in parts."""

    weight_version: Label | None = None


class TagsQuery(Struct):
    """Of the verbs that let memory go, and bring it back."""

    tags: list[str] = []


class RelabelBody(Struct):
    """Of ``/update_weight_version``."""

    new_version: Label


class NamedVersion(Struct):
    """What the group has, by the trainer's word and by its label."""

    weight_version: str | None
    wsm_version: str | None


class ModelCard(Struct):
    """The one model of ``/v1/models``."""

    id: str
    root: str
    object: str = "model"
    created: int = 0
    owned_by: str = "wsm"
    parent: None = None


class ModelList(Struct):
    """The answer of ``/v1/models``."""

    data: list[ModelCard]
    object: str = "list"


class Reason(enum.Enum):
    """Why a verb is refused: a stable word, a sentence, and what to use instead."""

    PUSH = (
        "push-unverifiable",
        "tensors that are pushed have no version, manifest or digest: no rank can prove what it holds",
        "update_weights_from_disk, or update_weights with a path; or publish_snapshot, publish_delta",
    )
    NO_ENGINE = (
        "push-unverifiable",
        "vLLM was started without wsm+ before its transfer backend, and nothing digests what is pushed",
        """--weight-transfer-config '{"backend": "wsm+nccl"}', or update_weights with a path""",
    )
    NCCL = (
        "push-unverifiable",
        "it sets up a group of NCCL, by which tensors are pushed that have no version, manifest or digest",
        "update_weights with a path; GET /wsm/v1/status has the ranks",
    )
    PICKLE = (
        "pickled-body",
        "the body is a pickle, which runs what its sender likes, and brings no version, manifest or digest",
        "write the weights to a directory and send its path, or publish_snapshot, publish_delta",
    )
    METHOD = (
        "arbitrary-method",
        "it would run any method on the ranks",
        "the verb that means it: pause, update with a path, resume, or /wsm/v1",
    )
    ADAPTER = (
        "no-adapter-versions",
        "a group has no adapters whose versions it could prepare and decide",
        "merge the adapter into the weights, and update to the whole version",
    )
    DRAFT = (
        "no-draft-versions",
        "draft weights have no version of their own; they come with the model's",
        "put them into the same directory, and update once",
    )
    INTERNAL = (
        "engine-internal",
        "it is a step inside an engine's own update; here it is part of every update",
        "leave it out",
    )
    OFFLOAD = (
        "offload-unsupported",
        "the memory would be kept in host memory, which this group does not do",
        "sleep with level=2, or --sleep-level-1 as-2: the next wake-up loads the version that was held",
    )
    BASELINE = (
        "no-baselines",
        "weights are compared by the digests of their version, and not with a copy taken before",
        "the action checksum or compare",
    )


class UnsupportedError(Struct):
    """Why, in words that clients of SGLang and of vLLM print."""

    type: str
    code: str
    verb: str
    reason: str
    use_instead: str
    message: str


class Unsupported(Struct):
    """What a verb is answered that is refused. `held`: whether its group is held, and closed."""

    success: bool
    message: str
    error: UnsupportedError
    held: bool


class Refusal(NamedTuple):
    """What a verb returns that is refused.

    `closes`: whether a group that is held stays closed until a real update: its caller may believe that new
    weights are there, and sends a resume next.
    """

    reason: Reason
    closes: bool = True

    def answer(self, verb: str, *, held: bool) -> Unsupported:
        word, sentence, instead = self.reason.value
        message = f"{verb} is not supported: {sentence}. Instead: {instead}."
        error = UnsupportedError("Unsupported", word, verb, sentence, instead, message)
        return Unsupported(success=False, message=message, error=error, held=held)


class VerbRow(NamedTuple):
    """One verb. `does`: the function; the rest as of :meth:`VerbTable.__call__`."""

    does: Callable[..., Awaitable[Any]]
    brings: bool = False
    of_engine: bool = False
    changes: bool = False
    also: tuple[int, ...] = ()


@dataclass
class VerbTable:
    """The verbs of one surface.

    Parameters
    ----------
    name : str
        The owner of its holds.
    data_paths : frozenset of str
        Paths of the engine that ask for text.
    failed : callable
        As of :class:`.Surface`.
    failure : struct type
        What `failed` answers, for the document.
    pauses, resumes : str
        The paths by which an engine behind this server has its scheduler paused and resumed.
    unsupported : int
        The status of a verb that cannot be honoured: 400 where clients repeat every 5xx.
    reads_answers : bool
        Whether its trainers read that an update failed: then one that touched nothing closes nothing.
    in_hold : InHold
        What becomes of requests for text while the group is held.
    """

    name: str
    data_paths: frozenset[str]
    failed: Callable[[HttpAnswer], HttpAnswer]
    failure: type[Struct]
    pauses: str
    resumes: str
    unsupported: int = 501
    reads_answers: bool = False
    in_hold: InHold = InHold.WAIT

    def __post_init__(self) -> None:
        self.rows: dict[str, VerbRow] = {"GET /v1/models": VerbRow(_models)}

    def __call__(self, *names: str, **how: Any) -> Callable[[_Verb], _Verb]:
        """Let a function answer ``"METHOD /path"``.

        Parameters
        ----------
        *names : str
            Which.
        brings : bool
            Whether it brings weights: where it fails, the hold is closed (:meth:`.Call.bringing`).
        of_engine : bool
            Whether the engine's app answers it where requests for text are its own.
        changes : bool
            Of a GET: whether it changes something, which no token may that only reads.
        also : tuple of int
            Statuses that it answers besides 200, in the same form.
        """

        def added(does: _Verb) -> _Verb:
            self.rows.update(dict.fromkeys(names, VerbRow(does, **how)))
            return does

        return added

    def take(self, other: VerbTable, *names: str) -> None:
        """Answer some verbs as another surface does."""
        self.rows.update({name: other.rows[name] for name in names})

    def refuse(self, reason: Reason, *names: str, closes: bool = True, of_engine: bool = False) -> None:
        """Answer verbs that cannot be honoured, whatever their bodies say."""

        async def refused(_call: Call) -> Refusal:
            """Refuse what cannot be honoured."""
            return Refusal(reason, closes)

        self(*names, of_engine=of_engine)(refused)

    def surface(self, options: SurfaceOptions) -> Surface:
        """Return the surface for one server."""
        served = ServedSurface(self.name, options, self.pauses, self.resumes, self.reads_answers)
        routes = tuple(self._route(name, row, served) for name, row in self.rows.items())
        return Surface(self.name, routes, self.in_hold, self.data_paths, self.failed, options.adopt)

    def _route(self, name: str, row: VerbRow, served: ServedSurface) -> SurfaceRoute:
        method, _, path = name.partition(" ")
        hints = get_type_hints(row.does)
        body, query, answer = hints.get("asked"), hints.get("query"), hints["return"]

        async def handle(request: Request, commands: Commands) -> Any:
            call = Call(served, request, commands)

            async def act() -> Any:
                given: dict[str, Any] = {}
                if query is not None:
                    given["query"] = query_of(request.query_params, query)
                if body is not None:  # of which fields of other releases pass, and a null counts as missing
                    given["asked"] = as_struct(without_nulls(object_of(await request.body())), body)
                return await row.does(call, **given)

            said = await (call.bringing(act) if row.brings else act())
            return await self._refused(call, path, said) if isinstance(said, Refusal) else _answer(call, said)

        several = get_args(answer) if get_origin(answer) in (Union, UnionType) else (answer,)
        kinds = [kind for kind in several if kind not in (Refusal, HttpAnswer, Response)] or [None]
        answers = dict.fromkeys((200, *row.also), "text/plain" if kinds[0] is PlainTextResponse else kinds[0])
        if Refusal in several:
            answers[self.unsupported] = Unsupported
        handle.__doc__ = row.does.__doc__
        reads = method == "GET" and not row.changes
        of_engine = row.of_engine and served.options.requests is None
        return SurfaceRoute(method, path, handle, reads, answers, body, query, self.failure, of_engine)

    async def _refused(self, call: Call, verb: str, refusal: Refusal) -> HttpAnswer:
        """Answer a verb that cannot be honoured, which may close the hold that the group has.

        One whose memory a trainer let go for this is held first. Else the trainer's next verb, which gets the
        rest of the memory back, would open the old weights.
        """
        commands, word = call.commands, refusal.reason.value[0]
        count = commands.counts.unsupported
        count.add(self.name, verb)
        if count[self.name, verb] == 1:
            log.logger("http").warning("verb.unsupported", surface=self.name, verb=verb, reason=word)
        closed = False
        if refusal.closes:
            status = await commands.status()
            if status.hold is None and not status.serving:
                await commands.hold(call.origin("close"), deadline_s=call.options.deadline_s)
            closed = await commands.fail_closed(call.origin(), verb=verb, reason=word)
        return HttpAnswer(self.unsupported, refusal.answer(verb, held=closed))


def _answer(call: Call, said: Any) -> HttpAnswer | Response:
    """Return what a verb has said as it is sent; with what its command did, where an object can carry it."""
    if said is None:
        return Response(b"null", media_type="application/json")
    if isinstance(said, HttpAnswer | Response):
        return said
    if call.receipt is None:
        return HttpAnswer(200, said)
    if hasattr(said, "wsm") and said.wsm is UNSET:
        receipt = call.receipt
        done = (receipt.request_id, receipt.outcome.value, receipt.version, receipt.manifest_digest)
        said.wsm = ToldReceipt(*done, receipt.serving, receipt.sentence(), receipt.warning)
    return HttpAnswer(200, said, receipt_headers(call.receipt))


async def _models(call: Call) -> ModelList:
    """Answer the one model."""
    return ModelList([ModelCard(call.model, call.model)])


async def named_version(call: Call) -> NamedVersion:
    """Answer what the group has, by the trainer's word and by its label."""
    held = (await call.commands.status()).version
    return NamedVersion(call.commands.word_for(held), held)
