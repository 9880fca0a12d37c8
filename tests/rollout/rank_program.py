"""One rank of a two-rank engine, for the tests: python rank_program.py RANK DIRECTORY SHAPE_JSON SCENARIO.

Rank 0 prints one JSON line with what came out; the others follow until a step has nothing in it.
"""

from __future__ import annotations

import json
import sys

import msgspec
import numpy as np
import paddle
from engine_parts import Steps, load, ready

from examples.rollout.config import EngineOptions, Limits
from examples.rollout.model.shape import ModelShape
from examples.rollout.model.sharding import initial_state, shard
from examples.rollout.model.transformer import causal_attention, logits
from examples.rollout.request import GenerationRequest
from examples.rollout.runner import RolloutRunner
from wsm.actions.backends.paddle_groups import PaddleGlooGroups
from wsm.actions.backends.rendezvous import FileRendezvous
from wsm.actions.surfaces import GroupKind

RANKS = 2
PROMPTS = [(1, 2, 3), (4, 5, 6, 7, 8), (9,), (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)]


def requests() -> list[GenerationRequest]:
    return [GenerationRequest(f"r{i}", prompt, 6, seed=40 + i) for i, prompt in enumerate(PROMPTS)]


def options(shape: ModelShape) -> EngineOptions:
    return EngineOptions(
        shape=shape,
        kv_blocks=64,
        limits=Limits(max_batch=4, max_step_tokens=32),
        routing_replay=shape.experts > 0,
    )


class Rank:
    def __init__(self, rank: int, directory: str, shape: ModelShape) -> None:
        self.rank, self.shape = rank, shape
        kinds = [GroupKind.TP, *([GroupKind.EP] if shape.experts else [])]
        self.groups = PaddleGlooGroups(
            rank, {kind: range(RANKS) for kind in kinds}, FileRendezvous(directory), timeout_s=20
        )
        self.runner = RolloutRunner(options(shape), self.groups, rank, RANKS)
        self.step = Steps()

    def begin(self, incarnation: str, seed: int) -> None:
        for kind in self.groups.kinds():
            self.groups.restart(kind, incarnation=f"{kind.value}-{incarnation}")
        load(self.runner, shard(initial_state(self.shape, seed), self.shape, self.rank, RANKS))
        ready(self.runner)

    def end(self) -> None:
        self.runner.graphs.drop()
        if self.runner.deepep is not None:
            self.runner.deepep.clear_buffer()
        self.runner.weights.release()
        self.runner.kv_cache.release()
        for auxiliary in self.runner.auxiliaries:
            auxiliary.graphs.drop()
            auxiliary.kv_cache.release()
        for kind in reversed(self.groups.kinds()):
            self.groups.shut_down(kind)

    def generate(self, version: int) -> dict:
        if self.rank == 0:
            for request in requests():
                self.runner.requests.submit(request)
        rows = 1
        while rows:
            with self.step(version) as permit:
                rows = self.runner.execute(permit)
        return {
            answer.request_id: msgspec.to_builtins(answer) for answer in self.runner.requests.take_finished()
        }

    def logits(self) -> list:
        """Run this shard without its cache; the head is whole on every rank."""
        tokens = paddle.to_tensor(np.arange(8).reshape(2, 4) % self.shape.vocabulary)
        positions = paddle.arange(4).expand_as(tokens)
        attend = causal_attention(self.shape.head_size)
        with self.step(1) as permit, paddle.no_grad():
            weights = self.runner._parameters.open(permit)
            hidden = self.runner._decoder.hidden(weights, tokens, positions, attend)
            return logits(weights, hidden).tolist()


def main() -> None:
    number, directory, shape_json, scenario = sys.argv[1:]
    rank = Rank(int(number), directory, ModelShape(**json.loads(shape_json)))
    if scenario == "mixed":
        rank.begin("first", seed=0)
        rank.generate(version=1 + rank.rank)
        return
    found = {}
    for version in (1, 2):
        rank.begin(f"v{version}", seed=version)
        found[version] = rank.generate(version)
        if version == 1:
            found["logits"] = rank.logits()
        rank.end()
    if rank.rank == 0:
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
