"""Streams of any shape through windows of any size, whole or harmed: both sides know, and agree.

Whatever the sizes of tensors, buckets and the window, and whatever a target makes of the tensors: all bytes
arrive and both sides name the same digest, or both end with a typed error that says what was harmed. After
that the same sender and the same target take a good version.
"""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.raising import matches
from wsm.errors import WsmError
from wsm.private_directory import private_directory
from wsm.strategies import BucketSender, IpcAsyncSource, LoadReport, MemoryTarget, TensorSpec, errors, load
from wsm.strategies import peer_errors as stream_errors
from wsm.strategies.buckets import wire
from wsm.strategies.digest import digest_of, shard_digest
from wsm.strategies.tensor import BEGIN_IN_PAGE
from wsm.strategies.trainer.tensors import TrainerReport

# Far longer than any example takes: a stream that stands still fails, however slow the machine is.
SILENCE_S = 20.0

ROLES = ("plain", "left out", "turned round", "tied")
HARMS = ("none", "flip", "cut short", "trainer fails", "rank fails", "rank changes its mind")


@dataclass(frozen=True)
class Case:
    """One version: shapes and roles of its tensors, how they are cut, and what happens at which byte."""

    tensors: tuple[tuple[str, tuple[int, int]], ...]
    bucket_bytes: int
    window_bytes: int
    finite: bool
    kept: bool
    harm: str
    at: int
    bit: int

    @property
    def specs(self) -> list[TensorSpec]:
        """What is sent; tied tensors have the shape of the first plain one."""
        anchor = next((shape for role, shape in self.tensors if role == "plain"), (1, 1))
        shapes = [anchor if role == "tied" else shape for role, shape in self.tensors]
        return [TensorSpec(f"t{number}", "F16", shape) for number, shape in enumerate(shapes)]

    def names(self, role: str) -> list[str]:
        return [f"t{number}" for number, (found, _) in enumerate(self.tensors) if found == role]

    @property
    def tied(self) -> dict[str, str]:
        first, *_ = [*self.names("plain"), *self.names("tied"), ""]
        return {name: first for name in self.names("tied") if name != first}

    def state(self, version: int) -> dict[str, tuple[TensorSpec, bytes]]:
        made = {}
        for spec in self.specs:
            first = 11 * int(self.tied.get(spec.name, spec.name)[1:]) + 7 * version
            # No byte from 0x70 on: nothing is infinite, or not a number.
            made[spec.name] = (spec, bytes((first + 5 * at) % 0x70 for at in range(spec.nbytes)))
        return made

    def target(self) -> MemoryTarget:
        away = {*self.names("left out"), *self.tied}
        held = [spec for spec in self.specs if spec.name not in away]
        more = [TensorSpec("kept", "U8", (5,))] if self.kept else []
        made = MemoryTarget([*held, *more], transposed=self.names("turned round"), tied=self.tied)
        if self.kept:
            made.writable("kept")[:] = b"still"
        return made


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shape = st.tuples(st.integers(0, 24), st.integers(1, 24))
    tensors = draw(st.lists(st.tuples(st.sampled_from(ROLES), shape), max_size=7))
    never_empty = st.tuples(st.integers(1, 24), st.integers(1, 24))
    tensors.insert(draw(st.integers(0, len(tensors))), ("plain", draw(never_empty)))
    nbytes = sum(2 * rows * columns for _, (rows, columns) in tensors)
    return Case(
        tensors=tuple(tensors),
        bucket_bytes=64 * draw(st.integers(1, 24)),
        window_bytes=64 * draw(st.integers(1, 12)),
        finite=draw(st.booleans()),
        kept=draw(st.booleans()),
        harm=draw(st.sampled_from(HARMS)),
        at=draw(st.integers(1, nbytes)),
        bit=draw(st.integers(0, 7)),
    )


class Run:
    """One case with a sender of its own, and a target that stays."""

    def __init__(self, case: Case, sender: BucketSender, pool: ThreadPoolExecutor) -> None:
        self.case = case
        self.sender = sender
        self.pool = pool
        self.target = case.target()
        self.damaged = ""

    def version(self, version: int, *, harmed: bool) -> tuple[Future[LoadReport], Future[TrainerReport]]:
        case = self.case
        source = IpcAsyncSource(self.sender.address, world_size=1, silence_s=SILENCE_S)
        received = self.pool.submit(
            load,
            source,
            self.target,
            name="ipc_async",
            version=version,
            allowed_unknown=case.names("left out"),
            partial=case.kept,
            progress=self.on_rank if harmed else lambda done, total: None,
            cancelled=lambda: harmed and self.changed_its_mind,
        )
        sent = self.pool.submit(
            self.sender.send,
            version,
            {0: case.state(version)},
            silence_s=SILENCE_S,
            finite=case.finite,
            progress=self.on_trainer if harmed else None,
        )
        for each in (received, sent):
            each.exception()
        return received, sent

    changed_its_mind = False

    def on_rank(self, done: int, total: int) -> None:
        if self.case.harm == "rank fails" and done >= self.case.at:
            raise OSError("no memory today")
        if self.case.harm == "rank changes its mind" and done >= self.case.at:
            self.changed_its_mind = True

    def on_trainer(self, done: int, total: int) -> None:
        case = self.case
        if done < case.at or self.damaged:
            return
        segment = self.sender._segments[0]
        if case.harm == "trainer fails":
            raise OSError("no tensors today")
        if case.harm == "flip":
            spec, place = self.last_written(done)
            segment.memory[place] ^= 1 << case.bit
            self.damaged = spec.name
        if case.harm == "cut short":
            os.truncate(f"{private_directory()}/{segment.name}", 0)
            self.damaged = "the memory"
            raise OSError("it is gone")

    def last_written(self, done: int) -> tuple[TensorSpec, int]:
        """Which tensor the last of so many bytes is of, and where in the memory it lies."""
        specs = self.case.specs
        bucket_bytes = min(self.case.bucket_bytes, self.case.window_bytes)
        for number, bucket in enumerate(wire.cut(specs, bucket_bytes)):
            slot = BEGIN_IN_PAGE + number % (self.case.window_bytes // bucket_bytes) * bucket_bytes
            for piece in bucket:
                if done <= piece.end - piece.begin:
                    return specs[piece.tensor], slot + piece.offset + done - 1
                done -= piece.end - piece.begin
        raise AssertionError("more was written than there is")

    def holds(self, version: int) -> bool:
        state = self.case.state(version)
        return all(
            bytes(self.target.readable(name)) == (b"still" if name == "kept" else state[name][1])
            for name in self.target.specs()
        )

    def digest(self, version: int) -> str:
        return shard_digest((spec, digest_of(data)) for spec, data in self.case.state(version).values())


def check(case: Case) -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        ThreadPoolExecutor(2) as pool,
        BucketSender(
            f"ipc://{directory}/buckets", bucket_bytes=case.bucket_bytes, window_bytes=case.window_bytes
        ) as sender,
    ):
        run = Run(case, sender, pool)
        received, sent = run.version(1, harmed=True)
        errors_of = received.exception(), sent.exception()
        if errors_of == (None, None):
            assert not run.damaged or run.damaged in case.names("left out")
            assert run.holds(1)
            assert sent.result().digests == {0: run.digest(1)}
        else:
            check_errors(run, *errors_of)
        received, sent = run.version(2, harmed=False)
        assert received.result().manifest_digest == sent.result().manifest_digest
        assert sent.result().digests == {0: run.digest(2)}
        assert run.holds(2)


def check_errors(run: Run, rank: BaseException | None, trainer: BaseException | None) -> None:
    harm = run.case.harm
    if harm == "flip":
        assert isinstance(rank, errors.DigestMismatchError)
        assert rank.tensor == run.damaged
        assert isinstance(trainer, stream_errors.PeerFailedError)
        assert trainer.error == "digest-mismatch"
    elif harm == "rank fails":
        assert isinstance(rank, OSError)
        assert isinstance(trainer, stream_errors.PeerFailedError)
        assert (trainer.peer, trainer.error) == ("rank 0", "OSError")
    elif harm == "rank changes its mind":
        assert isinstance(rank, errors.LoadCancelledError)
        assert isinstance(trainer, stream_errors.PeerFailedError)
        assert trainer.error == "load-cancelled"
    elif harm == "trainer fails":
        assert isinstance(trainer, OSError)
        assert isinstance(rank, stream_errors.PeerFailedError)
    else:
        assert harm == "cut short"
        assert isinstance(trainer, OSError)
        assert isinstance(rank, WsmError)
        assert matches(rank, (stream_errors.PeerFailedError, errors.bad_file_size))


# Two tensors in one bucket, which is not verified before all of it is there.
_TOGETHER = {"bucket_bytes": 1024, "window_bytes": 64, "kept": False, "harm": "flip", "bit": 6}


@pytest.mark.parametrize(
    "case",
    [
        Case((("plain", (1, 17)), ("plain", (20, 20))), finite=True, at=34, **_TOGETHER),
        Case((("plain", (8, 8)), ("tied", (8, 8)), ("plain", (9, 9))), finite=False, at=256, **_TOGETHER),
    ],
    ids=["not a number", "two names"],
)
def test_damage_that_looks_like_a_trainer_s_fault_is_called_damage(case):
    check(case)


@settings(max_examples=40, suppress_health_check=list(HealthCheck), print_blob=True)
@given(cases())
def test_both_sides_have_all_bytes_or_a_typed_error_and_a_good_version_afterwards(case):
    check(case)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=1500, suppress_health_check=list(HealthCheck), print_blob=True)
@given(cases())
def test_many_more_streams_do(case):
    check(case)
