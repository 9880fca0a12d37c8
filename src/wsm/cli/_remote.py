"""``wsm --url``: a group that is commanded through its server, by the words of this command line."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from wsm.cli._base import CommandEndedError, require_http, show, show_json
from wsm.controller import Pending
from wsm.receipt import Receipt

if TYPE_CHECKING:
    from wsm.http.client import Client


def server_url() -> str | None:
    """Return the URL that the command line was given; None: the group is on this host."""
    url: str | None = click.get_current_context().find_root().obj
    return url


@contextlib.contextmanager
def server_of(name: str, url: str) -> Iterator[Client]:
    """Give a client of the server at `url`, which commands the group `name`.

    Raises
    ------
    RefusedError
        If it commands another one.
    WsmError
        If it cannot be asked.
    """
    require_http("--url")
    from wsm.http.client import Client  # noqa: PLC0415 - httpx, where it is asked for

    with Client(url, token=os.environ.get("WSM_TOKEN")) as client:
        found = client.status()["name"]
        if found != name:
            raise CommandEndedError(
                f"{url} commands the group {found!r}, not {name!r}; nothing was asked of it"
            )
        yield client


def begin_remotely(client: Client, operation: str, **keywords: Any) -> Pending:
    """Begin a command as the ``begin_`` method of :class:`wsm.Controller` does, through a server."""
    request_id = keywords.pop("request_id", None)

    def ask() -> Receipt:
        return client.command("prepare" if operation == "lease" else operation, request_id, **keywords)

    return Pending(request_id or "", lambda: None).carry_out(ask)


def show_status(name: str, url: str, *, as_json: bool) -> None:
    """Print what a server says of its group."""
    with server_of(name, url) as client:
        now = client.status()
    if as_json:
        show_json(now)
        return
    show(f"{name} {now['headline']}")
    for line in (now.get("because"), *now.get("advice", ())):
        if line:
            show(f"  {line}")
    for rank in now["ranks"]:
        told = ("life", "weights", "kv", "step_kind", "step", "code")
        facts = "  ".join(str(rank[key]) for key in told if key in rank)  # a vLLM's have no steps
        show(f"  rank {rank['rank']}  {facts}")
