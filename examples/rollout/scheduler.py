"""Continuous batching on rank 0: who is admitted, what the next step computes, who is finished.

A :class:`wsm.actions.surfaces.HoldingRequestSurface`. Blocks for the longest possible sequence of a
request are held from admission on, so a running request never has to be pushed out for want of memory. The
other ranks have a scheduler for the surface; it is always empty, since rank 0 tells them what to compute. A
request's place in the KV cache is decided here as well: how it enters, what it leaves there for others, and
whose work it reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from examples.rollout import errors
from examples.rollout._plan_channel import StepPlan
from examples.rollout.block_pool import SCRATCH_BLOCK, BlockPool
from examples.rollout.config import Limits
from examples.rollout.model.sampling import Choices
from examples.rollout.model.shape import ModelShape
from examples.rollout.request import FinishReason, Generation, GenerationRequest


class Residence:
    """The requests of one pool.

    Parameters
    ----------
    pool : BlockPool
        Where they hold blocks.

    Attributes
    ----------
    reused_tokens, crossed_tokens : int
        Tokens whose keys and values were found instead of computed, since the start; of those, found by
        another version than the one that had computed them.
    mixed_tokens : int
        Tokens generated from keys and values of more than their own version.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.reused_tokens = 0
        self.crossed_tokens = 0
        self.mixed_tokens = 0

    def enter(self, request: GenerationRequest, version: str) -> bool:
        """Hold blocks for a request's longest possible sequence; False, and nothing is held, if they lack."""
        match = self._pool.match(request.known, version)
        total = self.blocks_for(len(request.prompt) + request.max_tokens)
        more = self._pool.take(total - len(match.blocks))
        if more is None:
            self._pool.release(match.blocks, self._pool.generation)
            return False
        size = self._pool.block_size
        request.blocks = match.blocks + more
        request.generation = self._pool.generation
        request.chain = match.chain
        request.kv_versions = set(match.versions)
        request.computed = request.cached_tokens = len(match.blocks) * size
        request.crossed_tokens = match.crossed * size
        self.reused_tokens += request.cached_tokens
        self.crossed_tokens += request.crossed_tokens
        return True

    def lost(self, request: GenerationRequest) -> bool:
        """Whether the content of the request's blocks was forgotten since it entered."""
        return request.generation != self._pool.generation

    def computed(self, request: GenerationRequest, count: int, version: str) -> None:
        """Take in that `version` has computed the next `count` tokens, and offer what is full to others."""
        size, before = self._pool.block_size, request.computed
        request.computed += count
        self._pool.written(request.blocks[before // size : self.blocks_for(request.computed)], version)
        request.kv_versions.add(version)
        full = range(before // size, request.computed // size)
        known = request.known if full else []
        for index in full:
            if request.chain is None:
                return
            tokens = known[index * size : (index + 1) * size]
            request.chain = self._pool.publish(request.chain, tokens, request.blocks[index])

    def chosen(self, request: GenerationRequest, version: str) -> None:
        """Note from whose keys and values the token was chosen that `version` has just appended."""
        if request.kv_versions != {version}:
            request.mixed.append(len(request.tokens) - 1)
            self.mixed_tokens += 1

    def leave(self, request: GenerationRequest) -> None:
        """Let go of the request's blocks; what it offered stays until the memory is needed."""
        self._pool.release(request.blocks, request.generation)
        request.leave_cache()

    def blocks_for(self, tokens: int) -> int:
        """Count the blocks of a sequence."""
        return -(-tokens // self._pool.block_size)

    def statistics(self) -> Mapping[str, Any]:
        """Return counts for ``stats``: what was reused, across versions too, and whose blocks there are."""
        return {
            "reused_tokens": self.reused_tokens,
            "crossed_tokens": self.crossed_tokens,
            "mixed_tokens": self.mixed_tokens,
            "blocks_by_version": dict(sorted(self._pool.by_version().items())),
        }


#: Returns a request's expert choices for its answer, or None.
TakeRouting = Callable[[GenerationRequest], "list[list[list[int]]] | None"]


class Scheduler:
    """The requests of a group.

    Parameters
    ----------
    shape : ModelShape
        What requests are checked against.
    pool : BlockPool
        Where running requests hold blocks.
    limits : Limits
        Bounds.
    reset_hooks : sequence of callable
        Told to forget cached input tensors.
    routing : callable
        Returns a request's expert choices for its answer, or None.
    """

    def __init__(
        self,
        shape: ModelShape,
        pool: BlockPool,
        limits: Limits,
        reset_hooks: Sequence[Callable[[], None]] = (),
        routing: TakeRouting = lambda _: None,
    ) -> None:
        self._shape = shape
        self._pool = pool
        self._residence = Residence(pool)
        self._limits = limits
        self._reset_hooks = reset_hooks
        self._routing = routing
        self._waiting: deque[GenerationRequest] = deque()
        self._running: list[GenerationRequest] = []
        self._held: list[GenerationRequest] = []
        self._frozen: set[str] = set()  # those of the waiting that were set aside
        self._step: list[GenerationRequest] = []
        self._finished: list[Generation] = []
        self._lost: list[str] = []
        self._admitting = True
        self._prefilled_last = False

    # -- what a transition asks for -------------------------------------------------------------

    def stop_admitting(self) -> None:
        """Admit no new request; queued ones wait. Idempotent."""
        self._admitting = False

    def resume_admitting(self) -> None:
        """Admit requests again, and let held ones run on. Idempotent."""
        self._admitting = True
        self._running = self._held + self._running
        self._held, self._frozen = [], set()

    def is_admitting(self) -> bool:
        """Whether new requests are admitted."""
        return self._admitting

    def in_flight(self) -> int:
        """Count the running requests."""
        return len(self._running)

    def abort_all(self) -> int:
        """End every running request with what it has so far; return how many."""
        aborted = list(self._running)
        for request in aborted:
            self._finish(request, FinishReason.ABORTED)
        return len(aborted)

    def lose_all(self) -> int:
        """Drop every running request, to be answered with an error that says "ask again"; return how many."""
        lost = [*self._running, *self._held]
        for request in lost:
            self._residence.leave(request)
        self._running, self._held, self._step = [], [], []
        self._frozen = set()
        self._lost += [request.request_id for request in lost]
        return len(lost)

    def freeze(self) -> int:
        """Put every running request back to the head of the queue, without blocks; return how many."""
        frozen = list(self._running)
        self._requeue(frozen)
        self._frozen |= {request.request_id for request in frozen}
        return len(frozen)

    def hold(self) -> int:
        """Take every running request off the batch, with its blocks; return how many. Idempotent."""
        held = len(self._running)
        self._held += self._running
        self._running = []
        return held

    def set_aside(self) -> int:
        """Count the requests that were frozen or held, and wait still."""
        return len(self._held) + len(self._frozen_waiting())

    def abort_set_aside(self) -> int:
        """End each of them with what it has so far; return how many."""
        ended = [*self._held, *self._frozen_waiting()]
        for request in ended:
            self._finish(request, FinishReason.ABORTED)
        self._frozen = set()
        return len(ended)

    def reset_inputs(self) -> None:
        """Forget the inputs of the last step. Idempotent."""
        self._step = []
        self._prefilled_last = False
        for reset in self._reset_hooks:
            reset()

    # -- what the event loop asks for -----------------------------------------------------------

    def check(self, request: GenerationRequest) -> None:
        """Refuse what could never run.

        Raises
        ------
        BadInputError
            If the request does not fit the model or the cache.
        """
        request.check(self._shape)
        needed = self._residence.blocks_for(len(request.prompt) + request.max_tokens)
        if needed >= self._pool.blocks:
            raise errors.bad_request(
                field="max_tokens", reason=f"needs {needed} of {self._pool.blocks - 1} KV blocks"
            )

    def room(self) -> int:
        """Count requests that may still be submitted."""
        return self._limits.max_waiting - len(self._waiting)

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request.

        Raises
        ------
        BadInputError
            As :meth:`check`.
        RefusedError
            If too many wait already.
        """
        self.check(request)
        if self.room() < 1:
            raise errors.queue_full(asked=1, room=self.room())
        self._waiting.append(request)

    def cancel(self, request_ids: set[str]) -> None:
        """Drop requests whose submitter is gone; no answer is sent."""
        self._waiting = deque(request for request in self._waiting if request.request_id not in request_ids)
        for requests in (self._running, self._held):
            for request in [each for each in requests if each.request_id in request_ids]:
                self._residence.leave(request)
                requests.remove(request)

    def abort(self, request_ids: set[str]) -> None:
        """End requests with what they have so far, those too that wait or were set aside."""
        queues = (self._running, self._held, self._waiting)
        for request in [each for queue in queues for each in queue if each.request_id in request_ids]:
            self._finish(request, FinishReason.ABORTED)

    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        return bool(self._running) or (self._admitting and bool(self._waiting))

    def waiting(self) -> int:
        """Count queued requests."""
        return len(self._waiting)

    def kv_statistics(self) -> Mapping[str, Any]:
        """Return what :meth:`examples.rollout.scheduler.Residence.statistics` counts."""
        return self._residence.statistics()

    def take_finished(self) -> list[Generation]:
        """Return and forget the answers since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def take_lost(self) -> list[str]:
        """Return and forget the requests that were lost since the last call."""
        lost, self._lost = self._lost, []
        return lost

    # -- one step -------------------------------------------------------------------------------

    def next(self, version: str) -> StepPlan:
        """Choose what the next step computes with the weights of `version`; empty if nothing is to do."""
        # A cache that was forgotten takes its blocks' content with it, whatever the policy was.
        self._requeue([request for request in self._running if self._residence.lost(request)])
        self._admit(version)
        decoding = [request for request in self._running if request.remaining == 1]
        prefilling = [request for request in self._running if request.remaining > 1]
        # Prompts and running requests take turns, so neither starves the other.
        self._prefilled_last = bool(prefilling) and not (decoding and self._prefilled_last)
        rows = prefilling if self._prefilled_last else decoding
        budget = self._limits.max_step_tokens
        length = min(max((request.remaining for request in rows), default=0), budget)
        self._step = rows[: budget // length] if length else []
        return self._plan(length)

    def stepped(self) -> list[GenerationRequest]:
        """Return the requests of the step that :meth:`next` has chosen, row by row."""
        return self._step

    def complete(self, plan: StepPlan, choices: Choices, version: str) -> None:
        """Take a step's results; a row's choice counts only where the whole sequence went through."""
        for row, request in enumerate(self._step):
            self._residence.computed(request, int(plan.counts[row]), version)
            if request.remaining == 0:
                request.tokens.append(int(choices.tokens[row]))
                request.logprobs.append(float(choices.logprobs[row]))
                request.versions.append(version)
                self._residence.chosen(request, version)
                if request.tokens[-1] in request.stop_tokens:
                    self._finish(request, FinishReason.STOP)
                elif len(request.tokens) >= request.max_tokens:
                    self._finish(request, FinishReason.LENGTH)
        self._step = []

    # -- inside ---------------------------------------------------------------------------------

    def _admit(self, version: str) -> None:
        while self._admitting and self._waiting and len(self._running) < self._limits.max_batch:
            if not self._residence.enter(self._waiting[0], version):
                return
            self._running.append(self._waiting.popleft())

    def _plan(self, length: int) -> StepPlan:
        rows = self._step
        counts = np.array([min(request.remaining, length) for request in rows], np.int32)
        starts = np.array([request.computed for request in rows], np.int32)
        tables = np.full(
            (len(rows), self._residence.blocks_for(int((starts + counts).max(initial=0)))),
            SCRATCH_BLOCK,
            np.int32,
        )
        tokens = np.zeros((len(rows), length), np.int32)
        for row, request in enumerate(rows):
            start, end = request.computed, request.computed + int(counts[row])
            tokens[row, : counts[row]] = request.known[start:end]
            held = request.blocks[: self._residence.blocks_for(end)]
            tables[row, : len(held)] = held
        return StepPlan(tokens, starts, counts, tables)

    def _frozen_waiting(self) -> list[GenerationRequest]:
        return [request for request in self._waiting if request.request_id in self._frozen]

    def _requeue(self, requests: list[GenerationRequest]) -> None:
        for request in reversed(requests):
            self._residence.leave(request)
            self._running.remove(request)
            self._waiting.appendleft(request)

    def _finish(self, request: GenerationRequest, reason: FinishReason) -> None:
        routing = self._routing(request)
        answer = Generation(
            request.request_id,
            tuple(request.tokens),
            tuple(request.logprobs),
            tuple(request.versions),
            reason,
            request.cached_tokens,
            request.crossed_tokens,
            tuple(request.mixed),
            routing,
        )
        self._residence.leave(request)
        queues = (self._running, self._held, self._waiting)
        next(queue for queue in queues if request in queue).remove(request)
        self._finished.append(answer)
