"""A fleet on Ray: one actor per replica, one call for all: ``python -m examples.ray_fleet STORE VERSION...``.

Ray places the actors and restarts them. What they serve wsm decides: an actor that comes back answers nothing
until it holds what the store's newest target allows. It needs ``wsm[http,ray]``.
"""

import contextlib
import queue
import sys
import threading
from pathlib import Path

import ray
import uvicorn
from ray.actor import ActorHandle

import wsm
from examples.numpy_loop import Engine
from wsm.config import config_from_mapping
from wsm.fleet import FleetMember, FleetReport, Replica, update
from wsm.http import Commands, create_app


class EngineReplica:
    """An actor: an engine of one rank and its server, which end with its process."""

    def __init__(self, name: str, store: str) -> None:
        self._engine = Engine()
        self._answers: queue.Queue[tuple[str | None, float]] = queue.Queue()
        said = {"name": name, "ranks": 1, "snapshot": {"directory": store}}
        self._configuration = config_from_mapping(said)
        threading.Thread(target=self._serve, daemon=True).start()
        wsm.Controller(name, wait_s=60).close()  # until the engine has begun its group
        self._commands = Commands(name)
        self._commands.fleet = member = FleetMember(Path(store))
        member.look()
        member.follow(self._commands)
        # On more than one host: this node's address, tokens and TLS (docs/http.md).
        server = uvicorn.Config(create_app(self._commands), host="127.0.0.1", port=0, log_level="warning")
        socket = server.bind_socket()
        socket.listen()  # who asks before the thread runs waits for it
        self._url = f"http://127.0.0.1:{socket.getsockname()[1]}"
        threading.Thread(target=uvicorn.Server(server).run, args=[[socket]], daemon=True).start()

    def _serve(self) -> None:
        with wsm.Worker(self._configuration, self._engine, rank=0) as worker:
            while True:
                if worker.poll() is wsm.HOLD:
                    continue
                with contextlib.suppress(queue.Empty):
                    number = int(self._engine.requests.get(timeout=0.001))
                    with worker.step() as permit:
                        self._answers.put((permit.version, self._engine.answer(number)))

    def url(self) -> str:
        """Return where the server answers; a restarted actor has another port."""
        return self._url

    def ask(self, number: int) -> tuple[str | None, float]:
        """Answer, with the version; RefusedError (``fleet-stale``) while its fleet does not allow that."""
        self._commands.require_allowed()
        self._engine.requests.put(str(number))
        return self._answers.get()


def start(store: str, replicas: int) -> list[ActorHandle[EngineReplica]]:
    """Start the actors of a fleet over one store."""
    actor = ray.remote(max_restarts=-1, max_task_retries=-1)(EngineReplica)
    return [actor.remote(f"ray-{number}", store) for number in range(replicas)]


def roll(store: str, version: str, actors: list[ActorHandle[EngineReplica]]) -> FleetReport:
    """Bring all of them to a version, one after another."""
    return update(store, version, [Replica(url) for url in ray.get([each.url.remote() for each in actors])])


if __name__ == "__main__":
    ray.init(include_dashboard=False)
    fleet = start(sys.argv[1], 2)
    for label in sys.argv[2:]:
        for row in roll(sys.argv[1], label, fleet).rows:
            sys.stdout.write(f"{row.replica.url} {row.state.value} {row.version} {row.error or ''}\n")
        sys.stdout.write(f"{ray.get([each.ask.remote(3) for each in fleet])}\n")
