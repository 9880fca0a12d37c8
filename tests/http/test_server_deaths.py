"""A server that is killed in the middle of a command: the group decides, and the next server knows of it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from msgspec import structs

import wsm
from tests.forkserver import FOR_COMMANDS, Forked
from tests.raising import raising
from wsm.controller import errors
from wsm.controller.abandoned_commands import revise_hold
from wsm.controller.group_view import GroupAccess
from wsm.http import Client
from wsm.states.holding import ClosedHold

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).with_name("server_process.py")


@pytest.fixture
def start(living, tmp_path):
    """`start()`: a server at a Unix socket, ready, and a client of it."""
    started = []

    def begin(name: str = "socket") -> tuple[Forked, Client]:
        place = str(tmp_path / name)
        process = FOR_COMMANDS.start(PROGRAM, living.name, living.directory, place, stderr=None)
        started.append(process)
        assert process.stdout.readline() == f"unix:{place}\n".encode()
        return process, Client(f"unix:{place}")

    yield begin
    for process in started:
        process.close()
    with living.controller() as controller:
        controller.update(1)
        controller.release(force=True)


def test_a_hold_that_a_server_closed_before_it_was_killed_is_closed_to_all_that_come_after(
    start, living
) -> None:
    first, client = start()
    second, other = start("second")
    with client, other:
        held = client.command("hold")
        refused = ClosedHold("native", "/push", "push", held.version)
        access = GroupAccess(living.name, directory=living.directory)
        revise_hold(access, lambda hold, _: structs.replace(hold, closed=refused), wait_s=10)
        access.close()
        (living.directory / "journals" / "http.sqlite").write_bytes(b"")
        for process in (first, second):
            process.kill()
            process.wait()
    _, successor = start("third")
    with successor, living.controller() as controller:
        for blind in (lambda: successor.command("release"), lambda: controller.release(owner="http:native")):
            with raising(errors.hold_closed):
                blind()
        assert successor.command("release", force=True).serving


def test_one_request_that_is_asked_of_two_servers_at_once_is_one_command(start, living) -> None:
    (_, first), (_, other) = start(), start("second")
    with first, other, living.controller() as controller:
        before = controller.status().sequence
        for number in range(5):
            answers = []
            together = threading.Barrier(2)

            def asks(client, name: str, answers: list[object] = answers, barrier=together) -> None:
                barrier.wait(10)
                answers.append(client.command("update", name, version=2, force=True, wait_s=30))

            asking = [threading.Thread(target=asks, args=(each, f"r{number}")) for each in (first, other)]
            for each in asking:
                each.start()
            for each in asking:
                each.join(60)
            assert len(answers) == 2
            assert answers[0] == answers[1]
        assert controller.status().sequence - before == 5


def test_the_group_ends_what_a_killed_server_began_and_the_next_one_knows(start, living) -> None:
    first, client = start()
    with client:
        client.command("hold", "pause")
        living.order(0, "write", "hold")
        ended = []

        def update() -> None:
            try:
                client.command("update", "two", version=2, wait_s=0)
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
        again = successor.command("update", "two", version=2, wait_s=30)
        assert (again.version, again.hold.owner) == ("2", "http:native")
        assert successor.request("two")["state"] == "succeeded"
        assert successor.command("release").serving
    living.await_steps()
    living.assert_steps_are_pure()
