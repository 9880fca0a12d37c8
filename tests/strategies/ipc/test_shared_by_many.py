"""Each process of a trainer shares its own shard, and one seals: real processes, killed before each line."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from trainer_processes import TrainerProcess

from tests.raising import raising
from wsm.strategies import IpcSource, MemoryTarget, SharedTensors, TensorSpec, load
from wsm.strategies.ipc._abandoned import remove_abandoned

pytestmark = pytest.mark.processes

SPEC = TensorSpec("w", "U8", (64,))
TRACED = ("ipc/shared_tensors.py", "ipc/_abandoned.py")


def state(content: int) -> dict[str, tuple[TensorSpec, bytes]]:
    return {"w": (SPEC, bytes([content]) * 64)}


class Trainer:
    """The processes of one trainer, one per rank, which go from version to version."""

    def __init__(self, root: Path, ranks: int, *, job: str = "a") -> None:
        def calls():
            shared = SharedTensors(root, world_size=ranks, job=job)
            versions = {}

            def put(version, rank, content):
                if version not in versions:
                    versions[version] = shared.version(version)
                return versions[version].put(rank, state(content))

            def seal(version, digests):
                if version not in versions:
                    versions[version] = shared.version(version)
                report = versions[version].seal({int(rank): digest for rank, digest in digests.items()})
                return [report.version, report.manifest_digest, report.bytes]

            def leave(version):
                versions.pop(version).__exit__(KeyboardInterrupt, None, None)

            return {"ready": bool, "put": put, "seal": seal, "leave": leave, "close": shared.close}

        self.processes = [TrainerProcess(calls, TRACED) for _ in range(ranks)]
        for process in self.processes:
            process.call("ready")

    def put(self, version: int, content: int) -> dict[int, str]:
        return {
            rank: process.call("put", version, rank, content) for rank, process in enumerate(self.processes)
        }

    def __enter__(self) -> Trainer:  # noqa: PYI034 - typing has Self from Python 3.11 on
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as ends:
            for process in self.processes:
                ends.callback(process.kill)


@pytest.fixture(autouse=True)
def nothing_of_the_killed_stays(tmp_path):
    yield
    for path in tmp_path.glob("ipc_metas_*"):
        path.unlink()
    remove_abandoned()


def found(root: Path, ranks: int, **options) -> list[tuple[str, int]]:
    """Return the version that each rank loads, and the content that it holds then."""
    held = []
    for rank in range(ranks):
        target = MemoryTarget([SPEC])
        source = IpcSource(root, rank, device_id=rank, world_size=ranks, adopt=False, **options)
        version = load(source, target, name="ipc").version
        [content] = set(bytes(target.readable("w")))
        held.append((version, content))
    return held


def staged(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if "ipc_staged" in path.name]


def test_each_process_shares_its_own_shard_and_nothing_is_seen_before_one_seals_them(tmp_path):
    with Trainer(tmp_path, 3) as trainer:
        digests = trainer.put(1, 1)
        with raising("metas-not-found"):
            found(tmp_path, 3)
        answer = trainer.processes[0].call("seal", 1, digests)
        assert found(tmp_path, 3) == [("1", 1)] * 3
        for content in range(2, 6):
            digests = trainer.put(content, content)
            assert found(tmp_path, 3) == [(str(content - 1), content - 1)] * 3
            answer = trainer.processes[content % 3].call("seal", content, digests)
            assert found(tmp_path, 3) == [(str(content), content)] * 3
        for process in trainer.processes:
            assert process.call("seal", content, digests)[:2] == answer[:2]
            code, message = process.call("seal", content, {**digests, 1: digests[0]})
            assert (code, "of ranks 1" in message) == ("already-sealed", True)
            assert process.call("put", content, 0, 9)[0] == "already-sealed"
        assert staged(tmp_path) == []


def test_it_seals_what_was_heard_of_living_processes_and_nothing_else(tmp_path):
    with Trainer(tmp_path, 2) as trainer, Trainer(tmp_path, 3) as wider:
        digests = trainer.put(1, 1)
        sealing = trainer.processes[0]
        for heard, named in [
            ({0: digests[0]}, "of ranks [0], and it is for 2"),
            ({**digests, 1: digests[0]}, f"rank 1 was put as {digests[1]}"),
        ]:
            code, message = sealing.call("seal", 1, heard)
            assert (code, named in message) == ("incomplete-publication", True)
        of_three = wider.processes[1].call("put", 1, 1, 1)
        assert "rank 1 was put for 3 ranks" in sealing.call("seal", 1, {**digests, 1: of_three})[1]
        again = trainer.processes[1].call("put", 1, 1, 2)
        assert again in sealing.call("seal", 1, digests)[1]
        digests[1] = again
        trainer.processes[1].kill()
        code, message = sealing.call("seal", 1, digests)
        assert (code, "for rank 1" in message or "put rank 1 has ended" in message) == (
            "incomplete-publication",
            True,
        )
        with raising("metas-not-found"):
            found(tmp_path, 2)


def test_two_jobs_on_one_label_do_not_meet_and_who_gives_up_takes_back_what_it_put(tmp_path):
    with Trainer(tmp_path, 2) as one, Trainer(tmp_path, 2, job="b") as other:
        ours, theirs = one.put(1, 7), other.put(1, 8)
        assert len(staged(tmp_path)) == 4
        assert one.processes[0].call("seal", 1, theirs)[0] == "incomplete-publication"
        one.processes[0].call("seal", 1, ours)
        assert found(tmp_path, 2) == [("1", 7)] * 2
        other.processes[1].call("leave", 1)
        code, message = other.processes[0].call("seal", 1, theirs)
        assert (code, "nothing was put for rank 1" in message) == ("incomplete-publication", True)
        other.processes[0].call("leave", 1)
        assert staged(tmp_path) == []


def test_memory_of_a_process_that_died_is_refused_by_the_name_of_its_rank(tmp_path):
    with Trainer(tmp_path, 2) as trainer:
        trainer.processes[0].call("seal", 1, trainer.put(1, 1))
        trainer.processes[1].kill()
        with raising("owner-died", match="for rank 1"):
            found(tmp_path, 2, orphans="refuse")
        assert found(tmp_path, 2) == [("1", 1)] * 2, "copied, and each digest proved"


def killed(root: Path, ranks: int, call: str, line: int) -> bool:
    """Kill the process of rank 0 before a line of `call`; look at what is there. Whether it died."""
    with Trainer(root, ranks, job=f"{call}-{line}") as trainer:
        trainer.processes[1].call("seal", 1, trainer.put(1, 1))
        victim = trainer.processes[0]
        if call == "put":
            died = victim.call("put", 2, 0, 2, kill_at=line) is None
            assert found(root, ranks) == [("1", 1)] * ranks
        else:
            digests = trainer.put(2, 2)
            died = victim.call("seal", 2, digests, kill_at=line) is None
            assert set(found(root, ranks)) <= {("1", 1), ("2", 2)}
            if died:
                code, message = trainer.processes[1].call("seal", 2, digests)
                assert (code, "rank 0" in message) == ("incomplete-publication", True)
        assert died or victim.lines <= line
    with Trainer(root, ranks, job=f"after {call} {line}".replace(" ", "-")) as successor:
        successor.processes[0].call("seal", 3, successor.put(3, 3))
        assert found(root, ranks) == [("3", 3)] * ranks
        assert staged(root) == []
    return died


@pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.slow, id="each line"), pytest.param(24, id="some lines")]
)
@pytest.mark.timeout(1200)  # some hundred processes, on cores that may be busy
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_process_killed_before_any_line_of_put_or_seal_leaves_no_half_shard(tmp_path, ranks, every):
    for call in ("put", "seal"):
        line = 0
        while killed(tmp_path, ranks, call, line):
            line += every
        print(f"killed before {line // every} lines of {call}, in {ranks} processes")  # noqa: T201 - its result
        assert line > 60
