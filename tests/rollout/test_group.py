"""Whole rollout groups: real processes, real Gloo, real snapshots, commanded from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import paddle
import psutil
import pytest

from examples.rollout.config import RolloutConfig, rollout_config_from_mapping
from examples.rollout.model.moe import local_mixture
from examples.rollout.model.sharding import initial_state, shard
from examples.rollout.model.transformer import full_logits
from examples.rollout.request import FinishReason
from examples.rollout.supervisor import RolloutSupervisor
from tests.incident import incident
from tests.leftovers import group_name
from wsm import Outcome
from wsm.shared_directory import private_directory
from wsm.states.vocabulary import InFlightPolicy, KVPolicy
from wsm.strategies import publish_snapshot

pytestmark = [pytest.mark.paddle, pytest.mark.processes]

MODEL = {"vocabulary": 11, "width": 16, "heads": 4, "hidden": 32, "context": 512}
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [3]]


def configuration(name: str, **sections) -> RolloutConfig:
    group = {"name": group_name(name), **sections.pop("group", {})}
    return rollout_config_from_mapping({"group": group, "model": MODEL, **sections})


def publish(config: RolloutConfig, version: int) -> None:
    """Publish the weights whose seed is the version."""
    shape, ranks = config.engine.shape, config.group.ranks
    full = initial_state(shape, version)
    shards = {rank: shard(full, shape, rank, ranks) for rank in range(ranks)}
    publish_snapshot(config.group.snapshot.directory, version, shards, durable=False)


def greedy(config: RolloutConfig, version: int, prompt, count: int) -> tuple[int, ...]:
    """What the weights of `version` say, computed by one process without any cache."""
    shape = config.engine.shape
    weights = {name: paddle.to_tensor(array) for name, array in initial_state(shape, version).items()}
    sequence = list(prompt)
    with paddle.no_grad():
        for _ in range(count):
            odds = full_logits(shape, weights, paddle.to_tensor([sequence]), local_mixture(shape))
            sequence.append(int(odds[0, -1].argmax()))
    return tuple(sequence[len(prompt) :])


def runs(pid: int) -> bool:
    """An orphan that has ended stays a zombie where a container's first process reaps none."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.002)


@pytest.fixture(scope="module")
def group():
    config = configuration("rollout", group={"engine_words": {"suffixes": [40_000 + os.getpid() % 10_000]}})
    publish(config, 1)
    with RolloutSupervisor(config) as running:
        yield running


@pytest.fixture
def client(group):
    with group.client() as connected:
        yield connected


@pytest.fixture
def serves(group):
    """`serves(version)`: bring the group to a version, whatever a test before left."""

    def bring(version: int):
        publish_once(group.config, version)
        group.controller.clear()
        return group.controller.update(version)

    return bring


def publish_once(config: RolloutConfig, version: int) -> None:
    if not (Path(config.group.snapshot.directory) / "versions" / str(version)).exists():
        publish(config, version)


class InBackground(threading.Thread):
    """One long request, and the moment when it has begun to answer."""

    def __init__(self, group, count: int) -> None:
        super().__init__(daemon=True)
        self.group, self.count = group, count
        self.begun = threading.Event()
        self.answer = None
        self.start()
        assert self.begun.wait(100)

    def run(self) -> None:
        with self.group.client() as client:
            [self.answer] = client.generate(
                [[1, 2, 3]], self.count, temperature=0, on_tokens=lambda *_: self.begun.set()
            )


@pytest.mark.slow
def test_a_group_boots_with_the_version_that_its_snapshots_announce(tmp_path):
    config = configuration("announced", group={"snapshot": {"directory": str(tmp_path)}})
    publish(config, 5)
    with RolloutSupervisor(config) as running, running.client() as client:
        [answer] = client.generate([PROMPTS[0]], 4, temperature=0)
    assert answer.versions == ("5",) * 4
    assert answer.tokens == greedy(config, 5, PROMPTS[0], 4)


@pytest.mark.slow
@incident("NeMo-RL#4018")
def test_every_token_is_what_the_version_that_it_names_says(group, client, serves):
    for version in (2, 3, 4):
        receipt = serves(version)
        assert (receipt.outcome, receipt.version, receipt.loaded) == (Outcome.UPDATED, str(version), True)
        for prompt, answer in zip(PROMPTS, client.generate(PROMPTS, 6, temperature=0), strict=True):
            assert answer.versions == (str(version),) * 6
            assert answer.tokens == greedy(group.config, version, prompt, 6)


@incident("vllm#54235")
def test_requests_that_arrive_while_the_group_is_cleared_wait_for_the_next_version(group, client, serves):
    serves(2)
    publish_once(group.config, 3)
    group.controller.clear()
    assert client.stats()["kv_bytes"] == 0
    client.submit(PROMPTS, 4, temperature=0)
    with group.client() as onlooker:
        until(lambda: onlooker.stats()["waiting"] == 3)
    group.controller.update(3)
    results = []
    while len(results) < 3:
        results += client.receive(20).get("results", [])
    assert {tuple(result["versions"]) for result in results} == {("3",) * 4}


@pytest.mark.slow
def test_kept_requests_go_on_with_the_new_version_and_say_which_token_is_whose(group, serves):
    publish_once(group.config, 3)
    serves(2)
    running = InBackground(group, count=300)
    group.controller.clear(in_flight=InFlightPolicy.KEEP)
    group.controller.update(3)
    running.join()
    answer = running.answer
    assert answer.finish_reason is FinishReason.LENGTH
    assert list(answer.versions) == sorted(answer.versions)
    assert set(answer.versions) == {"2", "3"}
    change = answer.versions.index("3")
    prompt = (1, 2, 3)
    assert answer.tokens[:change] == greedy(group.config, 2, prompt, change)
    after = greedy(group.config, 3, (*prompt, *answer.tokens[:change]), 5)
    assert answer.tokens[change : change + 5] == after


@pytest.mark.slow
@pytest.mark.parametrize("hot", [False, True], ids=["in place", "hot"])
@pytest.mark.parametrize("policy", list(KVPolicy), ids=[policy.value for policy in KVPolicy])
def test_running_requests_go_through_an_update_as_the_kv_policy_says(group, client, serves, policy, hot):
    publish_once(group.config, 3)
    serves(2)
    running = InBackground(group, count=500)
    receipt = group.controller.update(3, hot=hot, in_flight=InFlightPolicy.KEEP, kv_policy=policy)
    running.join(60)
    answer = running.answer
    assert receipt.hot == hot
    assert answer.finish_reason is FinishReason.LENGTH
    change = answer.versions.index("3")
    assert answer.versions == ("2",) * change + ("3",) * (500 - change)
    assert answer.tokens[:change] == greedy(group.config, 2, (1, 2, 3), change)
    facts = receipt.ranks[0].facts
    assert facts["kv_policy"] == policy.value
    if policy is KVPolicy.DROP:
        assert answer.mixed == ()
        assert facts["kv_blocks_kept"] == 0
        after = greedy(group.config, 3, (1, 2, 3, *answer.tokens[:change]), 5)
        assert answer.tokens[change : change + 5] == after
    else:
        assert answer.mixed == tuple(range(change, 500))
        assert facts["requests_held"] == 1
        assert facts["kv_blocks_kept"] > 0
    assert client.stats()["kv_reuse"]["mixed_tokens"] >= len(answer.mixed)


@incident("FastDeploy#7971")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["experts", "draft"])
def test_groups_of_every_kind_survive_cycles_that_shut_all_communicators_down(kind):
    model = {**MODEL, **({"experts": 4} if kind == "experts" else {"draft_layers": 1})}
    config = configuration(
        kind,
        model=model,
        group={"shut_down_groups": True},
        engine={"routing_replay": kind == "experts"},
        load={"concurrency": 4},
    )
    publish(config, 1)
    with RolloutSupervisor(config) as running, running.client() as client:
        for version in (2, 3):
            publish(config, version)
            running.controller.clear()
            running.controller.update(version)
            [answer] = client.generate([PROMPTS[1]], 5, temperature=0)
            assert answer.tokens == greedy(config, version, PROMPTS[1], 5)
            assert answer.versions == (str(version),) * 5
            assert (answer.routing is not None) == (kind == "experts")
        until(lambda: running.load.tokens_by_version["3"] > 0)
        running.check()


@pytest.mark.slow
def test_a_boot_that_fails_leaves_nothing(tmp_path):
    (tmp_path / "model_state.tp0.0.pdparams").write_bytes(b"\x80\x04 not safetensors")
    config = configuration("broken", group={"snapshot": {"directory": str(tmp_path)}})
    with pytest.raises(Exception, match=r"rank [01]"), RolloutSupervisor(config):
        pass
    assert leftovers(config) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [*(pytest.param(how, marks=pytest.mark.slow) for how in (signal.SIGTERM, signal.SIGINT)), signal.SIGKILL],
)
def test_the_ranks_end_with_their_supervisor_however_it_ends(how):
    config = configuration("ending")
    program = (
        "import sys, json; from examples.rollout.config import rollout_config_from_mapping as build;"
        "from examples.rollout.supervisor import run_group;"
        "run_group(build(json.loads(sys.argv[1])), lambda group: print(*group.pids(), flush=True))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(config.as_mapping())], stdout=subprocess.PIPE, text=True
    ) as supervisor:
        pids = [int(pid) for pid in supervisor.stdout.readline().split()]
        assert len(pids) == 2
        supervisor.send_signal(how)
        supervisor.wait(20)
    until(lambda: not any(runs(pid) for pid in pids))
    if how is signal.SIGKILL:  # what it left is replaced by the next owner, who then removes all
        with RolloutSupervisor(config) as running, running.client() as client:
            assert len(client.generate([[1]], 2)[0].tokens) == 2
    else:
        assert supervisor.returncode == 0
    assert leftovers(config) == []


def leftovers(config: RolloutConfig) -> list[str]:
    return [path.name for path in private_directory().iterdir() if config.group.name in path.name]
