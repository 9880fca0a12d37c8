"""An engine in plain memory that has every surface, and refuses what would hang or crash a real one.

Its weights are bytes that are really dropped and filled. What a GPU engine answers by never returning,
or by a crash in a library, is an error here. Everything it is asked to do is written down in order, and
a test may look at the group at each of these moments.
"""

from __future__ import annotations

from collections.abc import Callable

from lone_rank import SPECS

from wsm.actions.surfaces import GroupKind
from wsm.testing import InMemoryKVCache, InMemoryRequests, InMemoryRunner

KINDS = (GroupKind.WORLD, GroupKind.TP, GroupKind.EP)


class WouldHangError(Exception):
    """What a real engine would answer by never returning."""


class StrictGraphs:
    """Graphs that point at weights and cache, as captured ones do."""

    def __init__(self, engine: StrictEngine, name: str) -> None:
        self._engine, self._name = engine, name
        self._captured = False

    def drop(self) -> None:
        self._engine.called(f"{self._name}.drop")
        if self._captured and not list(self._engine.weights.held()):
            raise WouldHangError(f"{self._name} are dropped after the weights that they point at")
        self._captured = False

    def capture(self) -> None:
        self._engine.called(f"{self._name}.capture")
        if not list(self._engine.weights.held()) or not self._engine.kv_cache.allocated_bytes():
            raise WouldHangError(f"{self._name} are captured before weights and cache are there")
        self._captured = True

    def captured(self) -> bool:
        return self._captured


class StrictGroups:
    """Communicators without any forgiveness."""

    def __init__(self, engine: StrictEngine) -> None:
        self._engine = engine
        self._alive = dict.fromkeys(KINDS, False)

    def kinds(self) -> tuple[GroupKind, ...]:
        return KINDS

    def alive(self, kind: GroupKind) -> bool:
        return self._alive[kind]

    def barrier(self, kind: GroupKind) -> None:
        if not self._alive[kind]:
            raise WouldHangError(f"a barrier on the {kind.value} group, which is down")

    def shut_down(self, kind: GroupKind) -> None:
        self._engine.called(f"{kind.value}.shut_down")
        if not self._alive[kind]:
            raise WouldHangError(f"the {kind.value} group is shut down twice")
        if kind is GroupKind.EP and self._engine.deepep.allocated():
            raise WouldHangError("the EP group goes before the buffer that lives on it")
        self._alive[kind] = False

    def restart(self, kind: GroupKind, *, incarnation: str) -> None:
        self._engine.called(f"{kind.value}.restart")
        if self._alive[kind]:
            raise WouldHangError(f"the {kind.value} group is restarted while it is up")
        self._alive[kind] = True


class StrictBuffer:
    """The exchange buffer, which is created and destroyed together with all members of the EP group."""

    def __init__(self, engine: StrictEngine) -> None:
        self._engine = engine
        self._allocated = False

    def clear_buffer(self) -> None:
        self._engine.called("deepep.clear")
        self._engine.groups.barrier(GroupKind.EP)
        self._allocated = False

    def recreate_buffer(self) -> None:
        self._engine.called("deepep.recreate")
        self._engine.groups.barrier(GroupKind.EP)
        self._allocated = True

    def allocated(self) -> bool:
        return self._allocated


class StrictKVCache(InMemoryKVCache):
    """A cache that says when it is asked."""

    def __init__(self, engine: StrictEngine, name: str) -> None:
        super().__init__()
        self._engine, self._name = engine, name

    def release(self) -> int:
        self._engine.called(f"{self._name}.release")
        return super().release()

    def rebuild(self) -> int:
        self._engine.called(f"{self._name}.rebuild")
        return super().rebuild()

    def forget(self) -> None:
        self._engine.called(f"{self._name}.forget")
        super().forget()


class StrictRequests(InMemoryRequests):
    """A scheduler with the cached inputs of an overlapped schedule."""

    def __init__(self, engine: StrictEngine) -> None:
        super().__init__()
        self._engine = engine
        self.cached_inputs = True

    def resume_admitting(self) -> None:
        self._engine.called("requests.resume")
        super().resume_admitting()

    def reset_inputs(self) -> None:
        self._engine.called("requests.reset_inputs")
        self.cached_inputs = False


class Draft:
    """An auxiliary model (MTP) with a cache and graphs of its own."""

    name = "mtp"

    def __init__(self, engine: StrictEngine) -> None:
        self._engine = engine
        self.kv_cache = StrictKVCache(engine, "draft_cache")
        self.graphs = StrictGraphs(engine, "draft_graphs")

    def reset_inputs(self) -> None:
        self._engine.called("draft.reset_inputs")


class RoutingRecords:
    """Recorded expert choices per request."""

    def __init__(self, engine: StrictEngine) -> None:
        self._engine = engine
        self.requests: dict[str, list[int]] = {}

    def clear_all_requests(self) -> None:
        self._engine.called("routing.clear")
        self.requests.clear()

    def resume(self) -> None:
        self._engine.called("routing.resume")


class StrictEngine(InMemoryRunner):
    """Every surface that an engine can have."""

    def __init__(self) -> None:
        super().__init__(SPECS)
        self.calls: list[str] = []
        self.watch: Callable[[str], None] = lambda _call: None
        self.requests = StrictRequests(self)
        self.kv_cache = StrictKVCache(self, "cache")
        self.groups = StrictGroups(self)
        self.deepep = StrictBuffer(self)
        self.graphs = StrictGraphs(self, "graphs")
        self.auxiliaries = (Draft(self),)
        self.routing_replay = RoutingRecords(self)

    def called(self, call: str) -> None:
        self.calls.append(call)
        self.watch(call)
