"""The rendezvous directory, with real files, threads and processes."""

from __future__ import annotations

import threading

import pytest

from tests.forkserver import WITHOUT_PADDLE
from wsm.actions.backends.rendezvous import FIRST_GROUP_ID, Endpoint, FileRendezvous
from wsm.errors import BadInputError, GroupError

ENDPOINT = Endpoint(4000, 10_001)


@pytest.fixture
def meeting(tmp_path):
    return FileRendezvous(tmp_path / "run")


def find(meeting, incarnation, timeout_s=5.0, interrupted=bool):
    return meeting.find(incarnation, leader=0, timeout_s=timeout_s, interrupted=interrupted)


def test_what_is_announced_is_found_and_what_is_withdrawn_is_not(meeting):
    meeting.announce("tp-1", ENDPOINT)
    assert find(meeting, "tp-1") == ENDPOINT
    meeting.withdraw("tp-1")
    meeting.withdraw("tp-1")
    with pytest.raises(GroupError, match="rank 0"):
        find(meeting, "tp-1", timeout_s=0.01)


def test_a_member_that_is_early_waits_for_the_announcement(meeting):
    found = []
    waiting = threading.Thread(target=lambda: found.append(find(meeting, "tp-1")))
    waiting.start()
    meeting.announce("tp-1", ENDPOINT)
    waiting.join(5)
    assert found == [ENDPOINT]


def test_waiting_ends_at_once_when_it_has_become_pointless(meeting):
    with pytest.raises(GroupError) as caught:
        find(meeting, "tp-1", timeout_s=60, interrupted=lambda: True)
    assert caught.value.seconds < 60


def test_a_name_is_announced_once(meeting):
    meeting.announce("tp-1", ENDPOINT)
    with pytest.raises(BadInputError, match="already"):
        meeting.announce("tp-1", ENDPOINT)


@pytest.mark.parametrize("name", ["", "../tp", "a/b", ".hidden", "x" * 129])
def test_a_name_that_is_no_file_name_is_refused(meeting, name):
    with pytest.raises(BadInputError, match="file name"):
        meeting.announce(name, ENDPOINT)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        '{"port": 2}',
        '{"port": "2", "group_id": 3}',
        '{"port": 70000, "group_id": 3}',
        "[" * 5000,
    ],
)
def test_a_file_that_is_no_endpoint_is_an_error_and_not_a_wait(meeting, tmp_path, content):
    (tmp_path / "run" / "tp-1.endpoint").write_text(content)
    with pytest.raises(BadInputError, match="not an endpoint"):
        find(meeting, "tp-1")


@pytest.mark.processes
def test_no_group_id_is_handed_out_twice_by_processes_that_ask_at_once(meeting, tmp_path):
    program = (
        "import sys; from wsm.actions.backends.rendezvous import FileRendezvous\n"
        "meeting = FileRendezvous(sys.argv[1])\n"
        "print(*(meeting.next_group_id() for _ in range(200)))"
    )
    asking = [WITHOUT_PADDLE.start("-c", program, tmp_path / "run", stderr=None) for _ in range(3)]
    taken = [int(number) for process in asking for number in process.communicate()[0].split()]
    assert sorted(taken) == list(range(FIRST_GROUP_ID, FIRST_GROUP_ID + 600))
