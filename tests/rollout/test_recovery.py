"""Ranks of real groups are killed under load: the group serves again, and no request is silently lost."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from functools import lru_cache
from pathlib import Path

import paddle
import pytest

from examples.rollout import supervisor as supervision
from examples.rollout.client import RolloutClient
from examples.rollout.config import RolloutConfig, rollout_config_from_mapping
from examples.rollout.errors import GroupNotReadyError, RankExitedError
from examples.rollout.model.moe import local_mixture
from examples.rollout.model.sharding import initial_state, shard
from examples.rollout.model.transformer import full_logits
from examples.rollout.request import FinishReason
from examples.rollout.run_directory import run_directory_path
from examples.rollout.supervisor import RolloutSupervisor
from tests.incident import incident
from tests.leftovers import group_name
from wsm import Outcome
from wsm.controller import Controller
from wsm.controller.errors import RestartLimitError
from wsm.errors import WsmError
from wsm.journal.entry import read_ndjson
from wsm.journal.replay import replay
from wsm.shared_directory import private_directory
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.states.vocabulary import WeightState
from wsm.strategies import publish_snapshot

pytestmark = [
    pytest.mark.paddle,
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.needs("libatomic"),
]

MODEL = {"vocabulary": 11, "width": 16, "heads": 4, "hidden": 32, "context": 512}
PROMPTS = ((1, 2, 3), (4, 5, 6, 7, 8, 9, 10), (3,))
TOKENS = 24
PATIENCE_S = 90.0


def configuration(name: str, directory: Path, **sections) -> RolloutConfig:
    """A group that finds its snapshots in `directory`, where version 1 is."""
    group = {
        "name": group_name(name),
        "snapshot": {"directory": str(directory / "snapshots")},
        **sections.pop("group", {}),
    }
    recovery = {"restarts": 1000, "delay_s": 0.01, **sections.pop("recovery", {})}
    config = rollout_config_from_mapping({"group": group, "model": MODEL, "recovery": recovery, **sections})
    publish(config, 1)
    return config


def publish(config: RolloutConfig, version: int):
    """Publish the weights whose seed is the version."""
    shape, ranks = config.engine.shape, config.group.ranks
    full = initial_state(shape, version)
    shards = {rank: shard(full, shape, rank, ranks) for rank in range(ranks)}
    return publish_snapshot(config.group.snapshot.directory, version, shards, durable=False)


@lru_cache
def greedy(shape, version: int, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """What the weights of `version` say, computed by one process without any cache."""
    weights = {name: paddle.to_tensor(array) for name, array in initial_state(shape, version).items()}
    sequence = list(prompt)
    with paddle.no_grad():
        for _ in range(TOKENS):
            odds = full_logits(shape, weights, paddle.to_tensor([sequence]), local_mixture(shape))
            sequence.append(int(odds[0, -1].argmax()))
    return tuple(sequence[len(prompt) :])


def until(condition, group: RolloutSupervisor | None = None) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        if group is not None:
            group.check()
        time.sleep(0.002)


def leftovers(config: RolloutConfig) -> list[str]:
    return [path.name for path in private_directory().iterdir() if config.group.name in path.name]


class Asking(threading.Thread):
    """Asks again and again, without retries of the client, and remembers what became of each call."""

    def __init__(self, config: RolloutConfig) -> None:
        super().__init__(daemon=True)
        self._config = config
        self._ending = threading.Event()
        self.asked = 0
        self.answers = []
        self.errors: list[WsmError] = []
        self.start()

    def run(self) -> None:
        while not self._ending.is_set():
            self._ask_through_one_connection()

    def _ask_through_one_connection(self) -> None:
        try:
            with RolloutClient(self._config.group.name) as client:
                while not self._ending.is_set():
                    self._ask(client)
        except WsmError as error:
            self.errors.append(error)
            self._ending.wait(0.01)

    def _ask(self, client: RolloutClient) -> None:
        prompt = PROMPTS[self.asked % len(PROMPTS)]
        self.asked += 1
        [answer] = client.generate([prompt], TOKENS, temperature=0, timeout_s=PATIENCE_S)
        self.answers.append((prompt, answer))

    def end(self) -> None:
        self._ending.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()

    def assert_nothing_was_lost(self) -> None:
        """Each call was answered, whole and by one version, or with an error that says "ask again"."""
        assert len(self.answers) + len(self.errors) >= self.asked
        for prompt, answer in self.answers:
            assert answer.finish_reason is FinishReason.LENGTH
            [version] = set(answer.versions)
            assert answer.tokens == greedy(self._config.engine.shape, int(version), prompt)
        for error in self.errors:
            assert error.retryable, error
            assert "retryable" in str(error)


def kill(group: RolloutSupervisor, rank: int) -> None:
    os.kill(group.pids()[rank], signal.SIGKILL)


def recovers(group: RolloutSupervisor, strike, *arguments) -> None:
    """Do something to the group, and wait until it has recovered."""
    before = group.recoveries
    strike(group, *arguments)
    until(lambda: group.recoveries > before, group)


def assert_holds(group: RolloutSupervisor, version: int, digests) -> None:
    found = group.controller.update(version, wait_s=PATIENCE_S)
    assert found.outcome is Outcome.ALREADY_SERVED
    assert {report.rank: report.digest for report in found.ranks} == dict(digests)


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def group(told, tmp_path_factory):
    directory = tmp_path_factory.mktemp("recovery")
    config = configuration(
        "recovery",
        directory,
        group={
            "engine_words": {"suffixes": [50_000 + os.getpid() % 10_000]},
            "journal_directory": str(directory / "journals"),
        },
        load={"concurrency": 4},
    )
    with RolloutSupervisor(config, tell=told.append) as running:
        yield running


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_costs_no_request_that_is_not_told(group, told, victim):
    digests = group.controller.update(1, force=True, wait_s=PATIENCE_S)
    asking = [Asking(group.config) for _ in range(3)]
    until(lambda: all(len(one.answers) > 1 for one in asking), group)
    pid, load = group.pids()[victim], group.load.answers
    recovers(group, kill, victim)
    after = [len(one.answers) for one in asking]
    until(lambda: all(len(one.answers) > n + 1 for one, n in zip(asking, after, strict=True)), group)
    until(lambda: group.load.answers > load + 4, group)
    for one in asking:
        one.end()
        one.assert_nothing_was_lost()
    assert_holds(group, 1, {report.rank: report.digest for report in digests.ranks})
    assert f"rank {victim} (process {pid}) was killed by SIGKILL" in "".join(told)
    assert "serves version 1 again" in told[-1]


def test_a_client_with_patience_is_answered_across_a_death(group):
    with RolloutClient(group.config.group.name, retry_s=PATIENCE_S) as client:
        answers = []
        asking = threading.Thread(
            target=lambda: answers.extend(client.generate(PROMPTS, 400, timeout_s=PATIENCE_S))
        )
        with group.client() as onlooker:
            before = onlooker.stats()["running"]
            asking.start()
            until(lambda: onlooker.stats()["running"] >= before, group)
        recovers(group, kill, 0)
        asking.join(PATIENCE_S)
    assert [len(answer.tokens) for answer in answers] == [400] * len(PROMPTS)
    assert all(set(answer.versions) == {"1"} for answer in answers)


def test_requests_that_wait_at_a_surviving_rank_0_are_answered_after_the_recovery(group):
    group.controller.clear(wait_s=PATIENCE_S)
    with group.client() as client:
        client.submit(PROMPTS, TOKENS, temperature=0)
        recovers(group, kill, 1)
        assert group.controller.status().state == "CLEARED"
        group.controller.update(1, wait_s=PATIENCE_S)
        results = []
        while len(results) < len(PROMPTS):
            results += client.receive(PATIENCE_S).get("results", [])
    assert {tuple(result["tokens"]) for result in results} == {
        greedy(group.config.engine.shape, 1, prompt) for prompt in PROMPTS
    }


@incident("FastDeploy#7971")
def test_the_words_of_an_engine_are_obeyed_after_a_recovery_as_before(group):
    recovers(group, kill, 1)
    with EngineWord(EngineWordKind.WEIGHTS, group.config.group.engine_words.suffixes[0]) as word:
        until(lambda: word.read() == WeightState.NORMAL)
        word.store(int(WeightState.CLEARING))
        until(lambda: word.read() == WeightState.CLEARED)
        recovers(group, kill, 0)
        assert word.read() == WeightState.CLEARED
        word.store(int(WeightState.UPDATING))
        until(lambda: word.read() == WeightState.NORMAL)
    assert group.controller.status().serving


def test_logs_and_journals_tell_of_every_life_of_a_rank(group):
    """The last test of this group: it has been through all of the above."""
    recovers(group, kill, 1)
    logs = {path.name for path in run_directory_path(group.config.group.name).glob("rank1.*log")}
    assert "rank1.log" in logs
    assert any(name.startswith("rank1.before-epoch") for name in logs)
    for rank in range(2):
        path = Path(group.config.group.journal_directory) / f"rank{rank}.ndjson"
        with path.open() as lines:
            entries = read_ndjson(lines)
        assert replay(entries).impossible is None
        assert len({entry.facts["pid"] for entry in entries if entry.kind == "started"}) > 1
        assert len({entry.epoch for entry in entries}) > 3


@pytest.fixture
def orders(tmp_path, monkeypatch):
    """A directory of orders to :mod:`struck_rank`."""
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), here))))
    monkeypatch.setenv("STRUCK_RANKS", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def struck(tmp_path_factory):
    """A group whose ranks do what the orders in its directory say, and what its supervisor tells."""
    directory, told, undo = tmp_path_factory.mktemp("struck"), [], pytest.MonkeyPatch()
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(Path(__file__).parent))))
    undo.setenv("PYTHONPATH", path)
    undo.setenv("STRUCK_RANKS", str(directory))
    config = configuration(
        "struck", directory, load={"concurrency": 2}, recovery={"repair_attempts": 2, "delay_s": 0.2}
    )
    with RolloutSupervisor(config, tell=told.append, rank_module="struck_rank") as running:
        yield running, directory, told
    undo.undo()


def test_a_rank_whose_step_raises_is_replaced_and_its_traceback_is_kept(struck):
    running, orders, told = struck
    until(lambda: running.load.answers > 2, running)
    recovers(running, lambda _: (orders / "rank1.raise").touch())
    assert running.controller.status().serving
    assert [line for line in told if "rank 1" in line and "its step raised" in line], told
    [log] = run_directory_path(running.config.group.name).glob("rank1.before-epoch*.log")
    assert "StruckError" in log.read_text()


def test_a_crash_loop_ends_with_every_death_and_leaves_the_logs(orders, told):
    config = configuration("loop", orders, recovery={"restarts": 3, "within_s": 600.0})
    with RolloutSupervisor(config, tell=told.append, rank_module="struck_rank") as running:
        (orders / "rank1.exit").touch()
        kill(running, 1)
        with pytest.raises(RestartLimitError) as caught:
            until(lambda: False, running)
    error = caught.value
    assert [death.code for death in error.deaths] == [-9, 1, 1, 1]
    assert {death.rank for death in error.deaths} == {1}
    assert "the test wants rank 1 to end" in error.log
    assert "gives up after 4 deaths" in str(error)
    directory = Path(error.directory)
    assert leftovers(config) == [directory.name]
    try:
        assert {path.suffix for path in directory.rglob("*") if path.is_file()} == {".log"}
    finally:
        shutil.rmtree(directory)


def test_a_rank_that_cannot_start_is_no_crash_loop(orders):
    (orders / "rank1.exit").touch()
    config = configuration("start", orders)
    supervisor = RolloutSupervisor(config, rank_module="struck_rank")
    with pytest.raises(RankExitedError, match="the test wants rank 1 to end"):
        supervisor.__enter__()
    assert leftovers(config) == []


def test_processes_that_do_not_attach_in_time_are_named_with_the_option_that_gives_them_longer(tmp_path):
    config = configuration("slow", tmp_path, recovery={"start_s": 0.001})
    with pytest.raises(GroupNotReadyError, match=r"ranks \[0, 1\] did not attach.*start_s"):
        RolloutSupervisor(config).__enter__()
    assert leftovers(config) == []


def test_a_group_that_starts_says_whom_it_waits_for_and_where_their_logs_are(tmp_path, monkeypatch):
    monkeypatch.setattr(supervision, "_TELL_S", 0.001)
    config, told = configuration("slow", tmp_path, recovery={"start_s": 0.1}), []
    with pytest.raises(GroupNotReadyError):
        RolloutSupervisor(config, tell=told.append).__enter__()
    assert "starts, and has waited 0.001 s for rank 0 and rank 1; the first of them wrote last: " in told[0]
    assert f"wsm.{config.group.name}.run/rank0.log" in told[0]


def test_a_rank_that_dies_while_the_group_boots_delays_the_boot_and_no_more(told, tmp_path):
    config = configuration("boot", tmp_path)
    started = threading.Event()

    def kill_at_first_command() -> None:
        with_name = config.group.name
        while not started.is_set():
            try:
                with Controller(with_name) as onlooker:
                    status = onlooker.status()
            except WsmError:
                continue
            if status.operation != "NONE":
                os.kill(status.ranks[1].pid, signal.SIGKILL)
                return

    striker = threading.Thread(target=kill_at_first_command)
    striker.start()
    try:
        with RolloutSupervisor(config, tell=told.append) as running:
            until(lambda: running.controller.status().serving, running)
            with running.client() as client:
                assert len(client.generate([[1]], 2, timeout_s=PATIENCE_S)[0].tokens) == 2
    finally:
        started.set()
        striker.join()
    assert leftovers(config) == []
