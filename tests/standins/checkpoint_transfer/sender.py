"""The trainer's end of the stand-in: serves one step to every receiver that asks for it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from checkpoint_transfer import wire
from wsm.strategies.trainer.tensors import tensor_of

#: What a sender can be made to do wrong.
FAULTS = ("lie", "truncate", "die", "silent", "endless", "dribble", "cut")


class FakeSender:
    """Listens until it is closed; every connection asks for one step and gets its buckets.

    Parameters
    ----------
    host, port
        Where; port 0 for any.
    bucket_bytes : int
        Tensors are packed into buckets of this size; a larger tensor has one of its own.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, bucket_bytes: int = 1 << 18) -> None:
        self._listener = socket.create_server((host, port))
        self._bucket_bytes = bucket_bytes
        self._steps: dict[int, tuple[str, list[tuple[str, Any]], str]] = {}
        self._closing = threading.Event()
        self._served: list[tuple[socket.socket, threading.Thread]] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        self.port: int = self._listener.getsockname()[1]
        self.connected = 0
        self.asked: list[dict[str, Any]] = []

    def send(
        self,
        state: Mapping[str, Any] | Sequence[tuple[str, Any]],
        *,
        step_id: str,
        rank: int = 0,
        wrong: str = "",
    ) -> None:
        """Make a rank's step ready to be asked for, and forget the one before. Pairs may repeat a name."""
        assert not wrong or wrong in FAULTS
        tensors = list(state.items() if isinstance(state, Mapping) else state)
        self._steps[rank] = (step_id, tensors, wrong)

    def settle(self) -> None:
        """Wait until every connection whose receiver is gone has been let go."""
        for connection, thread in list(self._served):
            try:
                gone = not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                gone = False
            except OSError:
                gone = True
            if gone:
                thread.join()
                self._served.remove((connection, thread))

    def close(self) -> None:
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection, thread in self._served:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connected += 1
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._served.append((connection, thread))
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while not self._closing.is_set():
                    request = wire.receive(connection, bytearray())
                    self.asked.append(request)
                    self._answer(connection, request)
            except OSError:
                return

    def _answer(self, connection: socket.socket, request: Mapping[str, Any]) -> None:
        step_id, state, wrong = self._steps.get(request["rank"], ("", [], ""))
        if step_id != request["step_id"]:
            wire.send(connection, {"error": f"step {request['step_id']} is not ready"})
            return
        if wrong == "silent":
            self._closing.wait()
            return
        buckets = list(self._buckets(state))
        for index, (tensors, payload) in enumerate(buckets):
            if wrong == "die" and index == len(buckets) // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            if wrong == "cut" and index == len(buckets) // 2:
                connection.shutdown(socket.SHUT_RDWR)
            lies = wrong == "lie" and index == len(buckets) - 1
            sent = bytes([payload[0] ^ 1]) + payload[1:] if lies else payload
            wire.send(connection, {"tensors": tensors}, sent)
        if wrong == "truncate":
            self._closing.wait()
        while wrong in ("endless", "dribble") and not self._closing.is_set():
            tensors, payload = buckets[-1]
            again = tensors if wrong == "endless" else [{**tensors[0], "name": "one more"}]
            wire.send(connection, {"tensors": again}, payload)
            self._closing.wait(0.02 if wrong == "dribble" else 0.0)
        wire.send(connection, {"end": True})

    def _buckets(self, state: list[tuple[str, Any]]) -> Any:
        tensors: list[dict[str, Any]] = []
        payload = b""
        for name, value in state:
            spec, data = tensor_of(name, value)
            if tensors and len(payload) + len(data) > self._bucket_bytes:
                yield tensors, payload
                tensors, payload = [], b""
            tensors.append({"name": name, "dtype": spec.dtype, "shape": list(spec.shape), "at": len(payload)})
            payload += bytes(data) + bytes(-len(data) % 64)
        if tensors:
            yield tensors, payload
