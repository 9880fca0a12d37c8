"""A fleet of actors on a Ray of its own, told in lines of JSON: ``python -m tests.fleet.on_ray STORE``."""

from __future__ import annotations

import json
import sys
import time

import ray

from examples.ray_fleet import EngineReplica, roll, start

PATIENCE_S = 120.0


def answer_of(actor: ray.actor.ActorHandle[EngineReplica]) -> str:
    """Return the version that answers, or the code of the refusal."""
    try:
        version, _ = ray.get(actor.ask.remote(3))
    except ray.exceptions.RayTaskError as error:
        return str(getattr(error.cause, "code", error))
    return str(version)


def main(store: str) -> None:
    """Roll to 1, lose an actor, have it back, roll to 2."""
    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
    actors = start(store, 2)
    said = {"first": [(row.state.value, row.version) for row in roll(store, "1", actors).rows]}
    lost = ray.get(actors[0].url.remote())
    ray.kill(actors[0], no_restart=False)
    answers: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    while "1" not in answers and time.monotonic() < deadline:
        answers.append(answer_of(actors[0]))
    said["while it came back"] = sorted(set(answers))
    said["elsewhere"] = ray.get(actors[0].url.remote()) != lost
    said["second"] = [(row.state.value, row.version) for row in roll(store, "2", actors).rows]
    said["answers"] = ray.get([actor.ask.remote(3) for actor in actors])
    sys.stdout.write(json.dumps(said))
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
