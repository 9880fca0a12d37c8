"""FastDeploy's turn: weights go, other content comes under the same label, and the engine has it loaded.

In each way of loading and by each way of asking: the words of its loop, its methods called one by one, and
control requests. CheckpointTransfer is a stand-in over real sockets; files, words and the worker are real.
"""

from __future__ import annotations

import logging
import threading
from functools import partial

import numpy as np
import paddle
import pytest
from checkpoint_transfer.sender import FakeSender
from living_group import eventually
from one_rank_worker import CLEARED, CLEARING, NORMAL, UPDATING, OneRank, OneRankRunner

from wsm import log
from wsm.controller import Controller
from wsm.fastdeploy import _configuration
from wsm.fastdeploy._control_calls import ControlRequest
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.states import engine_words
from wsm.states.epochs import Backoff
from wsm.states.vocabulary import InFlightPolicy
from wsm.strategies import write_version
from wsm.strategies.transports import by_version

pytestmark = [pytest.mark.paddle, pytest.mark.needs("libatomic")]

#: By mode: FastDeploy's load strategy, what its command line says besides, and its variable.
MODES = {
    "ipc": ("ipc", {}, ""),
    "ipc_snapshot": ("ipc_snapshot", {}, ""),
    "rsync": ("rsync", {}, ""),
    "gdr": ("rsync", {"transfer_mode": "gdr"}, ""),
    "ipc of CheckpointTransfer": ("ipc", {}, "FD_USE_CHECKPOINT_TRANSFER"),
}


class Model(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.weight = self.create_parameter([4, 2])
        self.bias = self.create_parameter([2])

    def load_weights(self, weights) -> None:
        for name, tensor in weights:
            getattr(self, name).set_value(tensor)


class Runner(OneRankRunner):
    """One with the control requests, too."""

    is_weight_sleeping = is_kvcache_sleeping = False

    def sleep(self, tags) -> None:
        self.dynamic_weight_manager.clear_model_weight()
        self.clear_cache()

    def wakeup(self, tags) -> None:
        self.initialize_kv_cache()
        self.dynamic_weight_manager.reload_model_weights()


class Turn(OneRank):
    """A worker, its trainer, and who asks it."""

    def __init__(self, directory, monkeypatch, mode: str, sender: FakeSender) -> None:
        super().__init__(directory, monkeypatch)
        self.mode, self._sender = mode, sender
        self._strategy, self._transfer, variable = MODES[mode]
        if variable:
            monkeypatch.setenv(variable, "1")
        self._held = []

    def send(self, value: float, label: str = "step_1") -> None:
        """Overwrite what lies there under the label."""
        state = {"weight": np.full((4, 2), value, np.float32), "bias": np.full(2, value, np.float32)}
        step = "0" if self.mode.endswith("CheckpointTransfer") else label
        write_version(self.model_directory, label)
        tensors = {name: paddle.to_tensor(array) for name, array in state.items()}
        if self.mode == "ipc":
            holders = {name: tensor.value().get_tensor() for name, tensor in tensors.items()}
            self._held.append((tensors, holders))  # a trainer keeps what it shares
            metas = {name: holder._share_filename(False) for name, holder in holders.items()}
            paddle.save(metas, str(self.model_directory / "ipc_metas_0"))
        elif self.mode == "ipc_snapshot":
            path = self.model_directory / "model_state.tp0.0.pdparams"
            paddle.save(tensors, str(path), safetensors=True)
        else:
            self._sender.send(state, step_id=step, rank=0)

    def start(self) -> None:
        rsync = {"redis_host": "127.0.0.1", "redis_port": self._sender.port, **self._transfer}
        self.model = Model()
        self.manager = self.make(self.config(strategy=self._strategy, rsync=rsync), self.model)
        self.runner = Runner(self.manager)

    def check(self, wish: int, block: bool = False) -> int:
        """One entry of FastDeploy's loop."""
        return self.enter(self.manager, wish, self.runner, block=block)

    def control(self, method: str, tags: str = "weight,kv_cache"):
        body = getattr(self.runner, method)
        return self.manager.control(self.runner, ControlRequest.of(method, body, tags), partial(body, tags))

    def clears(self, way: str) -> None:
        if way == "words":
            assert self.check(CLEARING) == CLEARED
        elif way == "direct calls":
            self.manager.clear_parameters(self.port)
        else:
            self.control("sleep")
        assert self.manager.version is None

    def updates(self, way: str) -> None:
        if way == "words":
            assert self.check(UPDATING) == NORMAL
        elif way == "direct calls":
            self.manager.update_parameters(self.port)
            self.manager.finalize_update(self.port)
        else:
            self.control("wakeup")

    def holds(self) -> set[float]:
        return {float(value) for each in self.manager.state_dict.values() for value in each.numpy().flat}

    def status(self):
        with Controller(self.manager.group_name, directory=self.directory) as controller:
            return controller.status()


@pytest.fixture
def make_turn(tmp_path, monkeypatch):
    """`make_turn(mode)`: a worker that has booted the value 1 under the label `step_1`."""
    monkeypatch.setattr(by_version, "_lacking_device", lambda: None)
    sender, made = FakeSender(), []

    def make(mode: str = "ipc_snapshot") -> Turn:
        turn = Turn(tmp_path, monkeypatch, mode, sender)
        monkeypatch.setattr(_configuration, "SHARED_DIRECTORY", str(turn.model_directory))
        turn.send(1.0)
        turn.start()
        made.append(turn)
        return turn

    yield make
    for turn in made:
        turn.close()
    sender.close()


@pytest.mark.slow_but
@pytest.mark.parametrize("way", ["words", "direct calls", "control requests"])
@pytest.mark.parametrize("mode", MODES)
def test_five_turns_under_one_label_bring_five_contents(make_turn, mode, way):
    turn = make_turn(mode)
    for value in (2.0, 3.0, 4.0, 5.0, 6.0):
        turn.clears(way)
        turn.send(value)
        turn.updates(way)
        assert turn.holds() == {value}
    assert turn.word.read() == NORMAL


@pytest.mark.slow_but
@pytest.mark.parametrize("gone", [False, True])
def test_a_wakeup_asks_for_the_label_that_was_served_last_and_else_for_the_announced_one(make_turn, gone):
    turn = make_turn("ipc_snapshot")
    turn.send(103.0, "step_103")
    turn.manager.update_weights_by_rdma("step_103")
    turn.control("sleep")
    assert turn.control("wakeup", "kv_cache") == {"version": None}
    if gone:
        turn.send(1.0, "step_1")
    else:
        turn.send(203.0, "step_103")
    assert turn.control("wakeup") == {"version": "step_1" if gone else "step_103"}
    assert turn.holds() == {1.0 if gone else 203.0}
    turn.send(5.0, "step_5")
    sequence = turn.status().sequence
    assert turn.control("wakeup")["version"] == turn.manager.version
    assert (turn.holds(), turn.status().sequence) == ({1.0 if gone else 203.0}, sequence)


@pytest.mark.parametrize("asks", [NORMAL, CLEARING, UPDATING])
def test_a_direct_clear_says_cleared_whatever_the_word_said_meanwhile(make_turn, asks):
    """FastDeploy's own loop waits for just that behind its call."""
    turn = make_turn()
    turn.word.store(asks)
    turn.manager.clear_parameters(turn.port)
    assert turn.word.read() == CLEARED
    turn.manager.update_parameters(turn.port)
    turn.manager.finalize_update(turn.port)
    assert turn.word.read() == NORMAL


def test_the_argument_pid_names_the_word(make_turn):
    turn = make_turn()
    other = EngineWord.create(EngineWordKind.WEIGHTS, turn.port + 1, NORMAL, directory=turn.directory)
    with other:
        turn.manager.clear_parameters(turn.port + 1)
        assert (turn.word.read(), other.read()) == (NORMAL, CLEARED)
        for pid in (None, 0, turn.port):
            turn.manager.clear_parameters(pid)
            assert turn.word.read() == CLEARED
            turn.word.store(NORMAL)
        other.unlink()


@pytest.mark.parametrize("block", [True, False])
def test_an_entry_at_cleared_leaves_without_block_as_fastdeploys_does(make_turn, block):
    turn = make_turn()
    turn.manager.clear_parameters(turn.port)
    if not block:
        assert turn.check(CLEARED) == CLEARED
    turn.word.store(UPDATING)
    assert turn.check(UPDATING, block) == NORMAL


class Asked:
    """One entry of FastDeploy's loop for UPDATING, in a thread, of a group whose source is gone."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.file = turn.model_directory / "model_state.tp0.0.pdparams"
        self.file.unlink()
        self.left: list[int] = []
        self.thread = threading.Thread(target=lambda: self.left.append(turn.check(UPDATING)))
        self.thread.start()

    def tries(self, several: int) -> None:
        """Wait until it was tried that often once more."""
        with Controller(self.turn.manager.group_name, directory=self.turn.directory) as controller:
            first = controller.status().sequence
            eventually(lambda: controller.status().sequence >= first + several, "it is tried again")
        assert (self.left, self.turn.word.read(), self.turn.holds()) == ([], UPDATING, {1.0})
        eventually(lambda: "its engine's word asks for fails" in self.turn.status().headline)


@pytest.fixture
def asked(make_turn, monkeypatch):
    monkeypatch.setattr(engine_words, "AGAIN", Backoff(0.1, 0.2))
    turn = make_turn("ipc_snapshot")
    assert turn.check(UPDATING) == NORMAL
    turn.manager.poll(turn.runner)
    entry = Asked(turn)
    yield entry
    turn.word.store(NORMAL)
    entry.thread.join()


@pytest.mark.slow
def test_an_update_that_failed_over_weights_that_serve_is_tried_until_its_source_is_back(asked, caplog):
    asked.tries(2)
    paddle.save({"weight": paddle.zeros([3])}, str(asked.file), safetensors=True)
    asked.tries(2)
    asked.turn.send(2.0)
    asked.thread.join()
    assert (asked.left, asked.turn.holds()) == ([NORMAL], {2.0})
    told = [each for each in caplog.records if log.COMMAND_FAILED in each.getMessage()]
    assert len([each for each in told if "asked=UPDATING" in each.getMessage()]) == 2, "one for each cause"
    errors = [each.name for each in told if each.levelno == logging.ERROR]
    assert sorted(errors) == ["wsm.fastdeploy"] * 2 + ["wsm.worker"] * 2, "rank and loop, each cause once"


@pytest.mark.slow_but
@pytest.mark.parametrize("command", ["update", "clear", "hold"])
def test_a_command_of_an_operator_ends_the_wish_for_an_update_that_failed(asked, command):
    asked.tries(1)
    with Controller(asked.turn.manager.group_name, directory=asked.turn.directory) as operator:
        if command == "update":
            asked.turn.send(2.0, "step_2")
            operator.update("step_2", wait_s=60)
        elif command == "clear":
            operator.clear(wait_s=60)
            eventually(lambda: asked.turn.word.read() == CLEARED)
            asked.turn.send(2.0)
            asked.turn.word.store(UPDATING)
        else:
            operator.hold(owner="operator", in_flight=InFlightPolicy.ABORT, wait_s=60)
            sequence = operator.status().sequence
            eventually(lambda: asked.turn.word.read() == UPDATING)
            operator.release(owner="operator", wait_s=60)
            assert operator.status().sequence == sequence + 1
    asked.thread.join()
    assert (asked.left, asked.turn.holds()) == ([NORMAL], {1.0 if command == "hold" else 2.0})


def test_a_wish_whose_turn_comes_behind_an_operators_command_is_looked_at_again(asked, monkeypatch):
    asked.tries(1)
    begun, held, start = threading.Event(), threading.Event(), threading.Thread.start

    def start_late(thread):
        if threading.current_thread() is asked.thread and not held.is_set():
            run, thread.run = thread.run, lambda: held.wait(60) and run()
            begun.set()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_late)
    assert begun.wait(60), "it is tried again"
    with Controller(asked.turn.manager.group_name, directory=asked.turn.directory) as operator:
        hold = operator.hold(owner="operator", in_flight=InFlightPolicy.ABORT, wait_s=60)
        held.set()
        eventually(lambda: asked.turn.word.read() == UPDATING)
        assert operator.release(owner="operator", wait_s=60).sequence == hold.sequence + 1
    asked.thread.join()
    assert (asked.left, asked.turn.holds()) == ([NORMAL], {1.0})


@pytest.mark.slow_but
@pytest.mark.parametrize("mode", ["ipc_snapshot", "rsync"])
def test_other_content_under_a_label_is_named_by_its_digest_in_status_permit_and_journal(make_turn, mode):
    turn = make_turn(mode)
    assert turn.check(UPDATING) == NORMAL
    assert turn.status().content_digest is None, "the same once more"
    told = []
    for value in (2.0, 3.0, 3.0):
        turn.send(value)
        assert turn.check(UPDATING) == NORMAL
        turn.manager.poll(turn.runner)
        status, permit = turn.status(), turn.manager._permit
        assert (permit.version, permit.content_digest) == ("step_1", status.content_digest)
        assert f"content {status.content_digest}" in status.headline
        told.append(status.content_digest)
        journal = [entry.facts for entry in turn.manager._worker.journal]
        assert {"version": "step_1", "content_digest": told[-1]} in journal
    assert None not in told
    assert told[0] != told[1] == told[2]
    with Controller(turn.manager.group_name, directory=turn.directory) as controller:
        assert controller.update("step_1", force=False, wait_s=5).content_digest == told[-1]
    turn.send(4.0, "step_2")
    assert turn.check(UPDATING) == NORMAL
    assert (turn.status().version, turn.status().content_digest) == ("step_2", None)
