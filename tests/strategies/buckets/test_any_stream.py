"""Streams of any shape through windows of any size, whole or harmed: both sides know, and agree.

Whatever the sizes of tensors, buckets and the window: all bytes arrive and both sides name one digest, or
both end with a typed error that says what was harmed. After that the same sender and the same target take a
good version. What a target makes of tensors, the contract says.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.raising import matches
from wsm.shared_directory import private_directory
from wsm.strategies import BucketSender, IpcAsyncSource, MemoryTarget, TensorSpec, errors, load
from wsm.strategies.buckets import wire
from wsm.strategies.digest import digest_of, shard_digest
from wsm.strategies.peer_errors import PeerFailedError
from wsm.strategies.tensor import BEGIN_IN_PAGE

# Far longer than any example takes: a stream that stands still fails, however slow the machine is.
SILENCE_S = 20.0

#: What happens at a byte; how that ends for the trainer, and for the rank.
HARMS = {
    "none": (type(None), type(None)),
    "flip": (PeerFailedError, errors.DigestMismatchError),
    "cut short": (OSError, (PeerFailedError, errors.bad_file_size)),
    "trainer fails": (OSError, PeerFailedError),
    "rank fails": (PeerFailedError, OSError),
    "rank changes its mind": (PeerFailedError, errors.LoadCancelledError),
}


@dataclass(frozen=True)
class Case:
    """One version: how many elements its tensors have, how they are cut, and what happens at which byte."""

    sizes: tuple[int, ...]
    bucket_bytes: int
    window_bytes: int
    harm: str
    at: int
    bit: int = 6
    finite: bool = True
    tied: Mapping[str, str] = field(default_factory=dict)

    @property
    def specs(self) -> list[TensorSpec]:
        return [TensorSpec(f"t{number}", "F16", (size,)) for number, size in enumerate(self.sizes)]

    def state(self, version: int) -> dict[str, tuple[TensorSpec, bytes]]:
        made = {}
        for spec in self.specs:
            first = 11 * int(self.tied.get(spec.name, spec.name)[1:]) + 7 * version
            # No byte from 0x70 on: nothing is infinite, or not a number.
            made[spec.name] = (spec, bytes((first + 5 * at) % 0x70 for at in range(spec.nbytes)))
        return made

    def digest(self, version: int) -> str:
        state = self.state(version)
        held = [state[spec.name] for spec in self.specs if spec.name not in self.tied]
        return shard_digest((spec, digest_of(data)) for spec, data in held)

    def last_written(self, done: int) -> tuple[str, int]:
        """Which tensor the last of so many bytes is of, and where in the memory it lies."""
        bucket_bytes = min(self.bucket_bytes, self.window_bytes)
        for number, bucket in enumerate(wire.cut(self.specs, bucket_bytes)):
            slot = BEGIN_IN_PAGE + number % (self.window_bytes // bucket_bytes) * bucket_bytes
            for piece in bucket:
                if done <= piece.end - piece.begin:
                    return self.specs[piece.tensor].name, slot + piece.offset + done - 1
                done -= piece.end - piece.begin
        raise AssertionError("more was written than there is")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = draw(st.lists(st.integers(0, 600), max_size=7))
    sizes.insert(draw(st.integers(0, len(sizes))), draw(st.integers(1, 600)))
    return Case(
        sizes=tuple(sizes),
        bucket_bytes=64 * draw(st.integers(1, 24)),
        window_bytes=64 * draw(st.integers(1, 12)),
        harm=draw(st.sampled_from(sorted(HARMS))),
        at=draw(st.integers(1, 2 * sum(sizes))),
        bit=draw(st.integers(0, 7)),
        finite=draw(st.booleans()),
    )


class Run:
    """One case with a sender of its own, and a target that stays."""

    def __init__(self, case: Case, sender: BucketSender, pool: ThreadPoolExecutor) -> None:
        self.case, self.sender, self.pool = case, sender, pool
        kept = [spec for spec in case.specs if spec.name not in case.tied]
        self.target = MemoryTarget(kept, tied=case.tied)
        self.damaged = ""
        self.changed_its_mind = False

    def version(self, version: int, *, harmed: bool) -> list[BaseException | None]:
        """Send and load one; how that ended for the trainer, and for the rank."""
        source = IpcAsyncSource(self.sender.address, world_size=1, silence_s=SILENCE_S)
        on_rank = {"progress": self.on_rank, "cancelled": lambda: self.changed_its_mind} if harmed else {}
        received = self.pool.submit(load, source, self.target, name="ipc_async", version=version, **on_rank)
        sent = self.pool.submit(
            self.sender.send,
            version,
            {0: self.case.state(version)},
            silence_s=SILENCE_S,
            finite=self.case.finite,
            progress=self.on_trainer if harmed else None,
        )
        ends = [sent.exception(), received.exception()]
        if ends == [None, None]:
            assert received.result().manifest_digest == sent.result().manifest_digest
            assert received.result().digest == self.case.digest(version)
            held = self.case.state(version)
            assert all(bytes(self.target.readable(name)) == held[name][1] for name in self.target.specs())
        return ends

    def on_rank(self, done: int, total: int) -> None:
        if self.case.harm == "rank fails" and done >= self.case.at:
            raise OSError("no memory today")
        self.changed_its_mind = self.case.harm == "rank changes its mind" and done >= self.case.at

    def on_trainer(self, done: int, total: int) -> None:
        harm = self.case.harm
        if done < self.case.at or self.damaged:
            return
        segment = self.sender._segments[0]
        if harm == "trainer fails":
            raise OSError("no tensors today")
        if harm == "flip":
            self.damaged, place = self.case.last_written(done)
            segment.memory[place] ^= 1 << self.case.bit
        if harm == "cut short":
            os.truncate(f"{private_directory()}/{segment.name}", 0)
            self.damaged = "the memory"
            raise OSError("it is gone")


def check(case: Case) -> None:
    sizes = {"bucket_bytes": case.bucket_bytes, "window_bytes": case.window_bytes}
    with (
        tempfile.TemporaryDirectory() as directory,
        ThreadPoolExecutor(2) as pool,
        BucketSender(f"ipc://{directory}/buckets", **sizes) as sender,
    ):
        run = Run(case, sender, pool)
        trainer, rank = ends = run.version(1, harmed=True)
        if ends == [None, None]:
            assert not run.damaged
        else:
            told, had = HARMS[case.harm]
            assert isinstance(trainer, told)
            assert matches(rank, had)
            if case.harm == "flip":
                assert (rank.tensor, trainer.error) == (run.damaged, "digest-mismatch")
            if case.harm.startswith("rank"):
                assert (trainer.peer, trainer.error in ("OSError", "load-cancelled")) == ("rank 0", True)
        assert run.version(2, harmed=False) == [None, None]


# Two tensors in one bucket, which is not verified before all of it is there.
_TOGETHER = {"bucket_bytes": 1024, "window_bytes": 64, "harm": "flip"}


@pytest.mark.parametrize(
    "case",
    [
        Case((17, 400), at=34, **_TOGETHER),
        Case((64, 64, 81), at=256, finite=False, tied={"t1": "t0"}, **_TOGETHER),
    ],
    ids=["not a number", "two names"],
)
def test_damage_that_looks_like_a_trainer_s_fault_is_called_damage(case):
    check(case)


@pytest.mark.slow
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
