"""What the tests over HTTP share: a living group per module, and an app that commands it in this process."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

# The rank program is both run as a process and read by tests, and pytest finds neither by itself.
sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from living_fixtures import make_group
from living_group import LivingGroup

from tests.http.described import require_described
from wsm.http import Commands, create_app

__all__ = ["living", "make_group"]

BASE = "http://127.0.0.1:8000"


class Front:
    """An app for a group, asked in this process as over a socket."""

    def __init__(self, group: LivingGroup, **options: Any) -> None:
        self.group = group
        self.commands = Commands(group.name, directory=group.directory)
        self.app = create_app(self.commands, **options)
        self._open = create_app(self.commands, **{**options, "security": None})

    def ask(self, method: str, path: str, *, base: str = BASE, **options: Any) -> httpx.Response:
        """One request, in an event loop of its own."""
        return self.ask_all((method, path, options), base=base)[0]

    def ask_all(self, *requests: tuple[str, str, dict[str, Any]], base: str = BASE) -> list[httpx.Response]:
        """Several requests at once, in one event loop."""

        async def together() -> list[httpx.Response]:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url=base, timeout=60) as client:
                asked = [client.request(method, path, **options) for method, path, options in requests]
                return await asyncio.gather(*asked)

        answers = asyncio.run(together())
        for answer in answers:
            require_described(self.document, answer)
        return answers

    @functools.cached_property
    def document(self) -> dict[str, Any]:
        """What the server says that it answers; of one with tokens too."""

        async def asked() -> dict[str, Any]:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self._open), base_url=BASE) as client:
                return dict((await client.get("/wsm/v1/openapi.json")).json())

        return asyncio.run(asked())

    def post(self, path: str, /, **body: Any) -> httpx.Response:
        return self.ask("POST", path, json=body)

    def close(self) -> None:
        self.commands.close()


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivingGroup]:
    """Two ranks that serve version 1, with versions 1 to 3 published; shared by a module's tests."""
    group = LivingGroup(tmp_path_factory.mktemp("group"), load=0.5)
    group.boot(1)
    for version in (2, 3):
        group.publish(version)
    yield group
    group.close()


@pytest.fixture
def make_front(living: LivingGroup) -> Iterator[Callable[..., Front]]:
    """`make_front(surfaces=...)`: an app for the module's group, which is open and serves afterwards."""
    made: list[Front] = []

    def make(**options: Any) -> Front:
        made.append(Front(living, **options))
        return made[-1]

    yield make
    controller = living.controller()
    if controller.status().decision_left_s is not None:  # of a test that failed
        controller.abort()
    controller.update(1)
    controller.release(force=True)
    for front in made:
        front.close()


@pytest.fixture
def front(make_front: Callable[..., Front]) -> Front:
    """An app with the native API alone."""
    return make_front()
