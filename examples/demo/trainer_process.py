"""The trainer in a process of its own, driven by lines of JSON over a pair of sockets.

Both ends of the conversation are here: :class:`TrainerProcess` asks, :func:`main` answers. The trainer ends
when its socket does, so it cannot outlive the process that started it. Samples go in as numbers; weights come
out only as published snapshots, which is how any trainer hands them to a group.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from examples.rollout.model.shape import ModelShape
from examples.rollout.model.sharding import placements, shard
from examples.rollout.process_life import environment_of_processes
from wsm.errors import GroupError, coded, error_name
from wsm.strategies.snapshot.publish import publish_snapshot

if TYPE_CHECKING:
    from examples.demo.trainer import Trainer

#: Parts small enough that the demo's model has several per rank, as a large model has.
PART_BYTES = 96 * 1024


@dataclass(frozen=True)
class Reply:
    """What the trainer answered, and when it worked.

    Parameters
    ----------
    facts : mapping
        Depends on the request.
    started_ns, finished_ns : int
        Monotonic clock of the host, read in the trainer.
    """

    facts: Mapping[str, Any]
    started_ns: int
    finished_ns: int

    @property
    def milliseconds(self) -> float:
        """How long the work took."""
        return (self.finished_ns - self.started_ns) / 1e6


class TrainerProcess:
    """The asking end; a context manager that ends the process.

    Parameters
    ----------
    shape : ModelShape
        The model.
    ranks : int
        Into how many shards it is published.
    directory : Path
        Where snapshots are published.
    seed : int
        Of the initial weights.
    """

    def __init__(self, shape: ModelShape, *, ranks: int, directory: Path, seed: int = 0) -> None:
        settings = {"shape": asdict(shape), "ranks": ranks, "directory": str(directory), "seed": seed}
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module under our own interpreter
                [
                    sys.executable,
                    "-m",
                    "examples.demo.trainer_process",
                    str(theirs.fileno()),
                    json.dumps(settings),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment_of_processes(),
                start_new_session=True,  # Ctrl-C goes to the parent, which ends the conversation
            )
        self._answers = self._socket.makefile("r")

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def improve(
        self,
        prompts: npt.NDArray[np.int64],
        answers: npt.NDArray[np.int64],
        rewards: npt.NDArray[np.float32],
        *,
        timeout_s: float = 120.0,
    ) -> Reply:
        """Learn from one batch; blocks.

        Parameters
        ----------
        prompts : ndarray of int64, shape (rows, prompt length)
            What was asked.
        answers : ndarray of int64, shape (rows, length)
            What was answered.
        rewards : ndarray of float32, shape (rows, length)
            Points per token.
        timeout_s : float
            When to give up.

        Returns
        -------
        Reply
            ``loss``, ``entropy``, and ``log_probability`` (rows, length) of every answered token before the
            batch.

        Raises
        ------
        GroupError
            If the trainer is gone, does not answer in time, or could not.
        """
        batch = {"prompts": prompts.tolist(), "answers": answers.tolist(), "rewards": rewards.tolist()}
        return self._ask("improve", batch, timeout_s)

    def publish(self, version: str, *, timeout_s: float = 120.0) -> Reply:
        """Write the present weights as `version`, one shard per rank; blocks.

        Returns
        -------
        Reply
            ``manifest_digest``, ``bytes``, ``files`` and per rank ``digests``.

        Raises
        ------
        GroupError
            As :meth:`improve`.
        """
        return self._ask("publish", {"version": version}, timeout_s)

    def kill(self) -> None:
        """Kill the process; to reap it is left to :meth:`close`. Safe in a signal handler."""
        self._process.kill()

    def close(self) -> None:
        """End the process: it leaves when its socket ends, and is killed if it does not. Idempotent."""
        self._answers.close()
        self._socket.close()
        try:
            self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> TrainerProcess:  # noqa: PYI034 - typing has Self from Python 3.11 on
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, request: str, arguments: Mapping[str, Any], timeout_s: float) -> Reply:
        line = json.dumps({"request": request, **arguments}) + "\n"
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(line.encode())
            said = self._answers.readline()
        except TimeoutError as error:
            raise trainer_failed(request=request, problem=f"gave no answer for {timeout_s:g} s") from error
        except OSError as error:
            raise trainer_failed(request=request, problem="is gone", detail=str(error)) from error
        if not said:
            problem = f"ended with exit code {self._process.wait()}"
            raise trainer_failed(request=request, problem=problem)
        answer = json.loads(said)
        if "error" in answer:
            raise trainer_failed(request=request, problem="failed", detail=answer["error"])
        return Reply(answer["facts"], answer["started_ns"], answer["finished_ns"])


@coded("trainer-failed")
def trainer_failed(*, request: str, problem: str, detail: str = "") -> GroupError:
    """The trainer's process ended, hung, or answered with an error."""
    tail = f": {detail}" if detail else ""
    return GroupError(f"the trainer {problem} while it was to {request}{tail}; its standard error says more")


def main() -> None:
    """Answer requests until the socket ends. Arguments: its descriptor, and the settings as JSON."""
    from examples.demo.trainer import Trainer  # noqa: PLC0415 - paddle, and only in this process

    settings = json.loads(sys.argv[2])
    trainer = Trainer(ModelShape(**settings["shape"]), seed=settings["seed"])
    with (
        # An asker that is killed, or leaves an answer unread, resets the connection instead of ending it.
        contextlib.suppress(ConnectionError),
        socket.socket(fileno=int(sys.argv[1])) as connection,
        connection.makefile("rw") as lines,
    ):
        for line in lines:
            lines.write(json.dumps(_answer(trainer, json.loads(line), settings)) + "\n")
            lines.flush()


def _answer(trainer: Trainer, content: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    started = time.monotonic_ns()
    try:
        if content["request"] == "improve":
            facts = _improve(trainer, content)
        else:
            facts = _publish(trainer, content["version"], settings)
    except Exception as error:  # noqa: BLE001 - reported to the caller, which decides
        return {"error": f"{error_name(error)}: {error}"}
    return {"facts": facts, "started_ns": started, "finished_ns": time.monotonic_ns()}


def _improve(trainer: Trainer, content: Mapping[str, Any]) -> dict[str, Any]:
    improvement = trainer.improve(
        np.asarray(content["prompts"], np.int64),
        np.asarray(content["answers"], np.int64),
        np.asarray(content["rewards"], np.float32),
    )
    return {
        "loss": improvement.loss,
        "entropy": improvement.entropy,
        "log_probability": improvement.log_probability.tolist(),
    }


def _publish(trainer: Trainer, version: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    state, ranks = trainer.state(), settings["ranks"]
    report = publish_snapshot(
        settings["directory"],
        version,
        {rank: shard(state, trainer.shape, rank, ranks) for rank in range(ranks)},
        part_bytes=PART_BYTES,
        placements=placements(trainer.shape),
        durable=False,  # a demo that loses power is run again
    )
    return {
        "manifest_digest": report.manifest_digest,
        "digests": {str(rank): digest for rank, digest in report.digests.items()},
        "bytes": report.bytes,
        "files": report.files,
    }


if __name__ == "__main__":
    main()
