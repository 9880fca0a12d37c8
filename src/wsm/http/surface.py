"""What a front for one kind of trainer is, and what a server tells its fronts."""

from __future__ import annotations

import enum
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from wsm.http.answers import FailureAnswer, HttpAnswer
from wsm.http.commands import AdoptDirectory, AdoptedDirectory, Commands
from wsm.strategies.adopt.adopt import AdoptSettings, adopt
from wsm.strategies.adopt.record import stands_as_adopted
from wsm.typed import Wait, typed

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


def adopting(settings: AdoptSettings) -> AdoptDirectory:
    """Return what adopts directories as the settings say (:func:`wsm.strategies.adopt.adopt.adopt`).

    Of several callers at once each waits for those before it: one directory of versions has one publisher.
    """
    turn = threading.Lock()

    def take_in(directory: str, label: str | None) -> AdoptedDirectory:
        with turn:
            adoption = adopt(directory, settings, version=label)
        known = None if adoption.digest is None else f"{adoption.source}@{adoption.digest}"
        return AdoptedDirectory(adoption.label, known, adoption.warning)

    return take_in


def standing(settings: AdoptSettings) -> Callable[[AdoptedDirectory], bool]:
    """Return what says whether an adopted directory is published still, as it was adopted. Blocks."""

    def stands(adopted: AdoptedDirectory) -> bool:
        digest = None if adopted.source is None else adopted.source.rpartition("@")[2]
        return digest is None or stands_as_adopted(Path(settings.into), adopted.label, digest)

    return stands


class OpenRequests(Protocol):
    """The requests for text that this server has taken and not answered."""

    async def abort(self, request_ids: Collection[str] | None) -> Collection[str]:
        """End requests, all of them for None; each is answered with the tokens that it has. Return whose."""

    async def count(self) -> tuple[int, int]:
        """Return how many requests run, and how many wait."""


@typed
@dataclass(frozen=True)
class SurfaceOptions:
    """What is configured for surfaces.

    Parameters
    ----------
    adopt : AdoptDirectory or None
        Takes directories in; None: no root is declared, and paths are refused.
    stands : callable or None
        ``stands(adopted)`` says whether what was adopted before is there still; None: it is taken for there.
    requests : OpenRequests or None
        The requests that run; None: they are the engine's alone.
    served_model_name : str or None
        The name that ``/v1/models`` gives; None: the group's.
    server_info : mapping
        Further fields of ``/server_info``, or other values of those it has.
    fastdeploy_generation : str
        Which FastDeploy the legacy GETs answer like. 2.4: an empty 200, and 404 with a text for all else.
        2.5: a message for each data-parallel rank, 400 while the same runs, 403 while the opposite does, 404
        for the rest. 2.6: as 2.5, and the GETs are sleep and wakeup (``FD_ENABLE_V1_UPDATE_WEIGHTS=1``).
    sleep_level_1_as_2 : bool or None
        Whether vLLM's sleep to host memory lets the memory go instead; the version is loaded again. None: on
        AReaL's surface, whose trainer can ask for no other level.
    deadline_s : float
        Of each command.
    lease_s : float
        Seconds from ``update`` on in which ``finish`` must come.
    """

    adopt: AdoptDirectory | None = None
    stands: Callable[[AdoptedDirectory], bool] | None = None
    requests: OpenRequests | None = None
    served_model_name: str | None = None
    server_info: Mapping[str, Any] = field(default_factory=dict)
    fastdeploy_generation: Literal["2.4", "2.5", "2.6"] = "2.6"
    sleep_level_1_as_2: bool | None = None
    deadline_s: Wait = 600.0
    lease_s: Wait = 600.0
