"""What a front for one kind of trainer is: its routes, what a hold means for requests, how it answers."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from wsm.http.answers import HttpAnswer
from wsm.http.commands import AdoptDirectory, Commands
from wsm.typed import typed

#: Paths whose GET only reads, whichever surface answers it.
READS: Final = frozenset(
    {
        *("/v1/models", "/model_info", "/get_model_info", "/server_info", "/get_server_info", "/v1/loads"),
        *("/get_weight_version", "/weight_version", "/weight_info", "/weights_checker", "/workers"),
        *("/v1/is_paused", "/is_paused", "/is_sleeping", "/get_world_size"),
        *("/health_generate", "/liveness", "/ping", "/load"),
    }
)

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
    data : bool
        Whether it asks for text. It is then only there where no engine is behind this server, and passes the
        gate of a held group.
    reads : bool
        Whether it only reads: a token that may only read will do.
    """

    method: str
    path: str
    handler: Handler
    data: bool = False
    reads: bool = False


def verb_route(method: str, path: str, handler: Handler) -> SurfaceRoute:
    """Return the route of a verb; whether it reads says its path."""
    return SurfaceRoute(method, path, handler, reads=method == "GET" and path in READS)


@typed
@dataclass(frozen=True)
class Surface:
    """A front for one kind of trainer.

    Parameters
    ----------
    name : str
        Its holds belong to the owner ``http:NAME``.
    routes : tuple of SurfaceRoute
        What it answers.
    in_hold : InHold
        What becomes of requests for text while the group is held.
    data_paths : frozenset of str
        Paths of the engine that ask for text; the gate of a held group stands before them, too.
    health : callable or None
        Answers ``GET /health`` where this surface is the primary one; None: as any.
    failed : callable or None
        From the answer to an error as any surface gives it (:func:`wsm.http.answers.failed`) to its own.
    adopt : AdoptDirectory or None
        Takes directories in, for its verbs and for the native API; None: paths are refused.
    """

    name: str
    routes: tuple[SurfaceRoute, ...] = ()
    in_hold: InHold = InHold.WAIT
    data_paths: frozenset[str] = frozenset()
    health: Handler | None = None
    failed: Callable[[HttpAnswer], HttpAnswer] | None = None
    adopt: AdoptDirectory | None = None
