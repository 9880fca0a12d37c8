"""The rank's end of the stand-in: the calls that FastDeploy's ``rsync`` makes, and those of its publisher."""

from __future__ import annotations

import math
import socket
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import paddle

from checkpoint_transfer import wire
from checkpoint_transfer.sender import FakeSender
from wsm.actions.backends.paddle_bytes import tensor_over
from wsm.strategies.tensor import ITEM_BYTES

_PADDLE = {
    "BOOL": ("uint8", "bool"),
    "U8": ("uint8", None),
    "I64": ("int64", None),
    "F16": ("float16", None),
    "F32": ("float32", None),
    "BF16": ("int16", "bfloat16"),
    "F8_E4M3": ("int8", "float8_e4m3fn"),
}


class FakeCheckpointTransfer:
    """CheckpointTransfer as FastDeploy's ``rsync`` constructs it."""

    #: Every object of this process, for tests that count.
    made: ClassVar[list[FakeCheckpointTransfer]] = []

    def __init__(
        self,
        *,
        local_rank: int = 0,
        group_size: int = 1,
        redis_host: str = "127.0.0.1",
        redis_port: int = 6379,
        num_buffers: int = 2,
        materialize_tensors: bool = True,
        **options: Any,
    ) -> None:
        self.rank = options.pop("global_rank", local_rank)
        self.group_size = group_size
        self.options = options
        self.cleaned = False
        self.checks: list[bool] = []
        self._address = (redis_host, redis_port)
        self._buffers = [bytearray() for _ in range(num_buffers)]
        self._materialize = materialize_tensors
        self._connection: socket.socket | None = None
        self._sender: FakeSender | None = None
        self.made.append(self)

    def initialize(self) -> None:
        """Connect to the sender, if there is one; a publisher has nobody to connect to."""
        if self.options.get("role") != "trainer":
            self._connection = socket.create_connection(self._address, timeout=30.0)
            self._connection.settimeout(None)

    def send(self, state: Mapping[str, Any], *, step_id: str, verify_checksum: bool = False) -> None:
        """Serve a step, as the publisher of FastDeploy's end-to-end test does."""
        if self._sender is None:
            self._sender = FakeSender(*self._address)
        self._sender.send(state, step_id=step_id)

    def receive_stream(self, step_id: str, verify_checksum: bool) -> Iterator[tuple[str, Any]]:
        """Yield one step's tensors; unless materialized they lie in buffers that are used again."""
        assert self._connection is not None
        self.checks.append(verify_checksum)
        wire.send(self._connection, {"step_id": step_id, "rank": self.rank, "group_size": self.group_size})
        index = 0
        while True:
            buffer = bytearray() if self._materialize else self._buffers[index % len(self._buffers)]
            index += 1
            header = wire.receive(self._connection, buffer)
            if "error" in header:
                raise RuntimeError(header["error"])
            if "end" in header:
                return
            payload = memoryview(buffer)[: header["nbytes"]]
            if verify_checksum and zlib.crc32(payload) != header["crc"]:
                raise ValueError(f"bucket {index} has another checksum than was sent")
            for row in header["tensors"]:
                yield row["name"], _tensor(row, payload)

    def cleanup(self) -> None:
        self.cleaned = True
        if self._connection is not None:
            self._connection.close()
        if self._sender is not None:
            self._sender.close()


def _tensor(row: Mapping[str, Any], payload: memoryview) -> Any:
    """Return a paddle tensor that lies in the payload itself."""
    carrier, name = _PADDLE[row["dtype"]]
    shape = tuple(row["shape"])
    if not math.prod(shape):
        return paddle.empty(list(shape), dtype=name or carrier)
    nbytes = math.prod(shape) * ITEM_BYTES[row["dtype"]]
    array = np.frombuffer(payload[row["at"] : row["at"] + nbytes], np.dtype(carrier)).reshape(shape)
    return tensor_over(array, name or carrier)
