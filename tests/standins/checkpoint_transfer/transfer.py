"""The stand-in's newer interface: constructed with a configuration, partly asynchronous."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar

from checkpoint_transfer.config import FakeTransferConfig
from checkpoint_transfer.stream import FakeCheckpointTransfer


class FakeUnifiedTransfer:
    """CheckpointTransfer as FastDeploy's unified path constructs it."""

    made: ClassVar[list[FakeUnifiedTransfer]] = []

    def __init__(self, config: FakeTransferConfig) -> None:
        self.config = config
        self.frameworks: list[str] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        self.cleaned = False
        self._stream = FakeCheckpointTransfer(
            global_rank=config.global_rank,
            group_size=config.group_size,
            redis_host=config.redis_host,
            redis_port=config.redis_port,
            num_buffers=config.num_buffers,
            materialize_tensors=config.materialize_tensors,
        )
        self.made.append(self)

    async def initialize(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stream.initialize()

    async def cleanup(self) -> None:
        assert asyncio.get_running_loop() is self.loop, "used in another event loop than it was made in"
        self.cleaned = True
        self._stream.cleanup()

    def receive_weights_sync(self, step_id: str, output_framework: str) -> Iterator[tuple[str, Any]]:
        self.frameworks.append(output_framework)
        return self._stream.receive_stream(step_id, verify_checksum=True)


CheckpointTransfer = FakeUnifiedTransfer
