"""``python -m tests.fastdeploy.upstream PATH``: FastDeploy's own engine client and words against a group.

PATH is a checkout of FastDeploy's source; nothing in it is changed. Its `EngineClient` and its `IPCSignal`
run as they are, in /dev/shm, and ask two rank processes whose loops (December 2025; 2026 without and with
`block`) have wsm's weight manager. Each verb's answer, its seconds and the words seen are printed; the
command exits with 1 if an answer or the words differ from `EXPECTED`.

Modules of FastDeploy that are stood in for, since they want paddle, tokenizers or sockets: the packages
``fastdeploy``, ``.entrypoints``, ``.entrypoints.openai``, ``.eplb``, ``.input``, ``.metrics`` and ``.trace``
themselves (empty);
``.inter_communicator`` (its words are real, its queues are not); ``.entrypoints.openai.utils``,
``.eplb.utils``, ``.input.preprocess``, ``.metrics.metrics``, ``.platforms``, ``.trace.constants``,
``.trace.trace_logger`` and ``.utils``.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parent.parent / "worker"))
from loop_job import LoopJob

SHARED = Path("/dev/shm")  # noqa: S108 - where FastDeploy makes its words
NAMES = {0: "NORMAL", 1: "UPDATING", -1: "CLEARING", -2: "CLEARED"}
LOOPS = (("2025", True), ("2026", False), ("2026", True))
FAILS_AFTER = 4  # the client's count of seconds where an update is to fail

DONE, GIVEN_UP = (True, ""), (False, "Update model weight timeout")
CLEARS = ("NORMAL", "CLEARING", "CLEARED")
UPDATES = ("CLEARED", "UPDATING", "NORMAL")

#: Verb by verb: what is asked, what the client returns, the words seen, the version that serves then by
#: the group's status: None before the first entry, since KV cache counts as there only from then on.
EXPECTED = (
    ("update from NORMAL", DONE, ("NORMAL",), None),
    ("status", False, ("NORMAL",), None),
    ("alive", DONE, ("NORMAL",), None),
    ("healthy", DONE, ("NORMAL",), None),
    ("clear", DONE, CLEARS, None),
    ("status", True, ("CLEARED",), None),
    ("alive", (False, "No model weight enabled"), ("CLEARED",), None),
    ("clear", DONE, ("CLEARED",), None),
    ("update that fails", GIVEN_UP, ("CLEARED", "UPDATING", "CLEARED"), None),
    ("status", True, ("CLEARED",), None),
    ("update", DONE, UPDATES, "2"),
    ("status", False, ("NORMAL",), "2"),
    ("alive", DONE, ("NORMAL",), "2"),
    ("healthy", DONE, ("NORMAL",), "2"),
    ("clear", DONE, CLEARS, None),
    ("update", DONE, UPDATES, "2"),
)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def stands_in(name: str, path: Path | None = None, **contents: Any) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = [] if path is None else [str(path)]
    vars(module).update(contents)
    sys.modules[name] = module
    return module


def fastdeploy(root: Path) -> tuple[Any, Any]:
    """FastDeploy's client and its words, imported from `root`."""
    source = root / "fastdeploy"
    logger = logging.getLogger("fastdeploy")
    stands_in("fastdeploy", source)
    for package in ("entrypoints", "entrypoints.openai", "eplb", "input", "metrics", "trace"):
        stands_in(f"fastdeploy.{package}", source / package.replace(".", "/"))
    stands_in(
        "fastdeploy.utils",
        llm_logger=logger,
        api_server_logger=logger,
        EngineError=RuntimeError,
        ParameterError=ValueError,
        StatefulSemaphore=threading.Semaphore,
    )
    stands_in("fastdeploy.entrypoints.openai.utils", DealerConnectionManager=MagicMock())
    stands_in("fastdeploy.eplb.utils", RedundantExpertWorkload=MagicMock())
    stands_in("fastdeploy.input.preprocess", InputPreprocessor=MagicMock())
    stands_in("fastdeploy.metrics.metrics", main_process_metrics=MagicMock())
    stands_in("fastdeploy.platforms", current_platform=SimpleNamespace(is_iluvatar=lambda: False))
    stands_in("fastdeploy.trace.constants", LoggingEventName=MagicMock())
    stands_in("fastdeploy.trace.trace_logger", print=MagicMock())
    inter = stands_in(
        "fastdeploy.inter_communicator", source / "inter_communicator", ZmqIpcClient=MagicMock()
    )
    words = importlib.import_module("fastdeploy.inter_communicator.ipc_signal")
    constants = importlib.import_module("fastdeploy.inter_communicator.ipc_signal_const")
    vars(inter).update({name: each for name, each in vars(constants).items() if name.endswith("Status")})
    vars(inter)["IPCSignal"] = words.IPCSignal
    said = {value: name for name, value in vars(constants.ModelWeightsStatus).items() if name.isupper()}
    assert said == NAMES, f"its words are {said}"
    return importlib.import_module("fastdeploy.entrypoints.engine_client").EngineClient, words.IPCSignal


@contextmanager
def made_words(signal: Any, port: int, ranks: int) -> Iterator[Any]:
    """FastDeploy's words of one engine, made as its worker makes them; gives the weights word."""
    places = {"model_weights_status": 1, "prefix_tree_status": 1, "kv_cache_status": 1}
    made = []
    try:
        for name, count in (*places.items(), ("worker_healthy_live_signal", ranks)):
            array = np.zeros([count], dtype=np.int32)
            made.append(signal(name=name, array=array, dtype=np.int32, suffix=port, create=True))
        yield made[0].value
    finally:
        for each in made:
            del each.value
            each.clear()


@contextmanager
def watched(word: Any) -> Iterator[list[str]]:
    """Gathers what the word says, one after the other."""
    seen, over = [NAMES[int(word[0])]], threading.Event()

    def watches() -> None:
        while not over.is_set():
            if (now := NAMES[int(word[0])]) != seen[-1]:
                seen.append(now)
            time.sleep(0.0001)

    thread = threading.Thread(target=watches)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def asked(client: Any, job: LoopJob, verb: str) -> Any:
    if verb == "update that fails":
        job.order(1, "write")
        return client.update_model_weight(timeout=FAILS_AFTER)
    verbs: dict[str, Callable[[], Any]] = {
        "update": lambda: client.update_model_weight(timeout=30),
        "update from NORMAL": lambda: client.update_model_weight(timeout=30),
        "clear": lambda: client.clear_load_weight(timeout=30),
        "status": lambda: bool(client.check_model_weight_status()),
        "alive": client.is_workers_alive,
        "healthy": client.check_health,
    }
    return verbs[verb]()


def plays(engine_client: Any, signal: Any, generation: str, *, block: bool) -> int:
    """Ask every verb of one loop; returns how many differ."""
    differ = 0
    with tempfile.TemporaryDirectory() as directory:
        job = LoopJob(Path(directory), generation, block=block, shared=str(SHARED))
        port = job.ports[0]
        mine = f"pid{os.getpid()}_port{port}"
        lock = Path(f"/tmp/fd_weight_clear_update_lock__{mine}.lock")  # noqa: S108 - made by FastDeploy
        try:
            with made_words(signal, port, job.ranks) as word:
                job.start()
                config = SimpleNamespace(
                    model_config=SimpleNamespace(enable_mm=False),
                    eplb_config=SimpleNamespace(enable_eplb=False),
                )
                client = engine_client(
                    "model",
                    None,
                    64,
                    job.ranks,
                    os.getpid(),
                    port,
                    None,
                    None,
                    config,
                    splitwise_role="mixed",
                )
                job.publish(2)
                controller = job.controller()
                for verb, answer, words, version in EXPECTED:
                    began = time.monotonic()
                    with watched(word) as seen:
                        got = asked(client, job, verb)
                    took = time.monotonic() - began
                    status = controller.status()
                    held = status.version if status.serving else None
                    same = (got, tuple(seen), held) == (answer, words, version)
                    differ += not same
                    say(f"  {verb:<19}{got!s:<40}{took:5.1f} s  {' '.join(seen)}  version {held}")
                    if not same:
                        say(f"  DIFFERS: expected {answer}, {' '.join(words)}, version {version}")
                job.end()
                del client
        finally:
            job.close()
            for left in SHARED.glob(f"wsm.fastdeploy-{port}*"):
                left.unlink()
            lock.unlink(missing_ok=True)
    return differ


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fastdeploy.upstream")
    parser.add_argument("path", type=Path, help="a checkout of FastDeploy's source")
    engine_client, signal = fastdeploy(parser.parse_args().path)
    differ = 0
    for generation, block in LOOPS:
        say(f"loop of {generation}, block {block}")
        differ += plays(engine_client, signal, generation, block=block)
    say("all as expected" if not differ else f"{differ} differ")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
