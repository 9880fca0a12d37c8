"""A server that is killed in the middle of a command: the group decides, and the next server knows of it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import wsm
from wsm.http import Client

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).with_name("server_process.py")


@pytest.fixture
def start(living, tmp_path):
    """`start()`: a server at a Unix socket, ready, and a client of it."""
    started = []

    def begin() -> tuple[subprocess.Popen, Client]:
        place = str(tmp_path / "socket")
        command = [sys.executable, str(PROGRAM), living.name, str(living.directory), place]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == f"unix:{place}\n".encode()
        return process, Client(f"unix:{place}")

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
    with living.controller() as controller:
        controller.update(1)
        controller.release(force=True)


def test_the_group_ends_what_a_killed_server_began_and_the_next_one_knows(start, living) -> None:
    first, client = start()
    with client:
        client.hold(request_id="pause")
        living.order(0, "write", "hold")
        ended = []

        def update() -> None:
            try:
                client.update(2, request_id="two", wait_s=0)
            except wsm.WsmError as error:
                ended.append(error.code)

        asking = threading.Thread(target=update)
        asking.start()
        living.await_held(0, "write")
        first.kill()
        first.wait()
        asking.join()
    living.revoke(0, "write")
    assert ended == ["upstream-unreachable"]
    _, successor = start()
    with successor:
        assert successor.request("pause")["state"] == "succeeded"
        assert successor.request("two")["state"] == "lost"
        again = successor.update(2, request_id="two", wait_s=30)
        assert (again.version, again.hold["owner"]) == ("2", "http:native")
        assert successor.request("two")["state"] == "succeeded"
        assert successor.release().serving
    living.await_steps()
    living.assert_steps_are_pure()
