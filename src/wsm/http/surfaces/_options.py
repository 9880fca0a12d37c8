"""What a server tells its surfaces: names, options, how a directory is adopted, and the requests that run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from wsm.http.commands import AdoptDirectory, AdoptedDirectory
from wsm.strategies.adopt.adopt import AdoptSettings, adopt
from wsm.strategies.adopt.record import stands_as_adopted
from wsm.typed import Wait, typed


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
