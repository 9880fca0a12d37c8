"""Requests over the real socket, against a scheduler whose model always says 9."""

from __future__ import annotations

import socket
import struct
import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.rollout.block_pool import BlockPool
from examples.rollout.client import RolloutClient
from examples.rollout.config import Limits
from examples.rollout.errors import (
    ClientTimeoutError,
    FrameError,
    GenerationRefusedError,
    RolloutUnreachableError,
)
from examples.rollout.model.sampling import Choices
from examples.rollout.model.shape import ModelShape
from examples.rollout.request import FinishReason
from examples.rollout.request_service import RequestService
from examples.rollout.request_socket import (
    MAX_FRAME_BYTES,
    FrameReader,
    RequestSocket,
    encode,
    request_socket_path,
)
from examples.rollout.scheduler import Scheduler


class Leader(threading.Thread):
    """Rank 0's loop without a model: every step says 9 to everybody."""

    def __init__(self, directory) -> None:
        super().__init__(daemon=True)
        self.scheduler = Scheduler(
            ModelShape(vocabulary=50, context=64), BlockPool(64, 4), Limits(max_batch=4, max_waiting=8)
        )
        self.socket = RequestSocket(request_socket_path("test", directory))
        self.service = RequestService(self.scheduler, self.socket, lambda: {"version": 3})
        self.stepping = threading.Event()
        self.stepping.set()
        self.ending = threading.Event()

    def run(self) -> None:
        while not self.ending.is_set():
            self.service.turn(0.001)
            if self.stepping.is_set() and self.scheduler.has_work():
                plan = self.scheduler.next(version="3")
                self.scheduler.complete(
                    plan, Choices(np.full(plan.rows, 9), np.full(plan.rows, -0.5)), version="3"
                )
        self.socket.close()


@pytest.fixture
def leader(tmp_path):
    thread = Leader(tmp_path)
    thread.start()
    yield thread
    thread.ending.set()
    thread.join()


@pytest.fixture
def client(leader, tmp_path):
    with RolloutClient("test", directory=tmp_path) as connected:
        yield connected


def test_prompts_are_answered_in_order(client):
    answers = client.generate([[1, 2], [3], [4, 5, 6]], 4, seed=1)
    assert [answer.tokens for answer in answers] == [(9,) * 4] * 3
    assert {answer.versions for answer in answers} == {("3",) * 4}
    assert {answer.finish_reason for answer in answers} == {FinishReason.LENGTH}


def test_tokens_are_streamed_before_the_answer(client):
    seen = {0: [], 1: []}
    client.generate([[1], [2]], 5, on_tokens=lambda index, tokens: seen[index].extend(tokens))
    assert all(1 <= len(tokens) <= 5 for tokens in seen.values())


def test_stats_count_tokens_by_version(client):
    client.generate([[1], [2]], 3)
    assert client.stats() == {
        "running": 0,
        "waiting": 0,
        "finished": 2,
        "tokens_by_version": {"3": 6},
        "kv_reuse": {
            "reused_tokens": 0,
            "crossed_tokens": 0,
            "mixed_tokens": 0,
            "blocks_by_version": {},
        },
        "version": 3,
    }


@pytest.mark.parametrize(
    ("prompts", "options", "named"),
    [
        ([[1, 99]], {}, "outside 0..49"),
        ([[]], {}, "prompt is empty"),
        ([[1]], {"max_tokens": 64}, "positions of 64"),
        ([[1]], {"max_tokens": 10**400}, "within 1"),
        ([[1]], {"temperature": 10**400}, "temperature"),
        ([[1]], {"max_tokens": 0}, "within 1"),
        ([[1]], {"temperature": -2}, "temperature"),
        ([[1]], {"temperature": "hot"}, "Expected `float`.*temperature"),
        ([[1]], {"seed": -3}, "seed"),
        ([[1]], {"stop_token": "end"}, "stop_token"),
    ],
)
def test_a_request_that_cannot_be_is_refused_and_the_connection_goes_on(client, prompts, options, named):
    with pytest.raises(GenerationRefusedError, match=named) as caught:
        client.generate(prompts, **{"max_tokens": 4, **options})
    assert caught.value.error == "bad-request"
    assert client.generate([[1]], 1)[0].tokens == (9,)


def test_a_call_that_does_not_fit_the_queue_is_refused_whole(leader, client):
    with pytest.raises(GenerationRefusedError, match="room for 8") as caught:
        client.generate([[1]] * 9, 1)
    assert caught.value.error == "queue-full"
    assert client.stats()["waiting"] == 0


def test_one_bad_prompt_keeps_a_whole_call_out(leader, client):
    leader.stepping.clear()
    with pytest.raises(GenerationRefusedError):
        client.generate([[1], [2], [999]], 1)
    assert client.stats()["waiting"] == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["id", "op", "call", "prompts", "max_tokens", "temperature", "seed", "stop_token", "stream"]


@pytest.mark.slow
@given(
    calls=st.lists(
        st.dictionaries(st.sampled_from(FIELDS), JSON | st.sampled_from(["generate", "cancel", [[1]], 3]))
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_that_a_client_can_say_stops_the_leader(leader, tmp_path, calls):
    with RolloutClient("test", directory=tmp_path) as client:
        for call in calls:
            client._socket.sendall(encode(call))
        assert client.generate([[1]], 2)[0].tokens == (9, 9)


@pytest.mark.parametrize(
    "garbage",
    [b"\xff\xff\xff\xff", struct.pack(">I", 3) + b"abc", struct.pack(">I", 2) + b"[]", struct.pack(">I", 0)],
    ids=["too-long", "no-json", "no-object", "empty"],
)
def test_garbage_costs_only_the_connection_that_sent_it(client, tmp_path, garbage):
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(str(request_socket_path("test", tmp_path)))
        other.sendall(garbage)
        other.settimeout(5)
        assert other.recv(10) == b""
    assert client.generate([[1]], 1)[0].tokens == (9,)


def test_requests_of_a_client_that_left_are_dropped(leader, client, tmp_path):
    leader.stepping.clear()
    with RolloutClient("test", directory=tmp_path) as other:
        other.submit([[1], [2]], 4)
        until(lambda: client.stats()["waiting"] == 2)
    until(lambda: client.stats()["waiting"] == 0)


def test_a_call_that_timed_out_is_cancelled_and_its_late_answers_disturb_nobody(leader, client):
    leader.stepping.clear()
    with pytest.raises(ClientTimeoutError, match=r"within 0\.0"):
        client.generate([[1]], 4, timeout_s=0.05)
    assert client.stats()["waiting"] == 0
    leader.stepping.set()
    assert client.generate([[2]], 2)[0].tokens == (9, 9)


def test_an_aborted_call_is_answered_with_the_tokens_it_has_also_while_it_waits_or_is_set_aside(
    leader, client
):
    leader.stepping.clear()
    calls = [client.submit([[1], [2, 3]], 8) for _ in range(3)]  # four requests run at once
    while leader.scheduler.waiting() < 6:
        time.sleep(0.01)
    plan = leader.scheduler.next(version="3")
    leader.scheduler.complete(plan, Choices(np.full(plan.rows, 9), np.full(plan.rows, -0.5)), version="3")
    leader.scheduler.hold()
    for aborted in (calls[0], None):
        client.abort(aborted)
    results: dict[int, list[tuple[str, list[int]]]] = {call: [] for call in calls}
    while any(len(got) < 2 for got in results.values()):
        message = client.receive(5)
        results[message["id"]] += [
            (result["finish_reason"], result["tokens"]) for result in message["results"]
        ]
    assert {reason for got in results.values() for reason, _ in got} == {FinishReason.ABORTED.value}
    assert {len(tokens) for got in results.values() for _, tokens in got} == {0, 1}
    assert leader.scheduler.waiting() == leader.scheduler.in_flight() == leader.scheduler.set_aside() == 0


def test_streamed_tokens_come_with_their_log_probabilities_and_versions(client):
    call = client.submit([[1]], 3, stream=True)
    rows = []
    while not (message := client.receive(5)).get("done"):
        rows += message["tokens"]
    assert message["id"] == call
    assert [index for index, *_ in rows] == [0] * len(rows)
    for tokens, logprobs, versions in (row[1:] for row in rows):
        assert len(tokens) == len(logprobs) == len(versions)
        assert set(tokens) | set(logprobs) | set(versions) == {9, -0.5, "3"}


def test_a_group_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RolloutUnreachableError, match=r"examples\.rollout --name nobody"):
        RolloutClient("nobody", directory=tmp_path)


def test_a_group_that_ends_is_noticed_by_a_waiting_client(leader, client):
    leader.stepping.clear()
    client.submit([[1]], 4)
    leader.ending.set()
    with pytest.raises(RolloutUnreachableError, match="takes no requests"):
        client.receive(5)


def test_the_socket_is_for_its_owner_only_and_goes_with_the_leader(leader, tmp_path):
    path = request_socket_path("test", tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    leader.ending.set()
    leader.join()
    assert not path.exists()


def test_a_socket_that_a_dead_leader_left_is_replaced(tmp_path):
    path = request_socket_path("test", tmp_path)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    RequestSocket(path).close()
    assert not path.exists()


@given(
    messages=st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text()), max_size=5),
    cuts=st.lists(st.integers(1, 20), max_size=40),
)
def test_messages_survive_any_cutting_of_the_stream(messages, cuts):
    stream = b"".join(encode(message) for message in messages)
    reader, received = FrameReader(), []
    for cut in cuts:
        received += reader.feed(stream[:cut])
        stream = stream[cut:]
    received += reader.feed(stream)
    assert received == messages


def test_a_message_that_is_too_long_is_not_sent():
    with pytest.raises(FrameError, match="at most"):
        encode({"prompts": "x" * MAX_FRAME_BYTES})


def until(condition, timeout_s: float = 10.0) -> None:
    """Wait for a condition that asks another thread; the pause is none, since asking takes time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
