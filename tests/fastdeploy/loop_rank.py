"""One rank with a loop of FastDeploy's shape, as a process: python loop_rank.py SETTINGS_JSON RANK.

Written anew after what the loops of December 2025 and of 2026 do with the weights word: the broadcast from
rank 0, the barriers, the plain stores, the sleep. Model runner and collectives are stand-ins; the words, the
segment, the files and the processes are real.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from model_runners import Buffers, CacheTensor, ControlledRunner, Flags, Groups, SharedInputs

from wsm.actions.backends.memory import HostMemory
from wsm.actions.base import Loaded
from wsm.actions.measuring import resident_digest
from wsm.errors import WsmError
from wsm.fastdeploy import DynamicWeightManager, _calls, _control_calls, _entries, _install, _part_words
from wsm.fastdeploy._membership import Membership
from wsm.strategies.applier.memory_target import MemoryTarget
from wsm.strategies.tensor import TensorSpec

NORMAL, UPDATING, CLEARING, CLEARED = 0, 1, -1, -2
SPECS = (TensorSpec("embedding", "F32", (8, 16)), TensorSpec("layer.weight", "BF16", (16, 16)))
#: The first under its trainer's name.
TRAINED_SPECS = (TensorSpec("trained.embedding", "F32", (8, 16)), SPECS[1])
ENDS = 99
PATIENCE_S = 60.0


class TornMeetingError(Exception):
    """Another rank did not come."""


class Walk:
    """The lines of wsm.fastdeploy that a rank comes by inside FastDeploy's check or its poll; it ends at one.

    A line is told by its file, its number, and whether the weights word is below 0 then.
    """

    def __init__(self, settings, rank: int) -> None:
        self.lines: dict[str, None] = {}
        self._end = settings.get("ends_at") if rank == settings["walker"] else None
        self._word: Signal | None = None

    def begin(self, word: Signal) -> None:
        self._word = word
        sys.settrace(self._call)

    def _call(self, frame, _event, _argument):
        return self._line if "/wsm/fastdeploy/" in frame.f_code.co_filename else None

    def _line(self, frame, event, _argument):
        if event == "line":
            file = Path(frame.f_code.co_filename).name
            here = f"{file}:{frame.f_lineno}:{'away' if self._word.value[0] < 0 else 'back'}"
            self.lines[here] = None
            if here == self._end:
                os.kill(os.getpid(), signal.SIGKILL)
        return self._line


class Board:
    """What stands for collectives: each rank counts its calls in a file that all have mapped."""

    def __init__(self, directory: Path, rank: int, ranks: int) -> None:
        self._rank, self._ranks, self._calls = rank, ranks, 0
        self._torn = directory / "torn"
        path = directory / "board"
        path.touch()
        if path.stat().st_size < 16 * ranks:
            with path.open("r+b") as file:
                file.truncate(16 * ranks)
        self._cells = np.memmap(path, dtype=np.int64, mode="r+", shape=(ranks, 2))

    def barrier(self) -> None:
        self._calls += 1
        self._cells[self._rank][0] = self._calls
        self._until(lambda: all(self._cells[rank][0] >= self._calls for rank in range(self._ranks)))

    def broadcast(self, value: int) -> int:
        """As a blocking one: rank 0's value, and none is ahead by more than a call."""
        self.barrier()
        if self._rank == 0:
            self._cells[0][1] = value
        self.barrier()
        value = int(self._cells[0][1])
        self.barrier()
        return value

    def _until(self, question) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not question():
            if time.monotonic() > deadline or self._torn.exists():
                raise TornMeetingError
            time.sleep(0.0005)


class Signal:
    """FastDeploy's IPCSignal, as far as its loop goes: a numpy view."""

    def __init__(self, path: Path, places: int = 1) -> None:
        self.value = np.memmap(path, dtype=np.int32, mode="r+", shape=(places,))


class Shared(SharedInputs):
    """Those of a build that calls it ``reset``."""

    reset = SharedInputs.reset_share_inputs
    reset_share_inputs = None


class Mapped:
    """What a runner and the process that holds KV cache tell each other by ``cache_ready_signal``."""

    def __init__(self, ready, rank: int, *, makes: bool, waits: bool) -> None:
        self._ready, self._rank, self._makes, self._waits = ready, rank, makes, waits

    def taken(self) -> None:
        """The cache is to be there: that process makes it, or maps what is made here."""
        if self._makes:
            self._await(1)
        self._ready[self._rank] = 1

    def let_go(self) -> None:
        """What was made here is freed once that process has no mapping; what it made is unlinked for it."""
        if self._makes:
            self._ready[self._rank] = 0
        elif self._waits:  # that of December 2025 does not
            self._await(0)

    def _await(self, value: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self._ready[self._rank] != value:
            if time.monotonic() > deadline:
                raise TornMeetingError
            time.sleep(0.001)


class ModelRunner:
    """Its calls are written down."""

    mapped: Mapped | None = None

    def __init__(self, generation: str) -> None:
        self.calls: list[str] = []
        self.share_inputs = {"stop_flags": Flags()} if generation == "2025" else Shared(self.calls)
        self.num_gpu_blocks = 4
        self.manager = None  # where FastDeploy's own check is left

    def initialize_kv_cache(self) -> None:
        self.calls.append("initialize_kv_cache")
        if self.mapped is not None:
            self.mapped.taken()
        self.share_inputs["caches"] = [CacheTensor()]

    def clear_cache(self) -> None:
        self.calls.append("clear_cache")
        if self.mapped is not None:
            self.mapped.let_go()
        self.share_inputs.pop("caches", None)

    def clear_requests(self) -> None:
        self.calls.append("clear_requests")

    def clear_parameters(self, pid) -> None:
        """As FastDeploy's own check calls it."""
        assert self.manager is not None, "the hook runs units, never the runner's own clear"
        self.manager.clear_parameters(pid)
        self.clear_cache()

    def update_parameters(self, pid) -> None:
        assert self.manager is not None, "the hook runs units, never the runner's own update"
        self.manager.update_parameters(pid)
        self.initialize_kv_cache()
        self.manager.finalize_update(pid)


class SteeredWeights(MemoryTarget):
    """Fails where the test says so, once."""

    def __init__(self, directory: Path, rank: int) -> None:
        super().__init__(SPECS)
        self._orders, self._rank = directory, rank

    def get_name_mappings_to_training(self, trainer_degree=None):
        """As FastDeploy's models say it: names of tensors that are not there, and merged ones, too."""
        experts = ["trained.0", "trained.1"]
        return {"embedding": "trained.embedding", "head": "embedding", "layer.weight": experts}

    def _passes(self, point: str) -> None:
        if (self._orders / f"{self._rank}.{point} is its end").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        order = self._orders / f"{self._rank}.{point}"
        if order.exists():
            order.unlink()
            raise OSError(f"the test wants {point} to fail")

    def writable(self, name):
        self._passes("write")
        return super().writable(name)

    def release(self) -> int:
        self._passes("release")
        return super().release()


def feeds(context, target):
    """Brings a checkpoint as the models' own loaders take it, one of its tensors to the draft, too."""
    for spec in SPECS:
        target.writable(spec.name)[:] = bytes(spec.nbytes)
    digest = resident_digest(target, lambda: None)
    nbytes = sum(spec.nbytes for spec in SPECS)
    return Loaded(context.version or "1", digest, digest, nbytes, len(SPECS), auxiliary_tensors=1)


class Loop:
    def __init__(self, settings, rank: int) -> None:
        self.settings, self.rank = settings, rank
        self.directory = Path(settings["directory"])
        self.shared = Path(settings.get("shared", self.directory))
        self.ranks, self.port = settings["ranks"], settings["ports"][rank // settings["part"]]
        self.board = Board(self.directory, rank, self.ranks)
        self.runner = ModelRunner(settings["generation"])
        if settings.get("v1"):
            _install._watch(ControlledRunner)
            _control_calls.DEADLINES_S.update(self.settings.get("deadlines_s", {}))
            self.runner = ControlledRunner(self.passes, whole=settings["whole"])
        self.word = Signal(self.shared / f"model_weights_status.{self.port}")
        self.kv: Signal | None = None
        cache_process = settings.get("cache_process")
        if cache_process:
            self.kv = Signal(self.shared / f"kv_cache_status.{self.port}")
            ready = Signal(self.shared / f"cache_ready_signal.{self.port}", self.ranks).value
            self.runner.mapped = Mapped(
                ready, rank, makes=cache_process == "makes", waits=settings["generation"] == "2026"
            )
        self.turns = self.controlled = 0
        self.walk = Walk(settings, rank) if "walker" in settings else None

    def passes(self, point: str) -> None:
        """Where a test lets a method of the runner fail, end its process, or hang."""
        if (self.directory / f"{self.rank}.{point} is its end").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        while (self.directory / f"{self.rank}.{point} hangs").exists():
            time.sleep(0.01)
        order = self.directory / f"{self.rank}.{point}"
        if order.exists():
            order.unlink()
            raise OSError(f"the test wants {point} to fail")

    def says(self, event: str, **more) -> None:
        sys.stdout.write(json.dumps({"event": event, "rank": self.rank, **more}) + "\n")
        sys.stdout.flush()

    def start(self) -> None:
        _entries.STREAMS_LOOK_S = self.settings.get("streams_look_s", 0.05)
        member = Membership(self.rank, range(self.ranks), self.told, self.ranks)
        part, whole = self.settings["part"], self.settings.get("whole", False)
        parallel = SimpleNamespace(
            tensor_parallel_rank=self.rank % part,
            tensor_parallel_size=part,
            enable_expert_parallel=whole,
            expert_parallel_size=self.ranks,
            engine_worker_queue_port=self.settings["ports"] if whole else self.port,
            local_engine_worker_queue_port=self.port,
            shutdown_comm_group_if_worker_idle=whole,
        )
        if whole:
            Buffers.calls = self.runner.calls
            _calls.deepep_buffers = lambda: Buffers
            _calls.device_groups = lambda _facts, _parallel: Groups(self.runner.calls)
        config = SimpleNamespace(
            parallel_config=parallel,
            load_config=SimpleNamespace(
                load_strategy="ipc_snapshot", rsync_config=self.settings.get("rsync_config")
            ),
            model_config=SimpleNamespace(model=self.settings["model"]),
            cache_config=SimpleNamespace(num_cpu_blocks=0 if self.kv is None else 4),
            graph_opt_config=SimpleNamespace(use_cudagraph=bool(self.settings.get("v1"))),
            speculative_config=SimpleNamespace(method="mtp" if whole else None),
        )
        _part_words.ANSWERS_S = self.settings.get("cache_answers_s", _part_words.ANSWERS_S)
        self.weights = SteeredWeights(self.directory, self.rank)
        self.manager = DynamicWeightManager(
            config,
            self.weights,
            self.rank,
            member=member,
            memory=HostMemory(),
            directory=self.shared,
        )
        if self.rank == 0:
            self.hurry(self.settings.get("hurried", []))
        self.runner.dynamic_weight_manager = self.manager
        settle = self.manager._settle_behind

        def settles(*runner, **facts) -> None:
            self.passes("settles")
            settle(*runner, **facts)

        self.manager._settle_behind = settles
        self.runner.initialize_kv_cache()
        if self.settings.get("calls"):
            self.calls_one_by_one()
        self.says("ready", version=self.manager.version, first_load=self.manager.first_load)

    def hurry(self, wishes: list[tuple[int, int]]) -> None:
        """An engine that asks for the next thing in the moment it is answered: `(answer, next)`, in order."""
        word, left = self.manager._own_word, list(wishes)
        change = word.change

        def changed(before: int, after: int) -> bool:
            done = change(before, after)
            if done and left and left[0][0] == after:
                assert change(*left.pop(0))
            return done

        word.change = changed

    def calls_one_by_one(self) -> None:
        """What a runner of V1 calls of the manager, in its order."""
        manager = self.manager
        manager.clear_deepep_buffer()
        manager.clear_model_weight()
        held = sorted(self.weights.held())
        manager.clear_communication_group()
        manager.restart_communication_group()
        manager.recreate_deepep_buffer()
        manager.reload_model_weights()
        self.says("called", held=held, version=manager.version)
        self.board.barrier()
        said = manager.update_weights_by_rdma("1")
        manager.finalize_update()
        self.says("updated", **said)
        if self.rank == 0:
            (self.directory / "0.write").touch()
        self.board.barrier()
        try:
            manager.update_weights_by_rdma("1")
        except WsmError as error:
            self.says("failed", code=error.code, error=str(error))
        try:
            manager.finalize_update()
        except RuntimeError as error:
            self.says("not_there", error=str(error))
        manager.reload_model_weights()
        self.announced_to_one_rank()
        before = int(self.word.value[0])
        self.board.barrier()
        manager._update_shared_status(self.port, UPDATING)
        self.board.barrier()
        self.says("shown", word=int(self.word.value[0]))
        self.board.barrier()
        manager._update_shared_status(self.port, before)

    def announced_to_one_rank(self) -> None:
        """An update that names no version; rank 0 alone finds the file that does, and then rank 1 alone."""
        if self.rank == 0:
            (Path(self.settings["model"]) / "version.yaml").write_text("step: 1\n")
        self.board.barrier()
        for finds in (0, 1):
            if self.rank != finds:
                self.manager.fd_config.model_config.model = str(self.directory / "elsewhere")
            else:
                self.manager.fd_config.model_config.model = self.settings["model"]
            try:
                self.says("announced", **self.manager.update_weights_by_rdma())
            except WsmError as error:
                self.says("not_announced", code=error.code, error=str(error))

    def told(self, value):
        """One object from rank 0, by a file."""
        path = self.directory / "told"
        if self.rank == 0:
            path.with_suffix(".new").write_text(json.dumps(value))
            path.with_suffix(".new").rename(path)
        while not path.exists():
            time.sleep(0.001)
        return tuple(json.loads(path.read_text()))

    def check(self, signal: int, *, block: bool) -> None:
        arguments = (self.runner, self.port)
        if self.settings["generation"] == "2026":
            arguments = (self.kv, self.runner, self.port, block)
        late = self.directory / f"{self.rank}.late"
        while late.exists():
            time.sleep(0.002)
        self.says("entered", signal=signal)
        if self.settings.get("own_check"):
            self.runner.manager = self.manager
            self.own_check(block=block)
        elif self.walk is None:
            self.manager.check_model_weights_status(self.word, *arguments)
        else:
            self.walk.begin(self.word)
            self.manager.check_model_weights_status(self.word, *arguments)
            sys.settrace(None)
        self.says(
            "left",
            signal=signal,
            word=int(self.word.value[0]),
            version=self.manager.version,
            calls=self.runner.calls,
        )
        self.runner.calls = []

    def own_check(self, *, block: bool) -> None:
        """FastDeploy's own: it calls the runner, and watches the level of the word."""
        word = self.word.value
        while word[0] != NORMAL and (block or word[0] != CLEARED):
            asked = int(word[0])
            if asked in (CLEARING, UPDATING):
                self.runner.clear_requests()
                call, until = (
                    (self.runner.clear_parameters, CLEARED)
                    if asked == CLEARING
                    else (self.runner.update_parameters, NORMAL)
                )
                call(self.port)
                while word[0] != until:
                    time.sleep(0.001)
                self.says("seen", word=until)
            time.sleep(0.001)

    def word_or_end(self) -> int:
        return ENDS if (self.directory / "end").exists() else int(self.word.value[0])

    def execute(self) -> None:
        """A step: all ranks are in it, with weights of one version."""
        self.board.barrier()
        self.turns += 1
        if (self.directory / "requests").exists():
            self.runner.share_inputs["stop_flags"].values[:2] = False
            self.board.barrier()
            (self.directory / "requests").unlink(missing_ok=True)
        if self.turns % 50 == 0:
            digest = resident_digest(self.weights, lambda: None)
            self.says("stepped", version=self.manager.version, digest=digest)
        time.sleep(0.001)

    def go(self) -> None:
        self.start()
        turn = {"2025": self.turn_of_2025, "2026": self.turn_of_2026}[self.settings["generation"]]
        if self.settings.get("v1"):
            turn = self.turn_of_v1
        self.event_loop_normal(turn)
        self.says("ended", turns=self.turns, lines=[] if self.walk is None else list(self.walk.lines))
        self.manager.close()

    def event_loop_normal(self, turn) -> None:
        """Only its place counts: the message of a refused command names it."""
        number = 0
        while True:
            if self.settings.get("polls"):
                if self.walk is not None and (self.directory / "walk").exists():
                    self.walk.begin(self.word)
                self.manager.poll(self.runner)
                sys.settrace(None)
            if self.board.broadcast(int((self.directory / "end").exists())):
                break
            turn(number)
            number += 1
            if self.walk is not None and self.has_walked():
                (self.directory / "end").touch()

    def has_walked(self) -> bool:
        if self.settings["v1"]:
            return self.controlled == self.settings["controls"]
        return bool(self.walk.lines) and not self.settings["polls"] and self.word.value[0] == NORMAL

    @property
    def model_runner(self) -> ModelRunner:
        return self.runner

    def turn_of_v1(self, _number: int) -> None:
        """No word is looked at; a control request of the task queue runs on every rank, then a barrier."""
        path = self.directory / f"control.{self.controlled}"
        if self.board.broadcast(int(path.exists())):
            self.controlled += 1
            asked = json.loads(path.read_text())
            if self.walk is not None:
                self.walk.begin(self.word)
            try:
                said = {"result": getattr(self.runner, asked["method"])(**asked["args"])}
            except Exception as error:  # noqa: BLE001 - as FastDeploy's loop answers it
                said = {"error": str(error), "code": getattr(error, "code", "")}
            sys.settrace(None)
            self.says(
                "controlled",
                sleeping=[self.runner.is_weight_sleeping, self.runner.is_kvcache_sleeping],
                held=sorted(self.weights.held()),
                version=self.manager.version,
                calls=self.runner.calls,
                **said,
            )
            self.runner.calls.clear()
            self.board.barrier()
        if not self.runner.is_sleeping:
            self.execute()

    def turn_of_2025(self, _number: int) -> None:
        """The word is latched by rank 0, handed on, and checked behind a barrier; the check stays inside."""
        signal = self.board.broadcast(int(self.word.value[0]))
        self.board.barrier()
        if signal != NORMAL:
            self.word.value[0] = signal
            self.check(signal, block=True)
        self.execute()

    def turn_of_2026(self, _number: int) -> None:
        """Without `block` the loop itself sleeps behind a clear, until rank 0's word says UPDATING."""
        signal = self.board.broadcast(int(self.word.value[0]))
        if signal != NORMAL:
            self.board.barrier()
            block = self.settings["block"]
            self.word.value[0] = signal
            if self.kv is not None:
                self.kv.value[0] = signal
            self.check(signal, block=block)
            if signal == CLEARING and not block:
                self.board.barrier()
                while (signal := self.board.broadcast(self.word_or_end())) not in (UPDATING, ENDS):
                    time.sleep(0.01)
                if signal == UPDATING:
                    self.word.value[0] = UPDATING
                return
        self.execute()


if __name__ == "__main__":
    Loop(json.loads(sys.argv[1]), int(sys.argv[2])).go()
