"""Over HTTP: a group commanded by trainers as they are, by operators and by programs on other hosts.

One ASGI app, mounted into an engine's own or served by ``wsm serve``. It needs the extra ``wsm[http]``.

==================  ======================================================================================
module              responsible for
==================  ======================================================================================
:mod:`.app`         :func:`create_app`: whose route answers which path; the gate of a held group
:mod:`.commands`    one group's commands: once per request id, held by a surface, kept
:mod:`.closed_holds` holds that no blind release ends
:mod:`.kept`        what outlives a server: the ends of requests, and why a hold is closed
:mod:`.answers`     from receipts and errors to statuses, headers and bodies, and back
:mod:`.bodies`      bodies of requests, read field by field: every front's
:mod:`.native`      the routes of ``/wsm/v1``
:mod:`.events`      what happens to a group, as server-sent events
:mod:`.openapi`     the native API as an OpenAPI document
:mod:`.client`      programs that command a group over HTTP
:mod:`.surface`     what a front for one kind of trainer is
:mod:`.surfaces`    those fronts
:mod:`.security`    who is let in: addresses, tokens, Host and Origin, bodies
:mod:`.upstream`    what wsm does not know, forwarded to the server behind
:mod:`._serving`    where the app listens, and how it ends
:mod:`.data_routes` text for trainers from a group of ``wsm rollout``; :mod:`._text_bodies` reads and forms it
:mod:`.engine_requests`  the requests for text that are open there
:mod:`.errors`      what a request can be told that no other part says
==================  ======================================================================================
"""

from wsm.http.app import create_app
from wsm.http.client import AsyncClient, Client
from wsm.http.closed_holds import ClosedHold
from wsm.http.commands import Commands, Origin
from wsm.http.security import Security
from wsm.http.surface import InHold, Surface, SurfaceRoute

__all__ = [
    "AsyncClient",
    "Client",
    "ClosedHold",
    "Commands",
    "InHold",
    "Origin",
    "Security",
    "Surface",
    "SurfaceRoute",
    "create_app",
]
