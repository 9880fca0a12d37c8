"""Each process of a trainer puts its own shard, and one seals: real processes, killed before each line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from trainer_processes import TrainerProcess

from tests.incident import incident
from tests.raising import raising
from wsm.strategies import (
    IpcSource,
    MemoryTarget,
    SharedTensors,
    SnapshotPublisher,
    SnapshotSource,
    TensorSpec,
    errors,
    load,
    publish_snapshot,
    read_version,
)
from wsm.strategies.ipc._abandoned import remove_abandoned

pytestmark = pytest.mark.processes

SPEC = TensorSpec("w", "U8", (64,))


def state(content: int) -> dict[str, tuple[TensorSpec, bytes]]:
    return {"w": (SPEC, bytes([content]) * 64)}


class Files:
    """Shards in files below a directory."""

    #: Every so many lines of these files a process is killed, in what: a seal in the process of rank 0, or in
    #: one that puts no shard. And what a rank is told where nothing is sealed.
    strategy, every = "ipc_snapshot", 16
    calls = ("put", "seal-beside")
    traced = ("snapshot/publish.py", "retention.py")
    nothing = errors.SnapshotNotFoundError

    def publisher(self, root: Path, ranks: int, **options: Any) -> Any:
        return SnapshotPublisher(root, world_size=ranks, durable=False, **options)

    def source(self, root: Path, rank: int, ranks: int) -> object:
        return SnapshotSource(root, rank, device_id=rank, world_size=ranks, shared_directory=None)

    def staged(self, root: Path) -> set[str]:
        """What lies there that no rank can see."""
        names = {path.name for path in (root / "versions").iterdir()}
        return {name for name in names if name.startswith(".")} - {".publisher.lock"}


class Memory:
    """Shards in memory, whose metas lie below a directory."""

    strategy, every = "ipc", 24
    calls = ("put", "seal", "seal-beside")
    traced = ("ipc/shared_tensors.py", "ipc/_abandoned.py")
    nothing = "metas-not-found"

    def publisher(self, root: Path, ranks: int, **options: Any) -> Any:
        return SharedTensors(root, world_size=ranks, **options)

    def source(self, root: Path, rank: int, ranks: int) -> object:
        return IpcSource(root, rank, device_id=rank, world_size=ranks, adopt=False)

    def staged(self, root: Path) -> set[str]:
        return {path.name for path in root.iterdir() if "ipc_staged" in path.name}


Place: TypeAlias = "Files | Memory"


class Trainer:
    """The processes of a trainer, which go from version to version: one per rank, and some that put none."""

    def __init__(
        self, place: Place, root: Path, ranks: int, *, job: str = "a", beside: int = 0, **options: Any
    ) -> None:
        def calls():
            publisher, versions = place.publisher(root, ranks, job=job, **options), {}

            def opened(version):
                if version not in versions:
                    versions[version] = publisher.version(version)
                return versions[version]

            def seal(version, digests):
                report = opened(version).seal({int(rank): digest for rank, digest in digests.items()})
                return [report.version, report.manifest_digest, report.bytes]

            return {
                "ready": bool,
                "put": lambda version, rank, content: opened(version).put(rank, state(content)),
                "fail": lambda version, rank: opened(version).put(rank, {**state(0), "late": object()}),
                "seal": seal,
                "leave": lambda version: versions.pop(version).__exit__(KeyboardInterrupt, None, None),
            }

        self.ranks = range(ranks)
        self.processes = [TrainerProcess(calls, place.traced) for _ in range(ranks + beside)]
        for process in self.processes:
            process.call("ready")

    def put(self, version: int | str, content: int) -> dict[int, str]:
        return {rank: self.processes[rank].call("put", version, rank, content) for rank in self.ranks}

    def seals(self, version: int | str, content: int) -> None:
        self.processes[0].call("seal", version, self.put(version, content))

    def leave(self, version: int | str) -> None:
        for process in self.processes:
            process.call("leave", version)

    def __enter__(self) -> Trainer:  # noqa: PYI034 - typing has Self from Python 3.11 on
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as ends:
            for process in self.processes:
                ends.callback(process.kill)


@pytest.fixture(params=[Files(), Memory()], ids=["files", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield request.param
    for path in tmp_path.glob("ipc_metas_*"):
        path.unlink()
    remove_abandoned()  # nothing of the killed stays


def held(place: Place, root: Path, ranks: int, version: str | None = None) -> list[tuple[str, set[int]]]:
    """Return the version that each rank loads, and the contents that it holds then."""
    found = []
    for rank in range(ranks):
        target = MemoryTarget([SPEC])
        report = load(place.source(root, rank, ranks), target, name=place.strategy, version=version)
        found.append((report.version, set(bytes(target.readable("w")))))
    return found


def found(place: Place, root: Path, ranks: int, version: str | None = None) -> tuple[str, set[int]]:
    """Return the version that all ranks load, and the contents that they hold then."""
    versions, contents = zip(*held(place, root, ranks, version), strict=True)
    [one] = set(versions)
    return one, set().union(*contents)


@pytest.mark.slow_but
@incident("prime-rl#1492")
def test_each_process_puts_its_own_shard_and_nothing_is_seen_before_one_seals_them(place, tmp_path):
    with Trainer(place, tmp_path, 3) as trainer:
        digests = trainer.put(1, 1)
        with raising(place.nothing):
            found(place, tmp_path, 3)
        answer = trainer.processes[0].call("seal", 1, digests)
        assert found(place, tmp_path, 3) == ("1", {1})
        for content in range(2, 6):
            digests = trainer.put(content, content)
            assert found(place, tmp_path, 3) == (str(content - 1), {content - 1})
            answer = trainer.processes[content % 3].call("seal", content, digests)
            assert found(place, tmp_path, 3) == (str(content), {content})
        for process in trainer.processes:
            assert process.call("seal", content, digests)[:2] == answer[:2]
            code, message = process.call("seal", content, {**digests, 1: digests[0]})
            assert (code, "of ranks 1" in message) == ("already-sealed", True)
            assert process.call("put", content, 0, 9)[0] == "already-sealed"
        for version in range(1, 6):
            trainer.leave(version)
        assert place.staged(tmp_path) == set()
        assert found(place, tmp_path, 3) == ("5", {5})


@pytest.mark.slow_but
def test_it_seals_what_was_heard_and_nothing_else(place, tmp_path):
    with Trainer(place, tmp_path, 2) as trainer, Trainer(place, tmp_path, 3) as wider:
        digests = trainer.put(1, 7)
        sealing = trainer.processes[0]
        other = digests[0]
        for heard, named in [
            ({0: other}, "of ranks [0], and it is for 2"),
            ({**digests, 2: other}, "of ranks [0, 1, 2], and it is for 2"),
            ({**digests, 1: other}, f"rank 1 was put as {digests[1]}, and {other} was heard"),
        ]:
            code, message = sealing.call("seal", 1, heard)
            assert (code, named in message) == ("incomplete-publication", True)
        of_three = wider.processes[1].call("put", 1, 1, 7)
        code, message = sealing.call("seal", 1, {**digests, 1: of_three})
        assert "rank 1 was put for 3 ranks" in message
        code, message = sealing.call("put", 1, 2, 7)
        assert (code, "no rank 2" in message) == ("incomplete-publication", True)
        with raising(place.nothing):
            found(place, tmp_path, 2)


def test_of_shards_that_are_put_twice_the_last_whole_one_counts(place, tmp_path):
    with Trainer(place, tmp_path, 2) as trainer:
        before = trainer.put(1, 7)
        again = trainer.processes[1].call("put", 1, 1, 8)
        assert trainer.processes[1].call("fail", 1, 1)[0] == "trainer-tensor"
        code, message = trainer.processes[0].call("seal", 1, before)
        assert (code, again in message) == ("incomplete-publication", True)
        assert trainer.processes[0].call("seal", 1, {**before, 1: again})[0] == "1"
        assert found(place, tmp_path, 2) == ("1", {7, 8})


def test_two_jobs_on_one_label_do_not_meet_and_who_gives_up_takes_back_what_it_put(place, tmp_path):
    with Trainer(place, tmp_path, 2) as one, Trainer(place, tmp_path, 2, job="b") as other:
        ours, theirs = one.put(1, 7), other.put(1, 8)
        assert one.processes[0].call("seal", 1, theirs)[0] == "incomplete-publication"
        assert one.processes[0].call("seal", 1, ours)[0] == "1"
        assert found(place, tmp_path, 2) == ("1", {7})
        other.processes[1].call("leave", 1)
        assert other.processes[0].call("seal", 1, theirs)[0] != "1"
        other.processes[0].call("leave", 1)
        one.leave(1)
        assert place.staged(tmp_path) == set()


def killed(place: Place, root: Path, ranks: int, call: str, line: int) -> bool:
    """Kill the process of rank 0, or one that puts none, before a line of `call`. Whether it died.

    A seal that was killed is finished by another process; memory is gone with who shared it.
    """
    before, label = f"before-{call}-{ranks}-{line}", f"{call}-{ranks}-{line}"
    of_rank_0 = call != "seal-beside"
    with Trainer(place, root, ranks, job=label, beside=not of_rank_0) as trainer:
        trainer.seals(before, 1)
        victim = trainer.processes[0 if of_rank_0 else -1]
        if call == "put":
            died = victim.call("put", label, 0, 7, kill_at=line) is None
            assert found(place, root, ranks) == (before, {1})
        else:
            digests = trainer.put(label, 7)
            died = victim.call("seal", label, digests, kill_at=line) is None
            # Memory is shared rank by rank: of ranks that were told different versions none commits.
            each = held(place, root, ranks)
            assert all(one in ((before, {1}), (label, {7})) for one in each)
            assert isinstance(place, Memory) or len({version for version, _ in each}) == 1
            if not (isinstance(place, Memory) and of_rank_0):
                assert trainer.processes[1].call("seal", label, digests)[0] == label
                assert found(place, root, ranks) == (label, {7})
            elif died:
                code, message = trainer.processes[1].call("seal", label, digests)
                assert (code, "rank 0" in message) == ("incomplete-publication", True)
        assert died or victim.lines <= line
    with Trainer(place, root, ranks, job=f"after-{label}") as successor:
        successor.seals(f"after-{label}", 3)
        assert found(place, root, ranks) == (f"after-{label}", {3})
        successor.leave(f"after-{label}")
        assert place.staged(root) == set()
    return died


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "every"),
    [
        pytest.param(2, None, id="2"),
        *(pytest.param(ranks, 1, id=f"{ranks}, each line", marks=pytest.mark.slow) for ranks in (2, 3)),
    ],
)
@pytest.mark.timeout(1200)  # some hundred processes, on cores that may be busy
def test_a_process_killed_before_any_line_of_put_or_seal_leaves_whole_versions(place, tmp_path, ranks, every):
    every = every or place.every
    for call in place.calls:
        line = 0
        while killed(place, tmp_path, ranks, call, line):
            line += every
        print(f"killed before {line // every} lines of {call}, in {ranks} processes")  # noqa: T201 - its result
        assert line > 60


# -- what only one place can have ---------------------------------------------------------------------------


def test_a_process_in_a_relative_directory_publishes_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Trainer(Files(), Path("policy"), 2) as trainer:
        trainer.seals(2, 7)
    assert found(Files(), tmp_path / "policy", 2) == ("2", {7})


def test_files_that_are_sealed_stay_so_whatever_is_announced_since_and_whoever_asks(tmp_path):
    with Trainer(Files(), tmp_path, 2) as trainer:
        digests = trainer.put(2, 7)
        answer = trainer.processes[0].call("seal", 2, digests)
        publish_snapshot(tmp_path, 3, {rank: state(3) for rank in range(2)}, durable=False)
        assert trainer.processes[1].call("seal", 2, digests) == answer
        assert read_version(tmp_path) == "3", "which is newer, and was announced since"
    with Trainer(Files(), tmp_path, 2) as late:
        assert late.processes[0].call("seal", 2, digests) == answer
    assert found(Files(), tmp_path, 2, "2") == ("2", {7})


def test_another_job_may_replace_files_under_their_label(tmp_path):
    with (
        Trainer(Files(), tmp_path, 2) as one,
        Trainer(Files(), tmp_path, 2, job="b", replace=True) as other,
    ):
        theirs = other.put(2, 8)
        one.seals(2, 7)
        assert other.processes[0].call("seal", 2, theirs)[0] == "2"
        assert found(Files(), tmp_path, 2) == ("2", {8})


def test_files_that_dead_processes_staged_go_and_those_of_a_living_one_stay(tmp_path):
    files = Files()
    publish_snapshot(tmp_path, 1, {rank: state(1) for rank in range(2)}, durable=False)
    with Trainer(files, tmp_path, 2) as trainer, Trainer(files, tmp_path, 2, job="b") as dead:
        digests = trainer.put(2, 7)
        dead.put(2, 8)
        trainer.processes[1].kill()
        for process in dead.processes:
            process.kill()
        assert len(files.staged(tmp_path)) == 2
        with SnapshotPublisher(tmp_path, world_size=2, job="c").version(3):
            assert len(files.staged(tmp_path)) == 2, "that of the dead job is gone, and this one's is there"
        publish_snapshot(tmp_path, 3, {rank: state(3) for rank in range(2)}, durable=False)
        assert len(files.staged(tmp_path)) == 1
        assert trainer.processes[0].call("seal", 2, digests)[0] == "2", "files outlive who wrote them"
    assert found(files, tmp_path, 2) == ("2", {7})


def test_memory_goes_with_who_shared_it_before_the_seal_and_is_named_by_its_rank_behind_it(tmp_path):
    with Trainer(Memory(), tmp_path, 2) as trainer:
        trainer.seals(1, 1)
        digests = trainer.put(2, 2)
        trainer.processes[1].kill()
        code, message = trainer.processes[0].call("seal", 2, digests)
        assert (code, "for rank 1" in message or "put rank 1 has ended" in message) == (
            "incomplete-publication",
            True,
        )
        source = IpcSource(tmp_path, 1, device_id=1, world_size=2, adopt=False, orphans="refuse")
        with raising("owner-died", match="for rank 1"):
            load(source, MemoryTarget([SPEC]), name="ipc")
        assert found(Memory(), tmp_path, 2) == ("1", {1}), "copied, and each digest proved"
    for path in tmp_path.glob("ipc_metas_*"):
        path.unlink()
    remove_abandoned()
