"""Raw bytes at a server of ``wsm serve`` as a format: whatever is sent, what comes back is an answer of ours.

A real server on a real socket, before a group that has no ranks, so that every command ends at once. Behind
each input the server must answer another client. What is no HTTP at all is refused.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import socket
import tempfile
from functools import lru_cache
from multiprocessing import util
from pathlib import Path
from typing import Any

from fuzz.invariant import Format
from wsm.errors import BadInputError
from wsm.http import Commands, create_app
from wsm.http._serving import Listening, served_beside
from wsm.http.bodies import object_of
from wsm.http.surfaces import SURFACES, SurfaceOptions
from wsm.signals.segment import Segment

#: What the format is called.
HTTP_REQUEST = "http request"

#: What a route may answer; 500 only with an error of wsm that says which.
_PROMISED = frozenset(
    (200, 202, 304, 400, 401, 403, 404, 405, 408, 409, 413, 421, 422, 431, 500, 501, 503, 504)
)

#: Seconds without a byte after which an answer is taken to be over.
_QUIET_S = 0.2

_BODIES: tuple[tuple[str, object], ...] = (
    ("/wsm/v1/update", {"version": 7, "after": "serve", "tags": ["weights"], "rsync_config": {"a": 1}}),
    ("/wsm/v1/hold", {"lease_s": 2.5, "in_flight": "abort", "on_lease": "serve"}),
    ("/wsm/v1/release", {"force": True}),
    ("/wsm/v1/commit", {"request_id": "one"}),
    ("/pause_generation", {"mode": "abort"}),
    ("/update_weights_from_disk", {"model_path": "/w/../w/step_2", "weight_version": "2"}),
    ("/pull_weights", {"source_dir": "/w", "local_checkpoint_dir": "/l", "target_version": 2}),
    ("/update_weights", {"update_info": {"path": "/w/step_2", "version": 2}}),
    ("/finish_weight_update", {"weight_version": "2"}),
    ("/release_memory_occupation", {"tags": ["weights", "kv_cache"]}),
    ("/v1/update_weights", {"version": "global_step_7", "verify_checksum": True}),
    ("/v1/abort_requests", {"req_ids": ["a"], "abort_all": False}),
    ("/weight_checker", {"action": "compare", "baseline": {"manifest": "0"}}),
    ("/workers", {"url": "http://127.0.0.1:1"}),
    ("/generate", {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2}}),
)
_GETS = (
    *("/health", "/wsm/v1/status", "/wsm/v1/openapi.json", "/wsm/v1/commands/one%2ftwo", "/v1/models"),
    *("/server_info", "/v1/is_paused", "/clear_load_weight", "/flush_cache?timeout=1", "/get_weight_version"),
)


def http_request() -> Format:
    """Return the format; a value is what was answered as HTTP."""
    return Format(
        name=HTTP_REQUEST,
        reader=object_of,
        decode=_answered,
        encode=bytes,
        samples=(
            *(_request("GET", path) for path in _GETS),
            *(_request("POST", path, json.dumps(body).encode()) for path, body in _BODIES),
            _request("POST", "/wsm/v1/hold", b"2\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding: chunked\r\n"),
            _request("GET", "/health", more="Connection: keep-alive\r\n") + _request("GET", "/v1/models"),
        ),
    )


def _request(method: str, path: str, body: bytes = b"", more: str = "") -> bytes:
    length = "" if "chunked" in more or not body else f"Content-Length: {len(body)}\r\n"
    close = "" if "Connection" in more else "Connection: close\r\n"
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{length}{close}{more}"
    return head.encode() + b"\r\n" + body


def _answered(data: bytes) -> bytes:
    """Send bytes, and hold what comes back to what is promised.

    Raises
    ------
    BadInputError
        If the server says that they are no HTTP, or says nothing: there is no whole request in them.
    AssertionError
        If it answers what no route promises, or answers the next client no more.
    """
    where = _server()
    answers = _answers(_exchange(where, data))
    for status, body in answers:
        _require(status in _PROMISED, f"it answers {status}: {body[:200]!r}")
        with contextlib.suppress(ValueError):
            said = json.loads(body)
            error = said.get("error") if isinstance(said, dict) else None
            code = error.get("code") if isinstance(error, dict) else None
            _require(code != "internal", f"it meets an error of its own: {body[:200]!r}")
            _require(status != 500 or code, f"it does not say why: {body[:200]!r}")
    after = _answers(_exchange(where, _request("GET", "/wsm/v1/status")))
    _require([status for status, _ in after] == [200], "it does not answer the next client")
    if not answers or answers[0][0] == 400:
        raise BadInputError("it is no request")
    return data


def _require(kept: object, problem: str) -> None:
    if not kept:
        raise AssertionError(problem)


def _exchange(where: tuple[str, int], data: bytes) -> bytes:
    received = b""
    with socket.create_connection(where, timeout=20) as made, contextlib.suppress(OSError):
        made.sendall(data)
        made.settimeout(_QUIET_S if b"close" not in data else 1)
        while part := made.recv(1 << 16):
            received += part
            made.settimeout(_QUIET_S)
        # A reset or silence ends what was received, and what that is, is looked at.
    return received


class _Received(io.BytesIO):
    """Bytes as the file of a socket that several answers come out of."""

    def makefile(self, *_: Any) -> _Received:
        return self

    def close(self) -> None:
        """Stay: the next answer follows."""


def _answers(received: bytes) -> list[tuple[int, bytes]]:
    file, found = _Received(received), []
    while file.tell() < len(received):
        answer = http.client.HTTPResponse(file)  # type: ignore[arg-type]  # the file of a socket
        try:
            answer.begin()
            found.append((answer.status, answer.read()))
        except http.client.HTTPException as error:
            raise AssertionError(f"it answers what is no HTTP: {received[-200:]!r}") from error
    return found


@lru_cache(maxsize=1)
def _server() -> tuple[str, int]:
    """Start the server of this process, which lives as long as it."""
    undo = contextlib.ExitStack()
    util.Finalize(None, undo.close, exitpriority=10)  # a process of multiprocessing runs no atexit
    directory = Path(undo.enter_context(tempfile.TemporaryDirectory()))
    made = Segment.create_or_adopt(
        "fuzzed", world_size=2, run_id="r", configuration_digest=0, directory=directory
    )
    undo.callback(made.unlink)
    commands = Commands("fuzzed", directory=directory, receipts=directory / "http.sqlite")
    undo.callback(commands.close)
    options = SurfaceOptions(deadline_s=0.2, lease_s=0.2)
    at = Listening()
    app = create_app(commands, surfaces=[of(options) for of in SURFACES.values()], security=at.security())
    host, _, port = undo.enter_context(served_beside(app, at)).removeprefix("http://").rpartition(":")
    return host, int(port)
