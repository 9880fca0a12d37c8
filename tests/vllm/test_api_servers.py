"""Two API servers of one real vLLM have one lock, one gate and one set of receipts."""

from __future__ import annotations

import http.client
import json
import time
from contextlib import ExitStack, suppress

import psutil
import pytest

from tests.vllm.campaign import EXTENSION
from tests.vllm.server import PATIENCE_S, VllmServer
from tests.vllm.test_server import LAST

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
PROMPT = {
    "model": "m",
    "token_ids": [1, 2, 3, 4, 5],
    "sampling_params": {"temperature": 0, "max_tokens": 10, "ignore_eos": True},
}


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    flags = (*EXTENSION, "--dtype", "bfloat16", "--api-server-count", "2")
    with VllmServer(tmp_path_factory.mktemp("server"), models / "A", *flags) as server:
        yield server


def api_servers(server):
    """Return the processes, the first one first."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    named = {"".join(each.cmdline()).rpartition("APIServer_"): each for each in children}
    return [each for (_, found, number), each in sorted(named.items(), key=lambda one: one[0][2]) if found]


def of_each(server, method, path, body=None, *, timeout=120.0):
    """Return what each answers, the first one first; status 0 where there is no answer in time."""
    port, (first, other), connections = int(server.url.rpartition(":")[2]), api_servers(server), {}
    headers = {"authorization": "Bearer key", "content-type": "application/json", "connection": "close"}
    with ExitStack() as stack:
        while len(connections) < 2:  # vLLM lets the one accept that has fewer
            made = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
            made.connect()
            stack.callback(made.close)
            connections[accepted_by((first, other), made.sock.getsockname()[1])] = made
        return [
            answer_of(connections[process], method, path, body and json.dumps(body), headers)
            for process in (first, other)
        ]


def answer_of(connection, *request):
    with suppress(TimeoutError):
        connection.request(*request)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    return 0, None


def accepted_by(processes, port):
    while True:
        for process in processes:
            if any(each.raddr and each.raddr.port == port for each in process.net_connections("tcp")):
                return process
        time.sleep(0.01)


def statuses(answers):
    return [status for status, _ in answers]


def test_an_update_through_one_is_seen_through_both(server, models):
    for version in "BA":
        for status, receipt in of_each(server, "POST", "/wsm/v1/update", {"path": str(models / version)}):
            assert (status, receipt["outcome"], receipt["serves"]) == (200, "committed", version), receipt
        told = [said for _, said in of_each(server, "GET", "/wsm/v1/receipts")]
        assert told[0] == told[1]
        texts = [said["choices"][0] for _, said in of_each(server, "POST", "/inference/v1/generate", PROMPT)]
        assert texts[0] == texts[1]
        assert server.versions({"choices": texts[1:]}) == [version]


def test_while_a_version_is_prepared_through_one_both_refuse_another_trainer(server, models):
    body = {"path": str(models / "B"), "lease_s": 120}
    status, receipt = server.call("POST", "/wsm/v1/prepare", body)
    assert (status, receipt["outcome"]) == (200, "prepared"), receipt
    for status, said in of_each(server, "POST", "/wsm/v1/update", {"path": str(models / "B")}):
        assert (status, said["error"]["code"]) == (409, "update-in-progress")
    decision = {"request_id": receipt["request_id"]}
    receipts = of_each(server, "POST", "/wsm/v1/commit", decision)
    assert receipts[0] == receipts[1]
    assert (receipts[0][0], receipts[0][1]["serves"]) == (200, "B")
    assert server.update(models / "A")[0] == 200


def test_a_pause_through_one_holds_requests_through_both(server):
    assert server.call("POST", "/pause?mode=keep")[0] == 200
    assert statuses(of_each(server, "POST", "/inference/v1/generate", PROMPT, timeout=1)) == [0, 0]
    assert of_each(server, "GET", "/is_paused") == [(200, {"is_paused": True})] * 2
    assert server.call("POST", "/resume")[0] == 200
    assert statuses(of_each(server, "POST", "/inference/v1/generate", PROMPT)) == [200, 200]


def test_a_gate_that_is_closed_is_closed_in_both(server, models):
    with server.fault(rank=1, kind="tensor", name=LAST, times=2):
        status, receipt = server.update(models / "B")
    assert (status, receipt["outcome"], receipt["serves"]) == (500, "closed", None), receipt
    assert statuses(of_each(server, "POST", "/inference/v1/generate", PROMPT)) == [503, 503]
    assert statuses(of_each(server, "POST", "/resume")) == [409, 409]
    assert statuses(of_each(server, "GET", "/wsm/v1/ready")) == [503, 503]
    assert server.update(models / "A")[0] == 200
    assert statuses(of_each(server, "POST", "/inference/v1/generate", PROMPT)) == [200, 200]


def test_a_scrape_of_either_counts_all_updates(server):
    committed = 'wsm_command_seconds_count{group="vllm",operation="update",outcome="committed"}'
    for _ in range(4):
        assert committed in server.call("GET", "/wsm/v1/metrics")[1]


def test_nothing_answers_once_an_api_server_is_killed_between_prepare_and_commit(server, models):
    status, receipt = server.call("POST", "/wsm/v1/prepare", {"path": str(models / "B"), "lease_s": 120})
    assert (status, receipt["outcome"]) == (200, "prepared"), receipt
    api_servers(server)[0].kill()
    assert server.call("POST", "/wsm/v1/commit", {"request_id": receipt["request_id"]})[0] in (0, 502)
    assert server.process.wait(PATIENCE_S) != 0
    assert server.generate()[0] == 0
