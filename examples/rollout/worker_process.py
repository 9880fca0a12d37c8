"""One rank as a process: ``python -m examples.rollout.worker_process RUN_DIRECTORY RANK SUPERVISOR_PID``.

The event loop of the design, twice: rank 0 takes requests and decides when to step, the other ranks
step when rank 0 has begun. Everything about weights happens inside ``worker.poll()``. The process ends
on SIGTERM between two steps, and with its supervisor, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from examples.rollout.config import RolloutConfig, rollout_config_from_mapping
from examples.rollout.process_life import BellListener, StepBell, Stop
from examples.rollout.request_service import RequestService
from examples.rollout.request_socket import RequestSocket, request_socket_path
from examples.rollout.run_directory import CONFIG_FILE, RENDEZVOUS_DIRECTORY
from examples.rollout.runner import RolloutRunner
from wsm import log
from wsm.actions.backends.paddle_groups import PaddleGlooGroups
from wsm.actions.backends.rendezvous import FileRendezvous
from wsm.actions.measuring import AddressContract
from wsm.actions.options import PlanOptions
from wsm.ending import end_with
from wsm.states.vocabulary import KVPolicy
from wsm.worker import HOLD, JOIN, Worker
from wsm.worker.errors import NotServingError

_IDLE_S = 0.1


@contextlib.contextmanager
def surviving() -> Iterator[None]:
    """Outlive a step that raised: this rank is BROKEN then, and waits for its epoch to end.

    Most often a peer has died inside a collective, and this process joins the next epoch. If it is to blame
    itself, the supervisor ends it.
    """
    try:
        yield
    except NotServingError:
        raise
    except Exception:  # noqa: BLE001 - whatever a collective raises when a peer is gone
        traceback.print_exc()


def lead(worker: Worker, runner: RolloutRunner, service: RequestService, bell: StepBell, stop: Stop) -> None:
    """Run rank 0: take requests, step while there is work."""
    while not stop.asked:
        turn = worker.poll()
        service.turn()
        if turn is HOLD:
            continue
        if turn is JOIN or runner.requests.has_work():
            with surviving(), worker.step() as permit:
                bell.ring()
                runner.execute(permit)
        else:
            service.turn(_IDLE_S)


def follow(worker: Worker, runner: RolloutRunner, bell: BellListener, stop: Stop) -> None:
    """Run another rank: step when rank 0 has begun to."""
    while not stop.asked:
        turn = worker.poll()
        if turn is JOIN:
            with surviving(), worker.step() as permit:
                runner.execute(permit)
        elif turn is not HOLD:
            bell.wait(worker.fileno())


def main(arguments: list[str]) -> None:
    """Run one rank until it is asked to end."""
    run_directory, rank = Path(arguments[0]), int(arguments[1])
    end_with(int(arguments[2]))
    stop = Stop()
    config = rollout_config_from_mapping(
        json.loads((run_directory / CONFIG_FILE).read_text(encoding="utf-8"))
    )
    log.configure(level=os.environ.get("WSM_LOG_LEVEL", "info"))
    runner = _runner(config, rank, run_directory)
    options = PlanOptions.from_runner(
        runner,
        capture_is_collective=False,
        kv_policies=frozenset(KVPolicy),
        address_contract=AddressContract() if runner.graphs is not None else None,
    )
    worker_of_rank = Worker(
        config.group,
        runner,
        rank=rank,
        plan_options=options,
        answers_engine_words=False,  # the supervisor does, which outlives every rank
    )
    with worker_of_rank as worker:
        if rank:
            with closing(BellListener(run_directory, rank)) as listener:
                follow(worker, runner, listener, stop)
            return
        path = request_socket_path(config.group.name)
        with (
            closing(RequestSocket(path)) as requests,
            closing(StepBell(run_directory, config.group.ranks)) as bell,
        ):
            requests.watch(worker.fileno())
            service = RequestService(runner.requests, requests, lambda: _facts(worker, runner))
            lead(worker, runner, service, bell, stop)


def _runner(config: RolloutConfig, rank: int, run_directory: Path) -> RolloutRunner:
    import paddle  # noqa: PLC0415 - only after the process can be stopped, since it takes a second

    paddle.disable_signal_handler()
    ranks = range(config.group.ranks)
    groups = PaddleGlooGroups(
        rank, dict.fromkeys(config.kinds, ranks), FileRendezvous(run_directory / RENDEZVOUS_DIRECTORY)
    )
    return RolloutRunner(config.engine, groups, rank, config.group.ranks)


def _facts(worker: Worker, runner: RolloutRunner) -> Mapping[str, Any]:
    """Return what ``stats`` says beyond the requests."""
    facts: dict[str, Any] = {
        "version": worker.version,
        "weights": worker.weights.name,
        "kv": worker.kv.name,
        "kv_bytes": runner.kv_cache.allocated_bytes(),
        "kv_blocks_available": runner.pool.available(),
        "steps": runner.steps,
    }
    for draft in runner.auxiliaries:
        facts[draft.name] = {"guessed": draft.guessed, "agreed": draft.agreed}
    return facts


if __name__ == "__main__":
    main(sys.argv[1:])
