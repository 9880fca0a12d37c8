"""The sizes of one rank's engine, agreed by all ranks. Knows no paddle."""

from __future__ import annotations

from dataclasses import dataclass, field

from wsm.rollout.shape import ModelShape


@dataclass(frozen=True)
class Limits:
    """Bounds of scheduling.

    Parameters
    ----------
    max_batch : int
        Requests that run at the same time.
    max_step_tokens : int
        Tokens of one step, padding included.
    max_waiting : int
        Requests that may wait beyond those.
    """

    max_batch: int = 128
    max_step_tokens: int = 1024
    max_waiting: int = 1024


@dataclass(frozen=True)
class EngineOptions:
    """What a rank allocates and does, apart from its weights.

    Parameters
    ----------
    shape : ModelShape
        The full model.
    kv_blocks : int
        KV blocks, one of which is scratch.
    block_size : int
        Tokens per KV block.
    limits : Limits
        Of the scheduler.
    capture_graphs : bool
        Whether decode steps run as captured execution.
    routing_replay : bool
        Whether expert choices are recorded; only for a mixture of experts.
    """

    shape: ModelShape = field(default_factory=ModelShape)
    kv_blocks: int = 1024
    block_size: int = 4
    limits: Limits = field(default_factory=Limits)
    capture_graphs: bool = True
    routing_replay: bool = False

    @property
    def max_blocks(self) -> int:
        """KV blocks of the longest sequence."""
        return -(-self.shape.context // self.block_size)
