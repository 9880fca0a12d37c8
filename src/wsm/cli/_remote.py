"""``wsm --url``: a group that is commanded through its server, by the words of this command line."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import click

from wsm.cli import errors
from wsm.cli._base import show, show_json
from wsm.controller import Pending
from wsm.receipt import Receipt

if TYPE_CHECKING:
    from wsm.http.client import Client

#: Keywords that mean something in this process alone.
_OF_THIS_PROCESS = ("still_wanted",)


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
    from wsm.cli.serving import require_http  # noqa: PLC0415 - it imports this module's commands

    require_http("--url")
    from wsm.http.client import Client  # noqa: PLC0415 - httpx, where it is asked for

    with Client(url, token=os.environ.get("WSM_TOKEN")) as client:
        found = client.status()["name"]
        if found != name:
            raise errors.other_group(url=url, found=str(found), group=name)
        yield client


class RemoteGroup:
    """Begins commands as :class:`wsm.Controller` does, through a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def begin_clear(self, **keywords: Any) -> Pending:
        """As :meth:`wsm.Controller.begin_clear`."""
        return self._begin("clear", keywords)

    def begin_update(self, version: str | None, **keywords: Any) -> Pending:
        """As :meth:`wsm.Controller.begin_update`."""
        return self._begin("update", {"version": version, **keywords})

    def begin_hold(self, **keywords: Any) -> Pending:
        """As :meth:`wsm.Controller.begin_hold`; the owner is the server's native API."""
        return self._begin("hold", keywords)

    def begin_release(self, **keywords: Any) -> Pending:
        """As :meth:`wsm.Controller.begin_release`."""
        return self._begin("release", keywords)

    def begin_lease(self, version: str | None, **keywords: Any) -> Pending:
        """As :meth:`wsm.Controller.begin_lease`."""
        return self._begin("prepare", {"version": version, **keywords})

    def begin_commit(self, request_id: str, **keywords: Any) -> Pending:
        """As :meth:`wsm.Controller.begin_commit`."""
        return self._begin("commit", {"prepared": request_id, **keywords})

    def begin_abort(self, request_id: str | None, **keywords: Any) -> Pending:
        """As :meth:`wsm.Controller.begin_abort`."""
        return self._begin("abort", {"prepared": request_id, **keywords})

    def _begin(self, operation: str, keywords: Mapping[str, Any]) -> Pending:
        asked = {key: value for key, value in keywords.items() if key not in _OF_THIS_PROCESS}
        asked.pop("owner", None)  # the server's surfaces own what they hold
        request_id = asked.pop("request_id", None)
        prepared = asked.pop("prepared", None)
        end: Future[Receipt] = Future()

        def ask() -> None:
            try:
                if operation == "commit":
                    receipt = self._client.commit(prepared, **asked)
                elif operation == "abort":
                    receipt = self._client.abort(prepared, **asked)
                else:
                    receipt = self._client.command(operation, request_id, **asked)
            except BaseException as error:  # noqa: BLE001 - the waiting thread gets it, whatever it is
                end.set_exception(error)
            else:
                end.set_result(receipt)

        threading.Thread(target=ask, name="wsm-remote", daemon=True).start()
        return Pending(request_id or prepared or "", end, lambda: None)


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
        facts = "  ".join(str(rank[key]) for key in ("life", "weights", "kv", "step_kind", "step", "code"))
        show(f"  rank {rank['rank']}  {facts}")


def show_explanation(name: str, url: str) -> None:
    """Print why a server's group does not serve, as plain values."""
    with server_of(name, url) as client:
        show_json(client.explain())
