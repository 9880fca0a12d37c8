"""The stand-in's configuration types, with the names and defaults of the package's newer interface."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class Role(enum.Enum):
    TRAINER = "trainer"
    INFERENCE = "inference"


class Phase1Backend(enum.Enum):
    GPU_DIRECT = "gpu_direct"
    MOONCAKE = "mooncake"
    IPC = "ipc"


@dataclass
class FakeTransferConfig:
    role: Any
    global_rank: int
    group_size: int = 1
    phase1_backend: Any = Phase1Backend.GPU_DIRECT
    bucket_size_mb: int = 512
    num_buffers: int = 2
    redis_host: str = "127.0.0.1"
    redis_port: int = 6379
    discover_timeout_s: float = 60.0
    recv_bucket_timeout_s: float = 60.0
    session_total_timeout_s: float = 600.0
    device: str | None = None
    materialize_tensors: bool = True
    qsize: int = 3


TransferConfig = FakeTransferConfig
