"""Communicators and memory of a device, over stand-ins: a CPU build of paddle can shut down no group."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from wsm.actions.backends.memory import DeviceMemory
from wsm.actions.backends.paddle_groups import DeviceGroups
from wsm.actions.surfaces import GroupKind
from wsm.errors import BadInputError, RefusedError


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
