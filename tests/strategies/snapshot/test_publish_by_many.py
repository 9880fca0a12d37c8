"""Each process of a trainer puts its own shard, and one seals: real processes, killed before each line."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from trainer_processes import TrainerProcess

from tests.incident import incident
from wsm.strategies import (
    MemoryTarget,
    SnapshotPublisher,
    SnapshotSource,
    TensorSpec,
    load,
    publish_snapshot,
    read_version,
)

pytestmark = pytest.mark.processes

SPEC = TensorSpec("w", "U8", (64,))
TRACED = ("snapshot/publish.py", "retention.py")


def state(content: int) -> dict[str, tuple[TensorSpec, bytes]]:
    return {"w": (SPEC, bytes([content]) * 64)}


class Trainer:
    """The processes of one trainer, one per rank, all in version 2."""

    def __init__(self, root: Path, ranks: int, *, job: str = "a", version: int = 2, **options) -> None:
        self.root, self.ranks = root, ranks
        options = {"world_size": ranks, "job": job, "durable": False, **options}

        def calls():
            publisher = SnapshotPublisher(root, **options)
            staged = publisher.version(version)

            def put(rank, content):
                return staged.put(rank, state(content))

            def seal(digests):
                report = staged.seal({int(rank): digest for rank, digest in digests.items()})
                return [report.version, report.manifest_digest, report.bytes]

            def fail(rank):
                staged.put(rank, {**state(0), "late": object()})

            return {"put": put, "seal": seal, "fail": fail, "leave": staged.discard}

        self.processes = [TrainerProcess(calls, TRACED) for _ in range(ranks)]

    def put(self, content: int) -> dict[int, str]:
        return {rank: process.call("put", rank, content) for rank, process in enumerate(self.processes)}

    def __enter__(self) -> Trainer:  # noqa: PYI034 - typing has Self from Python 3.11 on
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as ends:
            for process in self.processes:
                ends.callback(process.kill)


def found(root: Path, ranks: int, version: int | None = None) -> tuple[str, set[int]]:
    """Return the version that all ranks load, and the contents that they hold then."""
    versions, contents = set(), set()
    for rank in range(ranks):
        target = MemoryTarget([SPEC])
        source = SnapshotSource(root, rank, device_id=rank, world_size=ranks, shared_directory=None)
        versions.add(load(source, target, version=version).version)
        contents |= set(bytes(target.readable("w")))
    [one] = versions
    return one, contents


def hidden(root: Path) -> set[str]:
    names = {path.name for path in (root / "versions").iterdir()}
    return {name for name in names if name.startswith(".")} - {".publisher.lock"}


def first(root: Path, ranks: int) -> None:
    publish_snapshot(root, 1, {rank: state(1) for rank in range(ranks)}, durable=False)


@incident("prime-rl#1492")
def test_each_process_puts_its_own_shard_and_nothing_is_seen_before_one_seals_them(tmp_path):
    first(tmp_path, 3)
    with Trainer(tmp_path, 3) as trainer:
        digests = trainer.put(7)
        assert found(tmp_path, 3) == ("1", {1})
        assert trainer.processes[1].call("seal", digests)[0] == "2"
        assert found(tmp_path, 3) == ("2", {7})
        for process in trainer.processes:
            process.call("leave")
        assert hidden(tmp_path) == set()


def test_a_process_in_a_relative_directory_publishes_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Trainer(Path("policy"), 2) as trainer:
        assert trainer.processes[0].call("seal", trainer.put(7))[0] == "2"
    assert found(tmp_path / "policy", 2) == ("2", {7})


def test_it_seals_what_was_heard_and_nothing_else(tmp_path):
    first(tmp_path, 2)
    with Trainer(tmp_path, 2) as trainer, Trainer(tmp_path, 3) as wider:
        digests = trainer.put(7)
        sealing = trainer.processes[0]
        other = digests[0]
        for heard, named in [
            ({0: digests[0]}, "of ranks [0], and it is for 2"),
            ({**digests, 2: other}, "of ranks [0, 1, 2], and it is for 2"),
            ({**digests, 1: other}, f"rank 1 was put as {digests[1]}, and {other} was heard"),
        ]:
            code, message = sealing.call("seal", heard)
            assert code == "incomplete-publication"
            assert named in message
        of_three = wider.processes[1].call("put", 1, 7)
        code, message = sealing.call("seal", {**digests, 1: of_three})
        assert "rank 1 was put for 3 ranks, not for 2" in message
        assert found(tmp_path, 2) == ("1", {1})
        code, message = sealing.call("put", 2, 7)
        assert (code, "no rank 2" in message) == ("incomplete-publication", True)


def test_of_shards_that_are_put_twice_the_last_whole_one_counts(tmp_path):
    with Trainer(tmp_path, 2) as trainer:
        before = trainer.put(7)
        again = trainer.processes[0].call("put", 1, 8)
        assert trainer.processes[0].call("fail", 1)[0] == "trainer-tensor"
        code, message = trainer.processes[0].call("seal", before)
        assert (code, again in message) == ("incomplete-publication", True)
        assert trainer.processes[0].call("seal", {**before, 1: again})[0] == "2"
    assert found(tmp_path, 2) == ("2", {7, 8})


def test_after_the_seal_nothing_is_put_and_only_the_same_digests_are_sealed(tmp_path):
    with Trainer(tmp_path, 2) as trainer:
        digests = trainer.put(7)
        answer = trainer.processes[0].call("seal", digests)
        other = {**digests, 1: digests[0]}
        for process in trainer.processes:
            assert process.call("seal", digests) == answer
            code, message = process.call("seal", other)
            assert (code, "of ranks 1" in message) == ("already-sealed", True)
            assert process.call("put", 0, 9)[0] == "already-sealed"
        publish_snapshot(tmp_path, 3, {rank: state(3) for rank in range(2)}, durable=False)
        assert trainer.processes[1].call("seal", digests) == answer
        assert read_version(tmp_path) == "3", "which is newer, and was announced since"
    with Trainer(tmp_path, 2) as late:
        assert late.processes[0].call("seal", digests) == answer
    assert found(tmp_path, 2, 2) == ("2", {7})


def test_two_jobs_on_one_label_are_two_staged_directories(tmp_path):
    with Trainer(tmp_path, 2) as one, Trainer(tmp_path, 2, job="b", replace=True) as other:
        ours, theirs = one.put(7), other.put(8)
        assert len(hidden(tmp_path)) == 2
        assert one.processes[0].call("seal", theirs)[0] == "incomplete-publication"
        assert one.processes[0].call("seal", ours)[0] == "2"
        assert found(tmp_path, 2) == ("2", {7})
        assert other.processes[0].call("seal", theirs)[0] == "2"
        assert found(tmp_path, 2) == ("2", {8})


def test_what_dead_processes_staged_goes_and_what_a_living_one_staged_stays(tmp_path):
    first(tmp_path, 2)
    with Trainer(tmp_path, 2) as trainer, Trainer(tmp_path, 2, job="b") as dead:
        digests = trainer.put(7)
        dead.put(8)
        trainer.processes[1].kill()
        for process in dead.processes:
            process.kill()
        assert len(hidden(tmp_path)) == 2
        with SnapshotPublisher(tmp_path, world_size=2, job="c").version(3):
            assert len(hidden(tmp_path)) == 2, "that of the dead job is gone, and this one's is there"
        publish_snapshot(tmp_path, 3, {rank: state(3) for rank in range(2)}, durable=False)
        assert len(hidden(tmp_path)) == 1
        assert trainer.processes[0].call("seal", digests)[0] == "2", "files outlive who wrote them"
    assert found(tmp_path, 2) == ("2", {7})


def killed(root: Path, ranks: int, call: str, line: int) -> bool:
    """Kill one of `ranks` processes before a line of `call`; look at what is there. Whether it died."""
    job = f"{call}-{line}"
    label = f"{call}-{ranks}-{line}"
    stands = found(root, ranks)
    with Trainer(root, ranks, job=job, version=label) as trainer:
        victim = trainer.processes[0]
        if call == "put":
            died = victim.call("put", 0, 7, kill_at=line) is None
            assert found(root, ranks) == stands
        else:
            digests = trainer.put(7)
            died = victim.call("seal", digests, kill_at=line) is None
            assert found(root, ranks) in (stands, (label, {7}))
            assert trainer.processes[1].call("seal", digests)[0] == label
            assert found(root, ranks) == (label, {7})
        for process in trainer.processes:
            process.kill()
    publish_snapshot(root, f"after-{label}", {rank: state(3) for rank in range(ranks)}, durable=False)
    assert hidden(root) == set()
    return died


@pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.slow, id="each line"), pytest.param(16, id="some lines")]
)
@pytest.mark.timeout(1200)  # some hundred processes, on cores that may be busy
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_process_killed_before_any_line_of_put_or_seal_leaves_whole_versions(tmp_path, ranks, every):
    """A seal that was killed is finished by another process of the job that has the same digests."""
    first(tmp_path, ranks)
    for call in ("put", "seal"):
        line = 0
        while killed(tmp_path, ranks, call, line):
            line += every
        print(f"killed before {line // every} lines of {call}, in {ranks} processes")  # noqa: T201 - its result
        assert line > 60
