"""``python -m bench.walks``: what one tiny version walks through, and what the rooms of its code hold.

For each way: files, functions, their lines without docstrings, calls, and switches from one file of wsm to
another, counted by a profiler. The last way is FastDeploy's loop: one boot, one clear, two updates of one
rank of paddle, asked by its words; it needs the extra `cpu`, and is left out without it.
For each room: lines of code and files, lines with docstrings, functions and those of one statement, classes,
types and makers of errors.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import logging
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np

import wsm
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.states.vocabulary import WeightState
from wsm.strategies import (
    AdoptSettings,
    BucketSender,
    DeltaSource,
    IpcAsyncSource,
    IpcSource,
    MemoryTarget,
    SharedTensors,
    SnapshotSource,
    TensorSpec,
    adopt,
    load,
    publish_delta,
    publish_snapshot,
)

SOURCE = Path(wsm.__file__).parent
ROOMS = ("strategies", "http", "fastdeploy", "metrics")
_SPECS = (TensorSpec("weight", "F32", (4, 4)), TensorSpec("bias", "F32", (4,)))


@dataclass
class Walk:
    """What was called of wsm, by all threads."""

    files: set[str] = field(default_factory=set)
    functions: set[tuple[str, str, int]] = field(default_factory=set)
    calls: int = 0
    switches: int = 0

    def seen(self, frame: FrameType, event: str, _: Any) -> None:
        """Take in a call; for :func:`sys.setprofile`."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(SOURCE)):
            return
        self.files.add(code.co_filename)
        if not code.co_name.startswith("<"):  # neither modules nor comprehensions
            self.functions.add((code.co_filename, code.co_name, code.co_firstlineno))
        self.calls += 1
        caller = frame.f_back
        self.switches += caller is not None and caller.f_code.co_filename != code.co_filename

    @property
    def lines(self) -> int:
        """Lines of code of all functions, each once; a function within one is its own."""
        return sum(len(_functions_of(path).get(first, ())) for path, _, first in self.functions)


@functools.cache
def _functions_of(path: str) -> dict[int, set[int]]:
    """Return the lines of code of each function of a file, without docstrings, by its first line."""
    text = Path(path).read_text().splitlines()
    code = {
        number for number, line in enumerate(text, 1) if line.strip() and not line.strip().startswith("#")
    }
    found: dict[int, set[int]] = {}
    for node in ast.walk(ast.parse("\n".join(text))):  # from the outer to the inner
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            own = code & set(range(first, (node.end_lineno or first) + 1))
            if ast.get_docstring(node, clean=False) is not None:
                own -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
            for outer in found.values():
                outer.difference_update(own)
            found[first] = own
    return found


@contextmanager
def walking() -> Iterator[Walk]:
    """Follow every thread that begins meanwhile, and this one."""
    walk = Walk()
    threading.setprofile(walk.seen)
    sys.setprofile(walk.seen)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def state(first: int) -> dict[str, tuple[TensorSpec, bytes]]:
    """Return a state dict of the tiny version."""
    return {spec.name: (spec, bytes([first]) * spec.nbytes) for spec in _SPECS}


def walks(directory: Path) -> Iterator[tuple[str, Walk]]:
    """Play one version by each way; each is played once before, so that nothing is imported meanwhile."""
    for name, play in (
        ("publish_snapshot", _publish),
        ("load ipc_snapshot", _load_snapshot),
        ("publish_delta", _publish_delta),
        ("load delta", _load_delta),
        ("SharedTensors.publish", _share),
        ("load ipc, kept", _load_shared),
        ("ipc_async, both sides", _stream),
        ("adopt", _adopt),
    ):
        found = [Walk()]
        for attempt in ("before", "counted"):
            place = directory / name.replace(" ", "-") / attempt
            place.mkdir(mode=0o700, parents=True)  # a socket may lie in it
            found[0] = play(place)
        yield name, found[0]


def _walked(call: Callable[[], object]) -> Walk:
    with walking() as walk:
        call()
    return walk


def _publish(place: Path) -> Walk:
    return _walked(lambda: publish_snapshot(place, 1, {0: state(1)}, durable=False))


def _load_snapshot(place: Path) -> Walk:
    publish_snapshot(place, 1, {0: state(1)}, durable=False)
    source = SnapshotSource(place, 0, device_id=0, world_size=1, shared_directory=None)
    return _walked(lambda: load(source, MemoryTarget(_SPECS)))


def _publish_delta(place: Path) -> Walk:
    publish_snapshot(place, 1, {0: state(1)}, durable=False)
    return _walked(lambda: publish_delta(place, 2, 1, {0: state(2)}, durable=False))


def _load_delta(place: Path) -> Walk:
    target = MemoryTarget(_SPECS)
    publish_snapshot(place, 1, {0: state(1)}, durable=False)
    load(SnapshotSource(place, 0, device_id=0, world_size=1, shared_directory=None), target)
    publish_delta(place, 2, 1, {0: state(2)}, durable=False, crossover=100.0)
    source = DeltaSource(place, 0, device_id=0, world_size=1)
    return _walked(lambda: load(source, target, name="delta"))


def _share(place: Path) -> Walk:
    with SharedTensors(place) as shared:
        return _walked(lambda: shared.publish(1, {0: state(1)}))


def _load_shared(place: Path) -> Walk:
    with SharedTensors(place) as shared:
        shared.publish(1, {0: state(1)})
        source = IpcSource(place, 0, device_id=0, world_size=1)
        return _walked(lambda: load(source, MemoryTarget(_SPECS), name="ipc"))


def _stream(place: Path) -> Walk:
    with BucketSender(f"ipc://{place}/s") as sender:
        source = IpcAsyncSource(f"ipc://{place}/s")

        def both() -> None:
            trainer = threading.Thread(target=lambda: sender.send(1, {0: state(1)}))
            trainer.start()
            load(source, MemoryTarget(_SPECS), name="ipc_async", version=1)
            trainer.join()

        return _walked(both)


def _adopt(place: Path) -> Walk:
    publish_snapshot(place / "trainer", 1, {0: state(1)}, durable=False)
    written = place / "written" / "step_1"
    written.mkdir(parents=True)
    (part,) = (place / "trainer" / "versions" / "1").glob("*.part*")
    part.rename(written / "model.safetensors")
    settings = AdoptSettings(place / "models", [place / "written"], ranks=1, durable=False)
    return _walked(lambda: adopt(written, settings))


def _fastdeploy(place: Path) -> Walk:
    import paddle  # noqa: PLC0415 - the other ways do without it

    from wsm.actions.backends.memory import HostMemory  # noqa: PLC0415 - the same
    from wsm.fastdeploy import DynamicWeightManager  # noqa: PLC0415 - the same

    model, runner = paddle.nn.Linear(4, 2), _Runner()
    port, published = 10_000 + (id(place) & 0xFFFFFF), place / "model"
    published.mkdir()
    word = EngineWord.create(
        EngineWordKind.WEIGHTS, port, WeightState.NORMAL.fastdeploy_code, directory=place
    )
    status = SimpleNamespace(value=np.memmap(word.path, dtype=np.int32, mode="r+", shape=(1,)))
    of_one = {
        "tensor_parallel_rank": 0,
        "tensor_parallel_size": 1,
        "enable_expert_parallel": False,
        "tp_group": None,
        "engine_worker_queue_port": port,
        "shutdown_comm_group_if_worker_idle": False,
    }
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(**of_one),
        load_config=SimpleNamespace(load_strategy="ipc_snapshot", rsync_config=None),
        model_config=SimpleNamespace(model=str(published)),
    )
    weights = dict(model.state_dict())

    def turns() -> None:
        manager = DynamicWeightManager(config, model, directory=place, memory=HostMemory())
        for wish in (WeightState.CLEARING, WeightState.UPDATING, WeightState.UPDATING):
            word.store(wish.fastdeploy_code)
            manager.check_model_weights_status(status, None, runner, port, False)
        manager.close()

    paddle.save(weights, str(published / "model_state.tp0.0.pdparams"), safetensors=True)
    return _walked(turns)


class _Runner:
    """What FastDeploy's loop needs of its model runner."""

    def __init__(self) -> None:
        import paddle  # noqa: PLC0415 - only this way needs it

        self.share_inputs = {"stop_flags": paddle.ones([2, 1], dtype="bool"), "caches": []}

    def clear_requests(self) -> None:
        """Forget requests; there are none."""

    clear_cache = initialize_kv_cache = clear_requests


def room(name: str) -> tuple[int, ...]:
    """Return code lines, files, lines with docstrings, functions, those of one statement, classes, errors."""
    code = files = told = functions = short = classes = errors = 0
    for path in (SOURCE / name).rglob("*.py"):
        text = path.read_text()
        tree = ast.parse(text)
        files += 1
        lines = {number for number, line in enumerate(text.splitlines(), 1) if line.strip()}
        lines -= {number for number in lines if text.splitlines()[number - 1].lstrip().startswith("#")}
        told += len(lines)
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
                body = node.body
                if ast.get_docstring(node, clean=False) is not None:
                    lines -= set(range(body[0].lineno, (body[0].end_lineno or 0) + 1))
                    body = body[1:]
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    functions += 1
                    short += len(body) <= 1
                    errors += any(ast.unparse(each).startswith("coded(") for each in node.decorator_list)
                elif isinstance(node, ast.ClassDef):
                    classes += 1
                    errors += node.name.endswith("Error")
        code += len(lines)
    return code, files, told, functions, short, classes, errors


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def _row(name: str, walk: Walk) -> str:
    counted = (len(walk.functions), 11), (walk.lines, 8), (walk.calls, 8), (walk.switches, 10)
    return f"{name:24}{len(walk.files):8}" + "".join(f"{number:{width}}" for number, width in counted)


def main() -> None:
    """Print both tables; what paddle and the loop's log say besides is left out."""
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    say(f"{'':24}{'files':>8}{'functions':>11}{'lines':>8}{'calls':>8}{'switches':>10}")
    with tempfile.TemporaryDirectory() as directory:
        for name, walk in walks(Path(directory)):
            say(_row(name, walk))
        if importlib.util.find_spec("paddle") is not None:
            say(_row("FastDeploy's loop", _fastdeploy(Path(directory))))
    names = ("code", "files", "with docs", "functions", "of one", "classes", "errors")
    say(f"\n{'':24}" + "".join(f"{each:>11}" for each in names))
    for name in ROOMS:
        say(f"{name:24}" + "".join(f"{each:11}" for each in room(name)))


if __name__ == "__main__":
    main()
