"""A measurement that cannot be taken fails nothing: its figure is None, as the receipt says; and devices."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wsm.actions._caches import ReleaseAuxiliaryCache, ReleaseKVCache
from wsm.actions._verify import DeclareCleared, VerifyCleared
from wsm.actions._weights import PlanStagingMemory, ReleaseWeights
from wsm.actions.backends.memory import DeviceMemory, HostMemory, available_bytes
from wsm.actions.backends.paddle_groups import DeviceGroups
from wsm.actions.errors import PostconditionError
from wsm.actions.measuring import MemoryDrop, MemoryProof
from wsm.actions.surfaces import GroupKind
from wsm.command import RankReport
from wsm.errors import BadInputError, RefusedError
from wsm.receipt import Outcome, Receipt

EVERYTHING = MemoryDrop(share=1.0, noise_bytes=0)


class Measured:
    """Memory whose measurements fail when the test wants them to, and say what the test wants otherwise."""

    shared_by_ranks = True

    def __init__(self, *answers: int | BaseException) -> None:
        self._answers = list(answers)

    def resident_bytes(self) -> int:
        return self._answer()

    def available_bytes(self) -> int | None:
        return self._answer()

    def empty_cache(self) -> None:
        """Nothing is cached."""

    def _answer(self) -> int:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def no_descriptor() -> OSError:
    return OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/proc/self/status")


def clear(context: Any, proof: MemoryProof) -> None:
    for action in (ReleaseWeights(), ReleaseAuxiliaryCache(), ReleaseKVCache(), VerifyCleared(proof)):
        action.run(context)
    DeclareCleared().run(context)


@pytest.mark.parametrize(
    ("answers", "after"),
    [
        pytest.param((no_descriptor(),), None, id="never"),
        pytest.param((no_descriptor(), 7), 7, id="not before the first release"),
        pytest.param((10_000_000, no_descriptor()), None, id="not afterwards"),
        pytest.param((RuntimeError("the driver does not answer"),), None, id="a driver's own error"),
        pytest.param((MemoryError(),), None, id="no memory for it"),
    ],
)
def test_memory_that_cannot_be_measured_is_given_back_and_called_not_measured(
    runner, make_context, answers, after
):
    runner.serve()
    runner.memory = Measured(*answers)
    context = make_context()
    clear(context, MemoryProof(EVERYTHING))
    assert not list(runner.weights.held())
    assert context.facts["resident_bytes_after"] == after
    assert context.facts["dropped_bytes"] is None
    assert context.facts["drop_measurable"] is False
    assert type(answers[-1 if after is None else 0]).__name__ in context.facts["not_measured"]
    assert "free memory not measured on rank 0" in receipt(context.facts).sentence()


def test_what_an_earlier_clear_has_refuted_is_believed_only_after_a_measurement(runner, make_context):
    runner.serve()
    proof = MemoryProof(EVERYTHING)
    runner.memory = Measured(10_000_000)  # nothing fell
    with pytest.raises(PostconditionError, match="view or an alias"):
        clear(make_context(), proof)
    runner.memory = Measured(no_descriptor())
    with pytest.raises(PostconditionError, match=r"no measurement .*RLIMIT_NOFILE.*; clear again"):
        clear(make_context(), proof)
    runner.memory = Measured(7)
    clear(make_context(), proof)


def test_an_unreadable_figure_is_not_zero_and_admits_a_second_version(runner, make_context):
    runner.memory = Measured(no_descriptor())
    context = make_context()
    PlanStagingMemory().run(context)
    assert context.facts["staging_available_bytes"] is None
    assert "RLIMIT_NOFILE" in context.facts["not_measured"]


@pytest.fixture
def out_of_descriptors(monkeypatch) -> Callable[[str], None]:
    read_text = Path.read_text

    def refuse(under: str) -> None:
        def refused(path: Path, *arguments: Any, **options: Any) -> str:
            if under in str(path):
                raise no_descriptor()
            return read_text(path, *arguments, **options)

        monkeypatch.setattr(Path, "read_text", refused)

    return refuse


@pytest.mark.parametrize("file", ["proc/meminfo", "proc/self/cgroup", "memory.max"])
def test_available_memory_is_unknown_while_a_file_of_the_kernel_cannot_be_opened(
    tmp_path, out_of_descriptors, file
):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 100 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    assert available_bytes(tmp_path) == 100 * 1024
    out_of_descriptors(file)
    assert available_bytes(tmp_path) is None


def test_the_hosts_memory_says_that_it_is_unknown(out_of_descriptors):
    out_of_descriptors("/proc/")
    assert HostMemory().available_bytes() is None
    with pytest.raises(OSError, match="Too many"):
        HostMemory().resident_bytes()


def receipt(facts: dict[str, Any]) -> Receipt:
    return Receipt(
        request_id="r",
        outcome=Outcome.CLEARED,
        epoch=1,
        sequence=2,
        version=None,
        previous_version=1,
        manifest_digest=None,
        loaded=False,
        seconds=0.1,
        pause_s=0.0,
        ranks=(RankReport(rank=0, facts=facts),),
    )


# -- communicators and memory of a device, over stand-ins ------------------------------------------------


class FakeProcessGroup:
    def shutdown(self):
        """Exist, as NCCL's does."""


class FakeGroup:
    def __init__(self, process_group):
        self.process_group = process_group


class FakeDistributed:
    def __init__(self):
        self.calls = []

    def barrier(self, group):
        self.calls.append("barrier")

    def shutdown_process_group(self, group):
        self.calls.append("shutdown")

    def restart_process_group(self, group):
        self.calls.append("restart")


def test_device_groups_go_down_and_come_up_once_each():
    distributed = FakeDistributed()
    groups = DeviceGroups({GroupKind.TP: FakeGroup(FakeProcessGroup())}, distributed)
    groups.barrier(GroupKind.TP)
    groups.shut_down(GroupKind.TP)
    groups.shut_down(GroupKind.TP)
    assert groups.group(GroupKind.TP) is None
    with pytest.raises(RefusedError):
        groups.barrier(GroupKind.TP)
    groups.restart(GroupKind.TP, incarnation="a")
    groups.restart(GroupKind.TP, incarnation="a")
    assert distributed.calls == ["barrier", "shutdown", "restart"]
    assert groups.alive(GroupKind.TP)


def test_a_group_without_shutdown_is_refused_before_a_clear_begins():
    with pytest.raises(BadInputError, match="Gloo"):
        DeviceGroups({GroupKind.TP: FakeGroup(object())}, FakeDistributed())


def test_a_paddle_without_the_calls_is_refused():
    with pytest.raises(BadInputError, match="shutdown_process_group"):
        DeviceGroups({}, type("FakeOldDistributed", (), {"barrier": print}))


def test_device_memory_is_what_the_allocator_has_taken():
    class FakeCuda:
        reserved, allocated = 700, 600

        def memory_reserved(self):
            return self.reserved

        def memory_allocated(self):
            return self.allocated

        def empty_cache(self):
            self.reserved = self.allocated

        def get_device_properties(self):
            return SimpleNamespace(total_memory=1000)

    memory = DeviceMemory(FakeCuda())
    assert memory.resident_bytes() == 700
    assert (memory.available_bytes(), memory.shared_by_ranks) == (400, False)
    memory.empty_cache()
    assert memory.resident_bytes() == 600
    with pytest.raises(BadInputError):
        DeviceMemory(object())
