"""The sizes of one rank's engine, agreed by all ranks. Knows no paddle."""

from __future__ import annotations

from dataclasses import dataclass, field

from wsm.rollout.model.shape import ModelShape

#: Bytes of one number, of a weight, a key or a value.
ITEM_BYTES = 4


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

    @property
    def cache_process_bytes(self) -> int:
        """Bytes that the KV-cache process holds, where there is one."""
        return self.kv_blocks * self.block_size * self.shape.width * 2 * ITEM_BYTES

    @property
    def least_bytes(self) -> int:
        """Bytes that all ranks together take at least: weights, KV cache, and the inputs of a step."""
        shape, limits = self.shape, self.limits
        cached = self.kv_blocks * self.block_size * shape.width * (shape.layers + shape.draft_layers)
        exchanged = limits.max_step_tokens * (shape.width + 1) if shape.experts else limits.max_step_tokens
        step = limits.max_batch * (2 + self.max_blocks) + exchanged
        return ITEM_BYTES * (shape.parameters + 2 * cached + step)
