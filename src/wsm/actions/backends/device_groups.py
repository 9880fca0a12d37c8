"""Communicators that paddle can shut down and restart itself (NCCL), by the calls that FastDeploy makes.

Responsible for asking for those calls before anything begins: builds differ, and a group without
``shutdown`` (Gloo) fails in the middle of a clear (FastDeploy#7951). The groups themselves were
created by the engine and stay the same objects. It must not know when groups go or come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wsm.actions.backends.errors import CallMissingError, GroupDownError
from wsm.actions.surfaces import GroupKind

_CALLS = ("barrier", "shutdown_process_group", "restart_process_group")


class DeviceGroups:
    """One rank's communicators as a :class:`wsm.actions.surfaces.ProcessGroupSurface`.

    Parameters
    ----------
    groups : mapping of GroupKind to paddle.distributed group
        In the order of creation, all up.
    distributed : module, optional
        What stands for ``paddle.distributed``, which is taken if not given.

    Raises
    ------
    CallMissingError
        If this build of paddle, or one of the groups, cannot be shut down.
    """

    def __init__(self, groups: Mapping[GroupKind, Any], distributed: Any = None) -> None:
        self._distributed = _paddle_distributed() if distributed is None else distributed
        for call in _CALLS:
            if not hasattr(self._distributed, call):
                raise CallMissingError(
                    owner="paddle.distributed",
                    call=call,
                    needed_for="shutting groups down and restarting them",
                )
        for kind, group in groups.items():
            if not hasattr(group.process_group, "shutdown"):
                raise CallMissingError(
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
        """Wait for all members. Collective.

        Raises
        ------
        GroupDownError
            If the communicator is down: a barrier on it would hang.
        """
        if kind not in self._up:
            raise GroupDownError(kind=kind.value)
        self._distributed.barrier(self._groups[kind])

    def shut_down(self, kind: GroupKind) -> None:
        """Free what the communicator holds. Collective. Idempotent."""
        if kind in self._up:
            self._distributed.shutdown_process_group(self._groups[kind])
            self._up.discard(kind)

    def restart(self, kind: GroupKind, *, incarnation: str) -> None:  # noqa: ARG002 - NCCL meets by itself
        """Bring the same group back. Collective. Idempotent.

        Parameters
        ----------
        kind : GroupKind
            One of :meth:`kinds`.
        incarnation : str
            Not needed: paddle keeps the rendezvous of a group that it restarts.
        """
        if kind not in self._up:
            self._distributed.restart_process_group(self._groups[kind])
            self._up.add(kind)


def _paddle_distributed() -> Any:
    from paddle import distributed  # noqa: PLC0415 - a second of import time for workers only

    return distributed
