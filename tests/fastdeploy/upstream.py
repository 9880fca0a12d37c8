"""``python -m tests.fastdeploy.upstream PATH``: FastDeploy's own engine client, words and cache processes.

PATH is a checkout of FastDeploy's source, of December 2025, of 2026, or of April 2026; nothing in it is
changed. Its `EngineClient` and its `IPCSignal` run as they are, in /dev/shm, and ask two rank processes whose
loops (December 2025; 2026 without and with `block`) have wsm's weight manager: first without prefix caching,
then with it, a swap space, and FastDeploy's own `CacheTransferManager` beside each rank and the loop of
its `PrefixCacheManager`; those processes end in between, and are started anew. Last, two clients ask the two
data-parallel parts of one group at once. Each verb's answer, its
seconds and what each word said are printed; the command exits with 1 if anything differs from what is
expected. The last lines name FastDeploy's modules that stand-ins take the place of, since they want paddle,
CUDA, tokenizers or sockets.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parent.parent / "worker"))
import upstream_modules
from living_group import Program, eventually
from loop_job import LoopJob

from tests.forkserver import WITHOUT_PADDLE

SHARED = Path("/dev/shm")  # noqa: S108 - where FastDeploy makes its words
NAMES = {0: "NORMAL", 1: "UPDATING", -1: "CLEARING", -2: "CLEARED"}
WEIGHTS, PREFIX, KV = "model_weights_status", "prefix_tree_status", "kv_cache_status"
GIVES_UP_S = 4  # the client's count of seconds where it is to give up

#: By the client's generation: the loops that it asks, and how those with cache processes hold KV cache.
LOOPS = {
    "2025": (("2025", True), ("2026", False), ("2026", True)),
    "2026": (("2026", False), ("2026", True)),
    "2026-04": (("2026", False), ("2026", True)),
}
CACHES = {
    "2025": (("2025", True, "maps"),),
    "2026": (("2026", False, "maps"),),
    "2026-04": (("2026", False, "maps"),),
}

_PART = {"dp_rank": 0, "local_dp_rank": 0}
#: What the client of a generation returns.
ANSWERS = {
    "2025": {
        "is updated": (True, ""),
        "is cleared": (True, ""),
        "cleared": (True, ""),
        "updated": (True, ""),
        "no update": (False, "Update model weight timeout"),
        "no clear": (False, "Clear model weight timeout"),
    },
    "2026": {
        "is updated": (200, {**_PART, "msg": "model weight is updated"}),
        "is cleared": (200, {**_PART, "msg": "model weight is cleared"}),
        "cleared": (200, {**_PART, "msg": "clear model weight successfully"}),
        "updated": (200, {**_PART, "msg": "update model weight successfully"}),
        "no update": (404, {**_PART, "msg": "update model weight timeout"}),
        "no clear": (404, {**_PART, "msg": "clear model weight timeout"}),
    },
}
ANSWERS["2026-04"] = ANSWERS["2026"]

ALIVE = (True, "")
CLEARS = "NORMAL CLEARING CLEARED"
UPDATES = "CLEARED UPDATING NORMAL"
FAILS = "CLEARED UPDATING CLEARED"

#: Verb by verb: what is asked, what the client returns, what the weights word said, the version that serves
#: then by the group's status: None before the first entry, since KV cache counts as there only from then on.
EXPECTED = (
    ("update from NORMAL", "is updated", ("NORMAL",), None),
    ("status", False, ("NORMAL",), None),
    ("alive", ALIVE, ("NORMAL",), None),
    ("healthy", ALIVE, ("NORMAL",), None),
    ("clear", "cleared", (CLEARS,), None),
    ("status", True, ("CLEARED",), None),
    ("alive", (False, "No model weight enabled"), ("CLEARED",), None),
    ("clear", "is cleared", ("CLEARED",), None),
    ("update that fails", "no update", (FAILS,), None),
    ("status", True, ("CLEARED",), None),
    ("update", "updated", (UPDATES,), "2"),
    ("status", False, ("NORMAL",), "2"),
    ("alive", ALIVE, ("NORMAL",), "2"),
    ("healthy", ALIVE, ("NORMAL",), "2"),
    ("clear", "cleared", (CLEARS,), None),
    ("update", "updated", (UPDATES,), "2"),
)

#: As `EXPECTED`, beside cache processes, with what the prefix tree's and the KV word said, too. The client of
#: 2026 asks the prefix tree and waits, before it asks for the weights; that of April asks for it last, once
#: the weights have answered; that of 2025 asks all three at once. What one generation alone says bears its
#: name.
#: An update that failed is answered once the cache processes have let go of what they took for it.
EXPECTED_BESIDE = (
    ("clear", "cleared", (CLEARS, CLEARS, CLEARS), None),
    (
        "update that fails",
        "no update",
        (FAILS, {"": UPDATES, "2026-04": "CLEARED"}, f"{UPDATES} CLEARING CLEARED"),
        None,
    ),
    (
        "update",
        "updated",
        (UPDATES, {"": "NORMAL", "2025": "NORMAL UPDATING NORMAL", "2026-04": UPDATES}, UPDATES),
        "2",
    ),
    ("clear", "cleared", (CLEARS, CLEARS, CLEARS), None),
    ("update", "updated", (UPDATES, UPDATES, UPDATES), "2"),
    ("they end", None, ("NORMAL", "NORMAL", "NORMAL"), "2"),
    (
        "clear without",
        "no clear",
        ("NORMAL CLEARING", {"": CLEARS, "2026-04": "NORMAL"}, "NORMAL CLEARING"),
        None,
    ),
    (
        "they return",
        None,
        ("CLEARING CLEARED", {"": "CLEARED", "2026-04": "NORMAL"}, "CLEARING CLEARED"),
        None,
    ),
    ("clear", "is cleared", ("CLEARED", {"": "CLEARED", "2026-04": CLEARS}, "CLEARED"), None),
    ("they end", None, ("CLEARED", "CLEARED", "CLEARED"), None),
    ("they start", None, ("CLEARED", "CLEARED", "CLEARED"), None),
    ("update", "updated", (UPDATES, UPDATES, UPDATES), "2"),
)

#: What both parts are asked at once, and what both answer. The source is back behind what failed twice.
OF_BOTH_PARTS = (
    ("clear", "cleared", CLEARS, None),
    ("update that fails", "no update", FAILS, None),
    ("update that fails", "no update", FAILS, None),
    ("update", "updated", UPDATES, "2"),
    ("clear", "cleared", CLEARS, None),
    ("update", "updated", UPDATES, "2"),
)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def fastdeploy(root: Path) -> SimpleNamespace:
    """What is asked by: FastDeploy's client, its words, the loop of its prefix tree, from `root`."""
    checkout = upstream_modules.installed(root)
    inter = sys.modules["fastdeploy.inter_communicator"]
    said = {value: name for name, value in vars(inter.ModelWeightsStatus).items() if name.isupper()}
    assert said == NAMES, f"its words are {said}"
    client = importlib.import_module("fastdeploy.entrypoints.engine_client").EngineClient
    prefixes = importlib.import_module("fastdeploy.cache_manager.prefix_cache_manager")
    return SimpleNamespace(
        root=root,
        client=client,
        generation=generation_of(client),
        signal=inter.IPCSignal,
        clears_prefixes=prefixes.PrefixCacheManager.clear_prefix_cache,
        stood_in=checkout.stood_in,
        stood_in_beside=[],
    )


def generation_of(client: Any) -> str:
    """Which client it is, by its parameters and by what it asks first in an update."""
    if "fd_config" not in inspect.signature(client).parameters:
        return "2025"
    update = inspect.getsource(client.update_model_weight)
    weights, prefix = (update.index(f"{word}_signal.value[0] ==") for word in (WEIGHTS, PREFIX))
    return "2026-04" if weights < prefix else "2026"


@contextmanager
def made_words(signal: Any, port: int, ranks: int) -> Iterator[dict[str, Any]]:
    """FastDeploy's words of one engine, made as its engine makes them."""
    places = dict.fromkeys((WEIGHTS, PREFIX, KV, "cache_task_broadcast_signal", "cache_task_is_paused"), 1)
    of_ranks = ("worker_healthy_live_signal", "cache_ready_signal", "swap_space_ready_signal")
    places |= dict.fromkeys((*of_ranks, "cache_task_inflight", "cache_transfer_inited_signal"), ranks)
    made = {}
    try:
        for name, count in places.items():
            array = np.zeros([count], dtype=np.int32)
            made[name] = signal(name=name, array=array, dtype=np.int32, suffix=port, create=True)
        yield {name: made[name].value for name in (WEIGHTS, PREFIX, KV)}
    finally:
        for each in made.values():
            del each.value
            each.clear()


@contextmanager
def watched(words: dict[str, Any]) -> Iterator[list[tuple[str, str]]]:
    """Gathers what the words say, in the order in which they said it."""
    last = {name: int(word[0]) for name, word in words.items()}
    seen, over = [(name, NAMES[value]) for name, value in last.items()], threading.Event()

    def watches() -> None:
        while not over.is_set():
            for name, word in words.items():
                if (now := int(word[0])) != last[name]:
                    last[name] = now
                    seen.append((name, NAMES[now]))
            time.sleep(0.0001)

    thread = threading.Thread(target=watches)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


@contextmanager
def prefix_tree(clears: Callable[[Any], None], word: Any) -> Iterator[None]:
    """FastDeploy's own loop that answers the prefix tree's word, as the thread that it is in the engine."""

    class Tree:
        over = False

        @property
        def prefix_tree_status_signal(self) -> Tree:
            return self

        @property
        def value(self) -> Any:
            if self.over:
                raise SystemExit
            return word

        def reset(self, **_: object) -> None:
            """Nothing was cached."""

    tree = Tree()
    thread = threading.Thread(target=clears, args=[tree], daemon=True)
    thread.start()
    try:
        yield
    finally:
        tree.over = True
        thread.join()


class Play:
    """A data-parallel part of a group of one loop, and the client that asks it."""

    def __init__(self, upstream: SimpleNamespace, job: LoopJob, holds: str | None, part: int = 0) -> None:
        self.job, self.part, self._upstream = job, part, upstream
        self._beside: list[Program] = []
        self._settings = json.dumps(
            {
                "source": str(upstream.root),
                "port": job.ports[part],
                "ranks": job.ranks,
                "makes": holds == "makes",
            }
        )

    def launch(self) -> None:
        """Start a cache process for each rank."""
        path = Path(upstream_modules.__file__)
        for rank in range(self.job.ranks):
            self._beside.append(Program(path, self._settings, str(rank), server=WITHOUT_PADDLE))

    def end(self) -> None:
        """End them at once."""
        while self._beside:
            self._beside.pop().close()

    def settled(self) -> None:
        """Wait until they look at their word."""
        for program in self._beside:
            self._upstream.stood_in_beside[:] = program.says("transfers")["stood_in"]

    def connect(self, *, beside: bool) -> None:
        """Make FastDeploy's client, as its API server of one part does."""
        port, ranks = self.job.ports[self.part], self.job.ranks // len(self.job.ports)
        model = SimpleNamespace(enable_mm=False, enable_logprob=False, max_model_len=64)
        config = SimpleNamespace(model_config=model, eplb_config=SimpleNamespace(enable_eplb=False))
        if self._upstream.generation == "2025":
            self.client = self._upstream.client(
                "model",
                None,
                64,
                ranks,
                os.getpid(),
                port,
                None,
                None,
                config,
                enable_prefix_caching=beside,
                splitwise_role="mixed",
            )
            return
        config.parallel_config = SimpleNamespace(tensor_parallel_size=ranks, local_data_parallel_id=0)
        config.cache_config = SimpleNamespace(
            max_processor_cache=0,
            enable_prefix_caching=beside,
            swap_space=4 if beside else None,
            kvcache_storage_backend=None,
        )
        config.scheduler_config = SimpleNamespace(splitwise_role="mixed")
        config.structured_outputs_config = SimpleNamespace(reasoning_parser=None)
        config.limit_mm_per_prompt = config.mm_processor_kwargs = config.tool_parser = None
        config.node_rank, config.enable_mm_runtime = 0, False
        self.client = self._upstream.client(os.getpid(), port, config)

    def ask(self, verb: str) -> Any:
        if verb == "update that fails":
            return self.client.update_model_weight(timeout=GIVES_UP_S)
        verbs: dict[str, Callable[[], Any]] = {
            "update": lambda: self.client.update_model_weight(timeout=30),
            "update from NORMAL": lambda: self.client.update_model_weight(timeout=30),
            "clear": lambda: self.client.clear_load_weight(timeout=30),
            "clear without": lambda: self.client.clear_load_weight(timeout=GIVES_UP_S),
            "status": lambda: bool(self.client.check_model_weight_status()),
            "alive": self.client.is_workers_alive,
            "healthy": self.client.check_health,
            "they end": self.end,
            "they start": self.launch,
            "they return": self.returned,
        }
        return verbs[verb]()

    def returned(self) -> None:
        """Start them anew, and wait until the clear that nobody answered is done."""
        self.launch()
        said = self.client.model_weights_status_signal.value
        eventually(lambda: NAMES[int(said[0])] == "CLEARED", "the clear to go on once they are back")


def said_by(word: str, seen: list[tuple[str, str]]) -> str:
    said = " ".join(value for name, value in seen if name == word)
    if word == KV:  # a slower process answers the wish before this one, which wsm then asks again
        said = said.replace("CLEARING NORMAL CLEARING", "CLEARING")
        said = said.replace("UPDATING CLEARED UPDATING", "UPDATING")
    return said


def agrees(word: str, shown: str, wanted: str) -> bool:
    """Whether a word said what it should, all that was seen of it.

    A thread of this process answers the prefix tree's word, often before the watching thread has its turn.
    """
    if word != PREFIX:
        return shown == wanted
    said, left = shown.split(), iter(wanted.split())
    return said[:1] + said[-1:] == wanted.split()[:1] + wanted.split()[-1:] and all(it in left for it in said)


def out_of_order(verb: str, generation: str, seen: list[tuple[str, str]]) -> str:
    """What came too early, if anything: an answer of the weights, or (2026) their being asked."""
    asks, answer = ("CLEARING", "CLEARED") if "clear" in verb else ("UPDATING", "NORMAL")

    def when(word: str, value: str) -> int:
        changes = seen[3:]
        return changes.index((word, value)) if (word, value) in changes else -1

    if when(KV, answer) > when(WEIGHTS, answer) >= 0:
        return "the weights were answered before the KV cache"
    if generation == "2026" and when(PREFIX, answer) > when(WEIGHTS, asks) >= 0:
        return "the weights were asked for before the prefix tree had answered"
    return ""


def plays(upstream: SimpleNamespace, generation: str, *, block: bool, holds: str | None) -> int:
    """Ask every verb of one loop; returns how many differ."""
    differ = 0
    with tempfile.TemporaryDirectory() as directory:
        more = {} if holds is None else {"cache_process": holds, "cache_answers_s": 1.0}
        job = LoopJob(Path(directory), generation, block=block, shared=str(SHARED), **more)
        port, play = job.ports[0], Play(upstream, job, holds)
        try:
            with made_words(upstream.signal, port, job.ranks) as words:
                if holds is None:
                    differ = asks_all(play, upstream, {WEIGHTS: words[WEIGHTS]}, EXPECTED)
                else:
                    play.launch()
                    with prefix_tree(upstream.clears_prefixes, words[PREFIX]):
                        differ = asks_all(play, upstream, words, EXPECTED_BESIDE)
        finally:
            play.end()
            job.close()
            for left in SHARED.glob(f"wsm.fastdeploy-{port}*"):
                left.unlink()
            lock_of(port).unlink(missing_ok=True)
    return differ


def lock_of(port: int) -> Path:
    """Return the file by which FastDeploy's client locks its verbs."""
    return Path(f"/tmp/fd_weight_clear_update_lock__pid{os.getpid()}_port{port}.lock")  # noqa: S108 - FastDeploy's


def asks_all(play: Play, upstream: SimpleNamespace, words: dict[str, Any], expected: Any) -> int:
    """Start the ranks, and ask verb by verb; returns how many differ."""
    job, generation, differ = play.job, upstream.generation, 0
    job.start()
    play.settled()
    play.connect(beside=len(words) > 1)
    job.publish(2)
    controller = job.controller()
    for verb, answer, says, version in expected:
        awaited = ANSWERS[generation].get(answer, answer) if isinstance(answer, str) else answer
        wanted = [each.get(generation, each[""]) if isinstance(each, dict) else each for each in says]
        began = time.monotonic()
        if verb == "update that fails":
            job.order(1, "write")
        with watched(words) as seen:
            got = play.ask(verb)
        took = time.monotonic() - began
        status = controller.status()
        held = status.version if status.serving else None
        shown = [said_by(word, seen) for word in words]
        early = out_of_order(verb, generation, seen)
        same = (got, held) == (awaited, version) and not early and all(map(agrees, words, shown, wanted))
        differ += not same
        say(f"  {verb:<19}{got!s:<40}{took:5.1f} s  {'; '.join(shown)}  version {held}")
        if not same:
            say(f"  DIFFERS: expected {awaited}, {'; '.join(wanted)}, version {version}. {early}")
    job.end()
    del play.client
    return differ


def plays_two_parts(upstream: SimpleNamespace, generation: str, *, block: bool) -> int:
    """Ask both parts of a group at once; returns how many answers differ."""
    differ = 0
    with tempfile.TemporaryDirectory() as directory, ExitStack() as ending:
        job = LoopJob(Path(directory), generation, parts=2, block=block, shared=str(SHARED))
        ending.callback(lambda: [left.unlink() for left in SHARED.glob(f"wsm.fastdeploy-{job.ports[0]}*")])
        ending.callback(job.close)
        plays = [Play(upstream, job, None, part) for part in range(2)]
        made = [ending.enter_context(made_words(upstream.signal, port, job.ranks)) for port in job.ports]
        words = {f"{WEIGHTS} of part {part}": of_part[WEIGHTS] for part, of_part in enumerate(made)}
        threads = ending.enter_context(ThreadPoolExecutor())
        job.start()
        for play in plays:
            play.connect(beside=False)
        job.publish(2)
        controller = job.controller()
        for verb, answer, says, version in OF_BOTH_PARTS:
            if verb == "update that fails":
                job.order(1, "write")
            with watched(words) as seen:
                got = list(threads.map(lambda play, verb=verb: play.ask(verb), plays))
            status = controller.status()
            held = status.version if status.serving else None
            shown = [said_by(word, seen) for word in words]
            awaited = [ANSWERS[upstream.generation][answer]] * 2
            same = (got, shown, held) == (awaited, [says, says], version)
            differ += not same
            say(f"  {verb:<19}{got!s:<40}  {'; '.join(shown)}  version {held}")
            if not same:
                say(f"  DIFFERS: expected {awaited}, {says} of both, version {version}")
        job.end()
        for play in plays:
            lock_of(job.ports[play.part]).unlink(missing_ok=True)
            del play.client
    return differ


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fastdeploy.upstream")
    parser.add_argument("path", type=Path, help="a checkout of FastDeploy's source")
    upstream = fastdeploy(parser.parse_args().path.absolute())
    asked = [(*each, None) for each in LOOPS[upstream.generation]]
    differ = 0
    for generation, block, holds in (*asked, *CACHES[upstream.generation]):
        beside = "" if holds is None else f", beside cache processes (each {holds} the KV cache)"
        say(f"client of {upstream.generation}, loop of {generation}, block {block}{beside}")
        differ += plays(upstream, generation, block=block, holds=holds)
    for generation, block in LOOPS[upstream.generation]:
        say(f"client of {upstream.generation}, loop of {generation}, block {block}, two parts at once")
        differ += plays_two_parts(upstream, generation, block=block)
    say(f"stand-ins: {', '.join(sorted(upstream.stood_in))}")
    say(f"stand-ins of the cache processes: {', '.join(sorted(upstream.stood_in_beside))}")
    say("all as expected" if not differ else f"{differ} differ")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
