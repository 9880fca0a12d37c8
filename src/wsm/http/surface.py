"""What a front for one kind of trainer is: its routes, what a hold means for requests, how it answers."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from wsm.http.answers import FailureAnswer, HttpAnswer
from wsm.http.commands import AdoptDirectory, Commands
from wsm.typed import typed

Handler: TypeAlias = Callable[[Request, Commands], Awaitable[HttpAnswer | Response]]


class InHold(enum.Enum):
    """What becomes of a request for text that arrives while the group is held."""

    WAIT = "wait"
    FAIL = "fail"


class SurfaceRoute(NamedTuple):
    """One verb.

    Parameters
    ----------
    method, path : str
        ``"POST"``, ``"/pause"``.
    handler : callable
        ``await handler(request, commands)`` answers it; errors of wsm may leave it.
    reads : bool
        Whether it only reads: a token that may only read will do.
    answers : mapping of int to type
        What it answers by status, for the OpenAPI document; a text is a media type, None an empty body.
    body, query : struct type or None
        What it takes, for the same.
    failure : struct type
        What it answers where it is refused, or fails.
    of_engine : bool
        Whether the engine answers it that stands behind the server, if one does.
    """

    method: str
    path: str
    handler: Handler
    reads: bool = False
    answers: Mapping[int, Any] = {200: None}
    body: Any = None
    query: Any = None
    failure: Any = FailureAnswer
    of_engine: bool = False


@typed
@dataclass(frozen=True)
class Surface:
    """A front for one kind of trainer.

    Parameters
    ----------
    name : str
        Its holds belong to the owner ``http:NAME``.
    routes : tuple of SurfaceRoute
        What it answers; ``GET /health`` too where it is the primary one.
    in_hold : InHold
        What becomes of requests for text while the group is held.
    data_paths : frozenset of str
        Paths of the engine that ask for text; the gate of a held group stands before them, too.
    failed : callable or None
        From the answer to an error as any surface gives it (:func:`wsm.http.answers.failed`) to its own.
    adopt : AdoptDirectory or None
        Takes directories in, for its verbs and for the native API; None: paths are refused.
    """

    name: str
    routes: tuple[SurfaceRoute, ...] = ()
    in_hold: InHold = InHold.WAIT
    data_paths: frozenset[str] = frozenset()
    failed: Callable[[HttpAnswer], HttpAnswer] | None = None
    adopt: AdoptDirectory | None = None
