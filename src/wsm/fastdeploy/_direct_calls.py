"""FastDeploy's own methods of the weight manager, each of which is this rank's part of a group's command.

So it is where FastDeploy's ``check_model_weights_status`` stays, and a runner calls the manager: rank 0
begins a command, each rank polls inside its call, and every call raises or returns alike. Units beside the
weights are single actions with their checks; an action whose work is done already does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wsm.actions import names
from wsm.actions.base import Action, ActionContext, Plans
from wsm.actions.options import PlanOptions
from wsm.actions.plan import derive_plans
from wsm.fastdeploy import _calls as calls
from wsm.fastdeploy import errors
from wsm.fastdeploy._control_calls import ControlCalls
from wsm.fastdeploy._entries import Brought, Entries
from wsm.fastdeploy._part_words import PartWord
from wsm.fastdeploy._runner_surfaces import WorkerSurfaces
from wsm.states import engine_words as contract
from wsm.states.vocabulary import OnFailure, Tag, WeightState
from wsm.strategies.transports.checkpoint_transfer import UNNAMED_OVER_IPC
from wsm.worker import Worker

#: Which plans hold the units that are called one by one.
_PLANS = ("clear", "update")


class SingleActions:
    """Actions of the plans of this worker, run one at a time outside of any plan.

    Parameters
    ----------
    surfaces : WorkerSurfaces
        What they act on.
    options : PlanOptions
        Which of them there are.
    rank, world_size : int
        This rank and the number of ranks in the group.
    """

    def __init__(self, surfaces: WorkerSurfaces, options: PlanOptions, *, rank: int, world_size: int) -> None:
        self._surfaces = surfaces
        self._place = (rank, world_size)
        plans: Plans = derive_plans(options)
        self._actions: dict[str, Action] = {
            action.name: action for plan in plans if plan.name in _PLANS for action in plan.actions
        }
        self._runs = 0

    def run(self, *wanted: str) -> None:
        """Run the actions of these names that this worker has, with their checks. Collective if they are.

        Raises
        ------
        PreconditionError, PostconditionError
            If one must not begin, or did not do what it says.
        """
        self._runs += 1
        rank, world_size = self._place
        context = ActionContext(self._surfaces, rank, world_size, epoch=0, sequence=self._runs)
        for name in wanted:
            action = self._actions.get(name)
            if action is not None:
                action.precondition(context)
                action.run(context)
                action.probe(context)


class DirectCalls:
    """What FastDeploy's runners call of the manager, one method at a time."""

    fd_config: Any
    local_rank: int
    first_load: bool
    _entries: Entries
    _worker: Worker
    _own_word: PartWord
    _leads: bool
    _single: SingleActions
    _calls: ControlCalls
    _mtp_chunk_size: int
    _over_ipc: bool

    def clear_parameters(self, pid: Any = 0, shutdown_process_group: bool = False) -> None:  # noqa: ARG002 - FastDeploy's own signature
        """Give the weights back on every rank, and let the word say CLEARED. Collective, blocks.

        It says so whatever it said before: FastDeploy's own loop waits for just that, also where UPDATING has
        overtaken the clear, and a client asks for it again from CLEARED.

        Whether groups are shut down is the configuration's matter: FastDeploy's runners take it from there.

        Raises
        ------
        GroupError (``call-failed``), WsmError
            What became of the group's command, on every rank.
        """
        self.clear_model_weight()
        self._update_shared_status(pid, contract.CLEARED)

    def update_parameters(self, pid: Any = 0, restart_process_group: bool = False) -> None:  # noqa: ARG002 - FastDeploy's own signature
        """Load the weights on every rank. Collective, blocks; :meth:`finalize_update` changes the word.

        Raises
        ------
        GroupError (``call-failed``), WsmError
            As :meth:`clear_parameters`.
        """
        self._load(lambda: None)

    def finalize_update(self, pid: Any = 0) -> None:
        """See that the weights are there, and let the word say NORMAL. Local: the group has agreed on them.

        A clear that was asked for meanwhile is answered as one that kept the weights: NORMAL, ask again.

        Raises
        ------
        RuntimeError
            If they are not.
        """
        if self._calls.inside:
            return  # a control request's command verifies what it loads, and the words are left alone
        if self._worker.weights is not WeightState.NORMAL:
            raise RuntimeError(
                f"Model Parameter update verification failed: the weights are {self._worker.weights.name}"
            )
        if not self.first_load:
            self._update_shared_status(pid, contract.NORMAL)

    def clear_deepep_buffer(self) -> None:
        """Destroy the exchange buffer, where there is one. Collective."""
        self._units(names.CLEAR_DEEPEP_BUFFER)

    def clear_model_weight(self) -> None:
        """Give the weights back on every rank. Collective, blocks; raises as :meth:`clear_parameters`."""
        if self._calls.inside:
            self._calls.units(names.RELEASE_WEIGHTS)
            return
        self._entries.together(lambda controller: controller.begin_clear(tags={Tag.WEIGHTS}))

    def clear_communication_group(self) -> None:
        """Shut the groups down that the configuration lets go. Collective."""
        self._units(names.SHUT_DOWN_EP_GROUP, names.SHUT_DOWN_TP_GROUP, names.SHUT_DOWN_WORLD_GROUP)

    def restart_communication_group(self) -> None:
        """Bring these groups back. Collective."""
        self._units(names.RESTART_WORLD_GROUP, names.RESTART_TP_GROUP, names.RESTART_EP_GROUP)

    def recreate_deepep_buffer(self) -> None:
        """Create the exchange buffer, where there is one. Collective."""
        self._units(names.RECREATE_DEEPEP_BUFFER)

    def reload_model_weights(self) -> None:
        """Load the weights on every rank. Collective, blocks; raises as :meth:`update_parameters`."""
        self._load(lambda: None)

    _update_ipc = _update_ipc_snapshot = reload_model_weights  # each the way that is configured

    def update_weights_by_rdma(
        self, version: str | None = None, verify_checksum: bool = False, transfer_mode: str | None = None
    ) -> Mapping[str, Any]:
        """Load a version over the weights that are there. Collective, blocks.

        Returns
        -------
        mapping
            ``sync_cost``, ``update_cost`` and ``total_cost`` in seconds, ``version`` and ``rank``.

        Raises
        ------
        BadInputError (``no-version``)
            If `version` is None or empty, and the ``version.yaml`` that rank 0 sees names none; on rank 0.
        GroupError (``call-failed``), WsmError
            As :meth:`clear_parameters`.
        """
        began = time.perf_counter()
        calls.say(calls.Fragment.STREAM_BEGINS, self.local_rank, version=version)
        self._load(
            lambda: self._asked_or_announced(version),
            verify_checksum=verify_checksum,
            transfer_mode=transfer_mode,
        )
        total_s = time.perf_counter() - began
        brought = self._brought
        calls.say(calls.Fragment.STREAM_ENDS, seconds=round(total_s, 2), version=self._worker.version)
        return {
            "sync_cost": brought.sync_s,
            "update_cost": total_s - brought.sync_s if brought.apply_s is None else brought.apply_s,
            "total_cost": total_s,
            "version": self._calls.context.facts["version"] if self._calls.inside else self._worker.version,
            "rank": self.local_rank,
        }

    def update_weights_by_gdr(
        self, version: str | None = None, verify_checksum: bool = False
    ) -> Mapping[str, Any]:
        """As :meth:`update_weights_by_rdma`, by the way that FastDeploy calls ``gdr``, or ``ipc``.

        It is ``ipc`` where the load strategy says so; a version that is not named is called ``0`` there.

        Returns
        -------
        mapping
            As there without ``sync_cost``; also ``transfer_mode``, ``update_count`` (tensors that came),
            ``mtp_cache_count`` (those of them for MTP models) and ``gdr_mtp_chunk_size`` (how many of these
            an MTP model gets at once).
        """
        mode = "ipc" if self._over_ipc else "gdr"
        said = self.update_weights_by_rdma(version, verify_checksum, transfer_mode=mode)
        brought = self._brought
        return {
            **{key: value for key, value in said.items() if key != "sync_cost"},
            "transfer_mode": mode,
            "update_count": brought.tensors,
            "mtp_cache_count": brought.auxiliary,
            "gdr_mtp_chunk_size": self._mtp_chunk_size,
        }

    def _update_shared_status(self, pid: Any, status: int) -> None:
        """Let a weights word say `status`, over whatever it says; for the first rank of each part.

        `pid` is the port that the word is called by; None and 0 are this part's.
        """
        if self._leads and not self._calls.inside:
            self._own_word.store(int(status), str(pid) if pid else None)

    def read_model_version_from_file(self) -> str | None:
        """Return the version that ``version.yaml`` names; None, and a line in the log, if it names none."""
        return calls.version_in(Path(self.fd_config.model_config.model))

    def _load(self, version: Callable[[], str | None], **options: Any) -> None:
        """Load what `version` returns, for rank 0 alone: what each rank sees of a file may differ.

        Inside a control request its command says which version that is.
        """
        if self._calls.inside:
            self._calls.load(**options)
            return
        given = {name: value for name, value in options.items() if value is not None}
        given["on_failure"] = OnFailure.CLEAR

        def begin(controller: Any) -> Any:
            return controller.begin_update(version(), tags={Tag.WEIGHTS}, force=True, **given)

        self._entries.together(begin)

    def _units(self, *wanted: str) -> None:
        """Run single actions: of the control request that is open, once each, else beside any plan."""
        if self._calls.inside:
            self._calls.units(*wanted)
        else:
            self._single.run(*wanted)

    @property
    def _brought(self) -> Brought:
        """What the last load has brought to this rank."""
        return Brought.said(self._calls.context.facts) if self._calls.inside else self._entries.brought

    def _asked_or_announced(self, version: str | None) -> str:
        asked = version or (UNNAMED_OVER_IPC if self._over_ipc else self.read_model_version_from_file())
        if not asked:
            raise errors.no_version(directory=str(self.fd_config.model_config.model))
        return asked
