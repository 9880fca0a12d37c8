"""Paddle's communicators: on Gloo, destroyed and created again, and on devices, shut down and restarted.

The one recipe that works on paddle 3.3: no ``init_parallel_env`` (its world can never be made twice), a fresh
store per creation (a second group on one store may meet the addresses of the first), group ids that are never
used twice. ``destroy`` of paddle's C++ map drops that map's references to all groups together and ends only
those without another one: this module keeps one to each group that stays up, so one kind can be shut down
alone. Collectives by ring id, as in static graphs, would lose their groups: eager execution only.

:class:`DeviceGroups` holds communicators that paddle can shut down and restart itself (NCCL), by FastDeploy's
calls. It asks for those calls before anything begins: a group without ``shutdown`` (Gloo) fails in the middle
of a clear (FastDeploy#7951).
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import types
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wsm.actions.backends import call_missing, required_call
from wsm.actions.backends._gloo_sockets import (
    HOST,
    StoreDeadline,
    cut,
    reserve_port,
    tcp_sockets,
    without_nagle,
)
from wsm.actions.backends.rendezvous import Endpoint, FileRendezvous
from wsm.actions.surfaces import GroupKind
from wsm.errors import BadInputError, GroupError, RefusedError

#: Descriptors that one creation may need beside 2 to 4 per member that stay open for good.
_SPARE_DESCRIPTORS = 64


class PaddleGlooGroups:
    """One rank's communicators as a :class:`wsm.actions.surfaces.ProcessGroupSurface`; all are down at first.

    Parameters
    ----------
    members : mapping of GroupKind to sequence of int
        Global ranks of each communicator that this rank belongs to, in the order of creation. The
        first of them opens the store.
    rendezvous : FileRendezvous
        Where all members, which are on this host, find the stores.
    timeout_s : float
        How long a creation waits for its members.

    Raises
    ------
    BadInputError (``group-membership``)
        If this rank is not among the members of one of its communicators, or a rank is there twice.

    Notes
    -----
    Sets ``PADDLE_TRAINER_ID``, ``PADDLE_TRAINERS_NUM`` and ``GLOO_SOCKET_IFNAME`` where they are unset, which
    paddle reads when a group is created. Every creation leaves one thread and some descriptors per member
    behind in paddle; the soft limit on descriptors is raised when they run out.
    """

    def __init__(
        self,
        rank: int,
        members: Mapping[GroupKind, Sequence[int]],
        rendezvous: FileRendezvous,
        *,
        timeout_s: float = 30.0,
    ) -> None:
        self._rank = rank
        self._members = {kind: tuple(ranks) for kind, ranks in members.items()}
        for kind, ranks in self._members.items():
            if rank not in ranks or len(set(ranks)) < len(ranks):
                raise BadInputError(
                    f"the {kind.value} group of rank {rank} cannot have the members {list(ranks)}; name each "
                    "once, this rank among them",
                    code="group-membership",
                    kind=kind.value,
                    ranks=ranks,
                    rank=rank,
                )
        self._rendezvous = rendezvous
        self._timeout_s = timeout_s
        self._live: dict[GroupKind, tuple[Any, Any]] = {}
        self._sockets: dict[GroupKind, frozenset[int]] = {}
        self._broken = False
        all_ranks = {member for ranks in self._members.values() for member in ranks}
        os.environ.setdefault("PADDLE_TRAINER_ID", str(rank))
        os.environ.setdefault("PADDLE_TRAINERS_NUM", str(max(all_ranks, default=rank) + 1))
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    def kinds(self) -> Sequence[GroupKind]:
        """The kinds that this rank belongs to, in the order in which they are created."""
        return tuple(self._members)

    def alive(self, kind: GroupKind) -> bool:
        """Whether the communicator can be used: it is up, and was not interrupted."""
        return kind in self._live and not self._broken

    def group(self, kind: GroupKind) -> Any:
        """Return the present ``paddle.distributed`` group, None while it is down. A caller keeps none."""
        live = self._live.get(kind)
        return None if live is None else live[0]

    def barrier(self, kind: GroupKind) -> None:
        """Wait for all members. Collective."""
        from paddle import distributed  # noqa: PLC0415 - a second of import time for workers only

        group = self.group(kind)
        if group is None:
            raise _group_down(kind)
        if len(self._members[kind]) > 1:
            distributed.barrier(group=group)

    def shut_down(self, kind: GroupKind) -> None:
        """Destroy the communicator: close its connections, end its thread. Idempotent.

        Local; but a rank inside a collective on it gets an error, so all members call this after their last
        meeting.
        """
        live = self._live.pop(kind, None)
        self._sockets.pop(kind, None)
        if live is None:
            return
        remains = [weakref.ref(live[0]), weakref.ref(live[0].process_group)]
        del live
        _core().ProcessGroupIdMap.destroy()
        for remain in remains:
            if remain() is not None:
                holders = _holders(remain())
                raise GroupError(
                    f"the {kind.value} group stays connected, it is still held by: {', '.join(holders)}; "
                    "ask the surface for the group at every use instead of keeping it",
                    code="group-still-held",
                    kind=kind.value,
                    holders=tuple(holders),
                )

    def abandon(self, kind: GroupKind) -> None:
        """Let go of a communicator whose other members may be dead. Local, never waits. Idempotent.

        A reference that is left, as in a traceback, keeps a broken communicator: the next one shares nothing
        with it.
        """
        self._sockets.pop(kind, None)
        if self._live.pop(kind, None) is not None:
            _core().ProcessGroupIdMap.destroy()

    def interrupt(self) -> bool:
        """Cut the connections of every communicator of this process; safe for threads, never waits.

        A thread that is blocked in a collective, or in a creation, gets an error within milliseconds; so do
        its peers.
        """
        had_any = bool(self._live or self._sockets) and not self._broken
        self._broken = True
        cut({inode for inodes in tuple(self._sockets.values()) for inode in inodes})
        return had_any

    def restart(self, kind: GroupKind, *, incarnation: str) -> None:
        """Create the communicator on a store of its own. Collective, blocks for the slowest member.

        `incarnation` is the same on all ranks and never used before.
        """
        ranks = self._members[kind]
        if self._broken:
            for broken in tuple(self._live):
                self.abandon(broken)  # nothing that was cut is of any use
            self._broken = False
        if kind in self._live:
            raise self._not_created(kind, "it is up already")
        _allow_descriptors(_SPARE_DESCRIPTORS + 4 * len(ranks))
        name = f"{incarnation}.r{ranks[0]}"
        leads = self._rank == ranks[0]
        try:
            endpoint, store = self._open_store(name) if leads else self._join_store(name, kind)
            limits = (self._timeout_s, self._is_broken)
            with StoreDeadline(endpoint.port, *limits) as deadline:
                self._live[kind] = self._create(kind, endpoint, store, deadline)
        finally:
            if leads:
                self._rendezvous.withdraw(name)

    def _not_created(self, kind: GroupKind, reason: str) -> GroupError:
        ranks = self._members[kind]
        return GroupError(
            f"the {kind.value} group of ranks {list(ranks)} was not created: {reason}; "
            "see which of the ranks is missing, then restart the group",
            code="group-creation",
            kind=kind.value,
            ranks=ranks,
            reason=reason,
        )

    def _is_broken(self) -> bool:
        return self._broken

    def _open_store(self, name: str) -> tuple[Endpoint, Any]:
        with reserve_port() as holder:
            port = int(holder.getsockname()[1])
            # World size 1: the constructor would otherwise wait inside, without a deadline, for all members.
            with without_nagle(port):
                store = _core().TCPStore(HOST, port, True, 1, int(self._timeout_s) or 1)
        endpoint = Endpoint(port, self._rendezvous.next_group_id())
        self._rendezvous.announce(name, endpoint)
        return endpoint, store

    def _join_store(self, name: str, kind: GroupKind) -> tuple[Endpoint, Any]:
        leader = self._members[kind][0]
        endpoint = self._rendezvous.find(
            name, leader=leader, timeout_s=self._timeout_s, interrupted=self._is_broken
        )
        try:
            # Paddle retries a refused connection every 3 s without end; ask an ordinary socket first.
            socket.create_connection((HOST, endpoint.port), self._timeout_s).close()
        except OSError as error:
            reason = f"the store of rank {leader} at port {endpoint.port} cannot be reached: {error}"
            raise self._not_created(kind, reason) from error
        with without_nagle(endpoint.port):
            store = _core().TCPStore(HOST, endpoint.port, False, 1, int(self._timeout_s) or 1)
        return endpoint, store

    def _create(
        self, kind: GroupKind, endpoint: Endpoint, store: Any, deadline: StoreDeadline
    ) -> tuple[Any, Any]:
        from paddle.distributed.communication.group import Group  # noqa: PLC0415 - as in barrier()

        ranks = self._members[kind]
        own = ranks.index(self._rank)
        before = tcp_sockets()
        try:
            process_group = _core().ProcessGroupGloo.create(store, own, len(ranks), endpoint.group_id)
        except (RuntimeError, ValueError) as error:
            reason = deadline.cut or str(error).strip().partition("\n")[0]
            raise self._not_created(kind, reason) from error
        self._sockets[kind] = frozenset(tcp_sockets() - before)
        name = f"wsm_{kind.value}_{endpoint.group_id}"
        return Group(own, endpoint.group_id, list(ranks), pg=process_group, name=name), store


def _group_down(kind: GroupKind) -> RefusedError:
    message = f"the {kind.value} group is shut down; the next update restarts it"
    return RefusedError(message, code="group-down", kind=kind.value)


def _core() -> Any:
    from paddle.base import core  # noqa: PLC0415 - as in barrier()

    return core


def _allow_descriptors(spare: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = len(list(Path("/proc/self/fd").iterdir())) + spare
    if soft != resource.RLIM_INFINITY and wanted > soft:
        ceiling = wanted * 2 if hard == resource.RLIM_INFINITY else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted * 2, ceiling), hard))


def _holders(held: Any) -> list[str]:
    found = set()
    for referrer in gc.get_referrers(held):
        if not isinstance(referrer, types.FrameType):
            found.add(f"a {type(referrer).__qualname__}")
        elif referrer.f_globals is not globals():
            found.add(f"a local variable of {referrer.f_code.co_name}()")
    return sorted(found) or ["something outside Python"]


_CALLS = ("barrier", "shutdown_process_group", "restart_process_group")


class DeviceGroups:
    """One rank's communicators as a :class:`wsm.actions.surfaces.ProcessGroupSurface`.

    Parameters
    ----------
    groups : mapping of GroupKind to paddle.distributed group
        In the order of creation, all up. The engine created them, and they stay the same objects.
    distributed : module, optional
        Used in place of ``paddle.distributed``.

    Raises
    ------
    BadInputError (``call-missing``)
        If this build of paddle, or one of the groups, cannot be shut down.
    """

    def __init__(self, groups: Mapping[GroupKind, Any], distributed: Any = None) -> None:
        self._distributed = _paddle_distributed() if distributed is None else distributed
        for call in _CALLS:
            required_call(self._distributed, call, needed_for="shutting groups down and restarting them")
        for kind, group in groups.items():
            if not hasattr(group.process_group, "shutdown"):
                raise call_missing(
                    owner=f"the {kind.value} group ({type(group.process_group).__name__})",
                    call="shutdown",
                    needed_for="shutting it down; PaddleGlooGroups is the backend for Gloo, and it",
                )
        self._groups = dict(groups)
        self._up = set(groups)

    def kinds(self) -> Sequence[GroupKind]:
        """The kinds that this rank belongs to, in the order in which they are created."""
        return tuple(self._groups)

    def alive(self, kind: GroupKind) -> bool:
        """Whether the communicator can be used."""
        return kind in self._up

    def group(self, kind: GroupKind) -> Any:
        """Return the group, None while it is shut down."""
        return self._groups[kind] if kind in self._up else None

    def barrier(self, kind: GroupKind) -> None:
        """Wait for all members. Collective."""
        if kind not in self._up:
            raise _group_down(kind)
        self._distributed.barrier(self._groups[kind])

    def shut_down(self, kind: GroupKind) -> None:
        """Free what the communicator holds. Collective. Idempotent."""
        if kind in self._up:
            self._distributed.shutdown_process_group(self._groups[kind])
            self._up.discard(kind)

    def restart(self, kind: GroupKind, *, incarnation: str) -> None:  # noqa: ARG002 - NCCL meets by itself
        """Bring the same group back, by the rendezvous that paddle keeps. Collective. Idempotent."""
        if kind not in self._up:
            self._distributed.restart_process_group(self._groups[kind])
            self._up.add(kind)


def _paddle_distributed() -> Any:
    from paddle import distributed  # noqa: PLC0415 - a second of import time for workers only

    return distributed
