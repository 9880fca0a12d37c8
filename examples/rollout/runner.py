"""One rank of the reference rollout group: the surfaces that actions use, and the step.

A :class:`wsm.actions.surfaces.Runner`. It puts the parts of this package together and contains no rule of
its own beyond the order of a step: share the plan, run the model, choose, complete. Whether a step may
run at all is proved by its permit, which alone opens the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import paddle

from examples.rollout import errors
from examples.rollout._plan_channel import PlanChannel, StepPlan
from examples.rollout.block_pool import BlockPool
from examples.rollout.config import EngineOptions
from examples.rollout.model.attention import PagedKVCache, StepInputs, paged_attention
from examples.rollout.model.draft import DraftModel
from examples.rollout.model.graphs import CapturedExecution, powers_of_two
from examples.rollout.model.moe import Mixture
from examples.rollout.model.parallel import Communicator, ExchangeBuffer
from examples.rollout.model.parameters import Parameters, Permit, ShardLoader, loaders_for
from examples.rollout.model.sampling import choose
from examples.rollout.model.sharding import shard_specs
from examples.rollout.model.transformer import Decoder, Mix, Weights, logits
from examples.rollout.scheduler import Scheduler
from wsm.actions.backends.memory import HostMemory
from wsm.actions.backends.paddle_weights import PaddleWeights
from wsm.actions.surfaces import GroupKind, ProcessGroupSurface


class RoutingReplay:
    """The record of one rank.

    Parameters
    ----------
    layers : int
        Blocks with experts.
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._step: dict[int, npt.NDArray[np.int64]] = {}
        self._records: dict[str, dict[int, list[list[int]]]] = {}

    def clear_all_requests(self) -> None:
        """Forget the record of every request. Idempotent."""
        self._records.clear()
        self._step.clear()

    def resume(self) -> None:
        """Go on recording, which nothing here interrupts. Idempotent."""

    def note(self, layer: int, experts: npt.NDArray[np.int64]) -> None:
        """Take one layer's choices, (tokens, choices), for the step that runs."""
        self._step[layer] = experts

    def attribute(self, rows: list[tuple[str, int, int]], length: int) -> None:
        """Book the step's choices.

        Parameters
        ----------
        rows : list of (request id, position of the first token, number of tokens)
            In the order of the step's rows.
        length : int
            Tokens per row in the choices, padding included.
        """
        if len(self._step) == self._layers:
            choices = np.stack([self._step[layer] for layer in range(self._layers)], axis=1)
            for row, (request_id, start, count) in enumerate(rows):
                record = self._records.setdefault(request_id, {})
                for offset in range(count):
                    record[start + offset] = choices[row * length + offset].tolist()
        self._step.clear()

    def take(self, request_id: str, positions: int) -> list[list[list[int]]] | None:
        """Return and forget a request's choices per position; empty where keys and values were reused.

        None if nothing was recorded for it.
        """
        record = self._records.pop(request_id, None)
        return None if record is None else [record.get(position, []) for position in range(positions)]


class Groups(ProcessGroupSurface, Protocol):
    """Process groups whose present handles can be asked for."""

    def group(self, kind: GroupKind) -> Any:
        """Return the ``paddle.distributed`` group, or None while it is shut down."""
        ...


class RolloutRunner:
    """One rank's engine. It starts without weights, KV cache, exchange buffer and graphs.

    Parameters
    ----------
    options : EngineOptions
        The same on all ranks.
    groups : Groups or None
        The rank's communicators, which may be shut down now; None for a single rank.
    rank, ranks : int
        Position in the group.

    Attributes
    ----------
    steps : int
        How many were begun.

    Raises
    ------
    BadInputError
        If the model cannot be split over `ranks`.
    """

    def __init__(self, options: EngineOptions, groups: Groups | None, rank: int, ranks: int) -> None:
        shape = options.shape
        self._parameters = Parameters(shard_specs(shape, rank, ranks))
        self.groups = groups
        self.rank = rank
        self._ranks = ranks
        self._tensor_parallel = self._communicator(GroupKind.TP, ranks)
        self._channel = PlanChannel(
            self._tensor_parallel,
            max_rows=options.limits.max_batch,
            max_tokens=options.limits.max_step_tokens,
            max_blocks=options.max_blocks,
        )
        self.options = options
        self.steps = 0
        self.memory = HostMemory()
        self.weights = PaddleWeights(self._parameters)
        self.routing_replay = (
            RoutingReplay(shape.layers) if shape.experts and options.routing_replay else None
        )
        self.deepep = self._exchange_buffer(ranks) if shape.experts else None
        self._decoder = Decoder(shape, self._tensor_parallel, self._mixture(ranks))
        self.pool = BlockPool(options.kv_blocks, options.block_size)
        width = shape.width // ranks
        self.kv_cache = PagedKVCache("main", self.pool, shape.layers, width)
        self.graphs = self._captured("decode", self._main_hidden, sized=True)
        draft_cache = PagedKVCache("mtp", self.pool, shape.draft_layers, width)
        self.auxiliaries: Sequence[DraftModel] = (
            [DraftModel(Decoder(shape, self._tensor_parallel), draft_cache)] if shape.draft_layers else []
        )
        for draft in self.auxiliaries:
            draft.graphs = self._captured("draft", draft.hidden, sized=False)
        hooks = [self._channel.reset, *([self.graphs.reset_inputs] if self.graphs else [])]
        self.requests = Scheduler(
            shape,
            self.pool,
            options.limits,
            reset_hooks=hooks,
            routing=lambda request: (
                self.routing_replay.take(request.request_id, request.computed)
                if self.routing_replay
                else None
            ),
        )

    def execute(self, permit: Permit | None) -> int:
        """Run one step and return the number of rows in it.

        Collective over TP and EP; blocks for the slowest rank. Rank 0 schedules, the others follow its
        plan. A step with nothing to do is a step all the same.

        Raises
        ------
        RefusedError
            Without a permit.
        wsm.errors.WsmError
            Whatever the permit raises once its step is over.
        GroupError
            If another rank holds another version.
        RefusedError
            If something the model needs holds no memory.
        """
        if permit is None:
            raise errors.step_permit_missing()
        permit.check()
        self.steps += 1
        leads = self.rank == 0
        plan = self._channel.share(self.requests.next(permit.version) if leads else None, permit)
        if not plan.rows:
            return 0
        with paddle.no_grad():
            inputs, hidden = self._run_main(plan, permit)
            drafted = [self._run_draft(draft, hidden, inputs, permit) for draft in self.auxiliaries]
            if leads:
                self._choose(plan, permit, inputs, hidden, drafted)
        return plan.rows

    def loaders(self) -> Sequence[ShardLoader]:
        """Return what takes a whole checkpoint's tensors, for strategies that bring one."""
        return loaders_for(self.options.shape, self.rank, self._ranks)

    # -- the parts of a step --------------------------------------------------------------------

    def _run_main(self, plan: StepPlan, permit: Permit) -> tuple[StepInputs, Any]:
        captured = self.graphs if self.graphs is not None and self.graphs.captured() else None
        inputs = captured.place(plan) if captured else None
        if captured and inputs:
            return inputs, captured.run(permit, inputs)
        inputs = StepInputs.of(plan, self.options.block_size)
        return inputs, self._main_hidden(self._parameters.open(permit), inputs)

    def _main_hidden(self, weights: Weights, inputs: StepInputs) -> Any:
        attend = paged_attention(self.kv_cache, inputs, self.options.shape.head_size)
        return self._decoder.hidden(weights, inputs.tokens, inputs.positions, attend)

    def _run_draft(self, draft: DraftModel, hidden: Any, inputs: StepInputs, permit: Permit) -> Any:
        if draft.graphs is not None and draft.graphs.captured():
            return draft.graphs.run(permit, hidden, inputs)
        return draft.hidden(self._parameters.open(permit), hidden, inputs)

    def _choose(
        self, plan: StepPlan, permit: Permit, inputs: StepInputs, hidden: Any, drafted: list[Any]
    ) -> None:
        """Choose the next tokens on rank 0; the other ranks learn them from the next plan."""
        weights = self._parameters.open(permit)
        requests = self.requests.stepped()
        choices = choose(
            logits(weights, _last(hidden, inputs)).numpy()[: plan.rows],
            np.array([request.temperature for request in requests], np.float64),
            np.array([request.seed for request in requests], np.uint64),
            np.array([len(request.tokens) for request in requests], np.uint64),
        )
        for draft, draft_hidden in zip(self.auxiliaries, drafted, strict=True):
            guesses = draft.guess(weights, _last(draft_hidden, inputs))
            if plan.is_decode:
                draft.compare(requests, choices, guesses)
        if self.routing_replay is not None:
            rows = zip((request.request_id for request in requests), plan.starts, plan.counts, strict=True)
            self.routing_replay.attribute([(name, int(s), int(c)) for name, s, c in rows], inputs.length)
        self.requests.complete(plan, choices, permit.version)

    # -- construction ---------------------------------------------------------------------------

    def _communicator(self, kind: GroupKind, ranks: int) -> Communicator:
        def lookup() -> Any:
            return None if self.groups is None else self.groups.group(kind)

        return Communicator(lookup, self.rank, ranks, kind.name)

    def _exchange_buffer(self, ranks: int) -> ExchangeBuffer:
        shape = self.options.shape
        width = shape.width + 2 * shape.experts_per_token
        # Captured decode steps are padded to whole inputs, which are at most max_batch rows.
        tokens = max(self.options.limits.max_step_tokens, self.options.limits.max_batch)
        return ExchangeBuffer(self._communicator(GroupKind.EP, ranks), width, shape.width, tokens)

    def _mixture(self, ranks: int) -> Mix | None:
        if self.deepep is None:
            return None
        listener = self.routing_replay.note if self.routing_replay and self.rank == 0 else None
        return Mixture(self.options.shape, self.deepep, self.rank, ranks, listener)

    def _captured(self, name: str, function: Any, *, sized: bool) -> CapturedExecution | None:
        if not self.options.capture_graphs:
            return None
        rows = powers_of_two(self.options.limits.max_batch)
        blocks = powers_of_two(self.options.max_blocks)
        sizes = [(row, block) for row in rows for block in blocks] if sized else []
        return CapturedExecution(name, self._parameters, function, sizes, self.options.block_size)


def _last(hidden: Any, inputs: StepInputs) -> Any:
    """Take each row's hidden state at its last real token: (rows, length, width) to (rows, width)."""
    return paddle.gather(hidden.reshape([-1, hidden.shape[-1]]), inputs.last)
