"""Over HTTP: a group commanded by trainers as they are, by operators and by programs on other hosts.

One ASGI app, mounted into an engine's own or served by ``wsm serve``. It needs the extra ``wsm[http]``.

====================  ==============================================================================
module                responsible for
====================  ==============================================================================
:mod:`.app`           whose route answers which path (:func:`create_app`); the gate of a held group
:mod:`.commands`      one group's commands: once per request id, held by a surface, kept
:mod:`.hold_table`    what a hold means, and what makes it another
:mod:`.closed_holds`  closes a hold, so that no blind release ends it
:mod:`.kept`          what outlives a server: the ends of requests
:mod:`.answers`       from receipts and errors to statuses, headers and bodies, and back
:mod:`.bodies`        bodies of requests, read into the struct of their verb
:mod:`.surface`       what a front for one kind of trainer is
:mod:`.surfaces`      those fronts
:mod:`.pinned`        requests for text that name the version which is to answer them
:mod:`.native`        the front for programs and operators: ``/wsm/v1``
:mod:`.client`        programs that command a group over HTTP
:mod:`.security`      who is let in: addresses, tokens, Host and Origin, bodies
:mod:`.upstream`      what wsm does not know, forwarded to the server behind
:mod:`._serving`      where the app listens, and how it ends
:mod:`.errors`        what a request can be told that no other part says
====================  ==============================================================================
"""

from wsm.http.app import create_app
from wsm.http.client import AsyncClient, Client
from wsm.http.commands import Commands, Origin
from wsm.http.security import Security
from wsm.http.surface import InHold, Surface, SurfaceRoute
from wsm.states.holding import ClosedHold

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
