"""FastDeploy's ``DynamicWeightManager``, as a rank of a wsm group: its calls, its attributes, its errors.

FastDeploy's model runner makes one while it loads the model, and FastDeploy's event loop calls
``check_model_weights_status`` on its class. How the rank lives inside such a call is in :mod:`._entries`.
Where FastDeploy's own check stays, a runner calls the manager method by method: rank 0 begins a command, each
rank polls inside its call, and every call raises or returns alike. Units beside the weights are single
actions with their checks; an action whose work is done already does nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from wsm import log
from wsm.actions import names
from wsm.actions.backends import required_call
from wsm.actions.base import ActionContext, LoadFunction
from wsm.actions.measuring import AddressContract, DetailedMemory
from wsm.actions.options import PlanOptions
from wsm.actions.surfaces import MemorySurface
from wsm.config import config_from_mapping
from wsm.controller import Controller, Pending
from wsm.errors import BadInputError, GroupError, RefusedError, WsmError
from wsm.fastdeploy import _calls as calls
from wsm.fastdeploy import _control_calls as requests
from wsm.fastdeploy import _control_contract as control
from wsm.fastdeploy import _models
from wsm.fastdeploy._configuration import WorkerFacts, read
from wsm.fastdeploy._entries import Brought, Deciding, Entries
from wsm.fastdeploy._membership import Membership, meet, membership_of
from wsm.fastdeploy._part_words import PartWord
from wsm.fastdeploy._runner_surfaces import WorkerSurfaces, examine
from wsm.fastdeploy.errors import as_fastdeploys
from wsm.group_segment import own_new_group
from wsm.labels import is_unnamed
from wsm.signals.owner_settings import declare_loop
from wsm.signals.segment import Segment
from wsm.states import engine_words as contract
from wsm.states.engine_words import Entry, Given
from wsm.states.plan_key import CLEAR, UPDATE
from wsm.states.vocabulary import KVState, OnFailure, Tag, WeightState
from wsm.strategies.files.shard_source import device_id_from_environment, device_index_from_environment
from wsm.strategies.files.snapshot_names import SHARED_DIRECTORY
from wsm.strategies.files.version_file import read_version
from wsm.strategies.transports.checkpoint_transfer import UNNAMED_OVER_IPC
from wsm.worker import StepPermit, Worker

#: Seconds for one command that FastDeploy's engine asks for, which waits 300 s itself and looks every second.
DEADLINE_S = 290.0

_log = log.logger("fastdeploy")


class DynamicWeightManager:
    """The weights of this process, managed as one rank of a group.

    Returns from its constructor with weights, as FastDeploy's does: rank 0 creates the group's segment,
    tells the others its name by one broadcast in FastDeploy's own communicator, and commands the first load.

    Parameters
    ----------
    fd_config : object
        FastDeploy's ``FDConfig``.
    models : object or list of object
        The main model, or the main model and auxiliary ones. One that is a
        :class:`wsm.actions.surfaces.WeightSurface` is taken as that.
    local_rank : int or None
        As FastDeploy of 2026 gives it; None takes the rank within the tensor-parallel group.
    member : Membership or None
        This process's place in its group; None reads it off FastDeploy's communicators.
    memory : MemorySurface or None
        The allocator; None is the device's.
    load : callable or None
        As of :class:`wsm.Worker`.
    directory : path or None
        Where segment and FastDeploy's words lie; the user's private directory and ``/dev/shm`` by default.

    Attributes
    ----------
    fd_config, load_config, parallel_config, local_rank, rank, nranks, model_list
        As FastDeploy's.
    rdma_handle : None
        wsm has handles of its own.

    Raises
    ------
    GroupError (``no-boot``)
        If the first load failed; on every rank. As what fails in every method it is of FastDeploy's type, too
        (FileNotFoundError, TypeError, ValueError, RuntimeError).
    RefusedError (``several-hosts``, ``already-managed``)
        If the ranks of the group run on several hosts, or this process is a rank already.
    RefusedError (``unknown-generation``), BadInputError (``call-missing``)
        If ``install()`` has handed in a model runner of no known generation, or one that lacks a call which
        the configuration needs. Nothing was touched.
    WsmError
        As :class:`wsm.Worker`.
    """

    #: The one of this process, which FastDeploy's loop asks by its class.
    present: ClassVar[DynamicWeightManager | None] = None
    #: The model runner that loads its model now, where ``install()`` watches it.
    loading: ClassVar[Any] = None
    _state: dict[str, Any] | None = None
    _singles = 0

    def __init__(
        self,
        fd_config: Any,
        models: Any,
        local_rank: int | None = None,
        *,
        member: Membership | None = None,
        memory: MemorySurface | None = None,
        load: LoadFunction | None = None,
        directory: str | Path | None = None,
    ) -> None:
        if DynamicWeightManager.present is not None:
            group = DynamicWeightManager.present.group_name
            raise RefusedError(
                f"this process is a rank of group {group!r} already; close() the manager first",
                code="already-managed",
                group=group,
            )
        self.fd_config = fd_config
        self.load_config = fd_config.load_config
        self.parallel_config = fd_config.parallel_config
        try:
            facts = read(fd_config, self.load_config)
        except WsmError as error:
            raise as_fastdeploys(error) from error
        self._loading = DynamicWeightManager.loading
        if self._loading is not None:
            examine(self._loading, facts)
        member = member or membership_of(facts, self.parallel_config)
        self.rank = facts.tensor_parallel_rank
        self.local_rank = self.rank if local_rank is None else local_rank
        self.nranks = member.world_size
        self.first_load = True
        self.model_list = models if isinstance(models, list) else [models]
        self.rdma_handle = None
        self._mtp_chunk_size, self._over_ipc = facts.mtp_chunk_size, facts.over_ipc
        self._capture_model_state()
        with ExitStack() as undo:
            self._join(facts, member, undo, memory=memory, load=load, directory=directory)
            self._ending = undo.pop_all()
        DynamicWeightManager.present = self
        try:
            booted = self._entries.boot(self._attach_s)
        except BaseException:
            self.close()
            raise
        if booted.failure:
            self.close()
            failed = GroupError(
                f"rank {member.rank} of group {self.group_name!r} has no weights after the load at start: "
                f"{booted.failure}",
                code="no-boot",
                rank=member.rank,
                group=self.group_name,
                why=booted.failure,
            )
            raise as_fastdeploys(failed, booted.cause)
        self.first_load = False
        calls.say(calls.Fragment.BUILT, by=self.load_config.load_strategy, rank=self.rank)
        if member.rank == 0:
            declare_loop(self._segment, polls=False, place=calls.place_of_loop())

    def _join(
        self,
        facts: WorkerFacts,
        member: Membership,
        undo: ExitStack,
        *,
        memory: MemorySurface | None,
        load: LoadFunction | None,
        directory: str | Path | None,
    ) -> None:
        """Meet the other ranks, and become one of the group."""
        self.group_name, run_id = meet(member, facts)
        own = {"name": self.group_name, "ranks": len(member.global_ranks), "run_id": run_id}
        config = config_from_mapping({**own, **facts.options}, where="fd_config")
        weights = _models.surfaces_of_models(self.model_list)
        needs_groups = (
            config.shut_down_groups or facts.expert_parallel
        )  # an exchange buffer lives on its group
        self._surfaces = WorkerSurfaces(
            facts,
            weights=weights,
            memory=memory or calls.device_memory(),
            groups=calls.device_groups(facts, self.parallel_config) if needs_groups else None,
            deepep_buffers=calls.deepep_buffers() if facts.expert_parallel else None,
            models=_models.checkpoint_models(self.model_list, self.fd_config),
            names=_models.training_names_of(self.model_list, weights),
            process_loaded=_models.processing_left(self.model_list, self.fd_config),
            directory=directory,
        )
        undo.callback(self._surfaces.close)
        self._attach_s = config.deadlines.attach_s
        self._calls, self._found_cache = requests.ControlCalls(), False
        options = PlanOptions.from_runner(
            self._surfaces,
            address_contract=AddressContract() if facts.graphs else None,
            around=self._calls.around,
            rebuild_is_collective=facts.asks_cache_process,
        )
        if member.rank == 0:
            segment = undo.enter_context(own_new_group(config, directory=directory))
            undo.callback(segment.unlink)
        self._polls = False
        self._permit: StepPermit | None = None
        self._worker = undo.enter_context(
            Worker(
                config,
                self._surfaces,
                rank=member.rank,
                plan_options=options,
                load=load,
                directory=directory,
                answers_engine_words=False,
            )
        )
        word = PartWord(facts.port, directory)
        undo.callback(word.close)
        self._own_word, self._leads = word, (leads := facts.tensor_parallel_rank == 0)
        if member.rank:
            segment = undo.enter_context(
                Segment.attach(config.name, world_size=config.ranks, directory=directory)
            )
            self._entries: Entries = Entries(self._worker, segment, word if leads else None)
        else:
            controller = undo.enter_context(
                Controller(config.name, directory=directory, journal_directory=config.journal_directory)
            )
            self._entries = Deciding(self._worker, segment, word, controller, deadline_s=DEADLINE_S)
            self._entries.seen = lambda rank: calls.last_seen(facts, rank, directory)
        self._segment = segment
        undo.callback(self._entries.close)

    @staticmethod
    def check_model_weights_status(model_weights_status: Any, *rest: Any, **named: Any) -> None:
        """Do what FastDeploy's weights word asks, with all ranks of the group; called by its event loop.

        Takes the arguments of both generations: ``(model_weights_status, model_runner, pid)`` of 2025, which
        stays inside while the weights are away, and ``(model_weights_status, kv_cache_status, model_runner,
        pid, block)`` of 2026, by place or by name. Collective: all ranks of the group come in the same turn
        of the loop. Blocks until the word says NORMAL, or CLEARED where it asked for a clear and `block` is
        false.

        Raises
        ------
        RefusedError (``no-worker``)
            If this process manages no weights.
        RefusedError (``unknown-generation``, ``boots-only``), BadInputError (``call-missing``)
            If the model runner lacks a call that the configuration needs. Nothing was changed.
        """
        present = DynamicWeightManager.present
        if present is None:
            raise RefusedError(
                "this process has no wsm.fastdeploy.DynamicWeightManager, so there is no group to ask; the "
                "model runner makes one when it loads its model with dynamic_load_weight",
                code="no-worker",
            )
        model_runner, block = calls.loop_call(rest, named)
        present._surfaces.bind(model_runner)
        present._end_turn()
        entry = Entry(int(model_weights_status.value[0]), block=block)
        calls.say(calls.Fragment.ASKED, entry.asked)
        present._entries.stay(entry)

    def poll(self, model_runner: Any = None) -> None:
        """Do what commands of other processes ask; the second line, at the top of FastDeploy's event loop.

        With it, every turn of the loop is a step of the group: hold, hot updates and commands of a trainer
        are obeyed, which are refused without it, and :attr:`version` is that of the turn's tokens. Blocks
        while such a command stops the group. Every rank calls it in every turn.

        Parameters
        ----------
        model_runner : object or None
            FastDeploy's. None: the one that was handed in before, by ``install()`` or by its loop.

        Raises
        ------
        BadInputError (``no-runner``)
            If none was.
        WsmError
            As :meth:`check_model_weights_status`.
        """
        first = not self._polls
        if first:
            self._surfaces.bind(model_runner or self._loading)
            self._polls = True
        self._end_turn()
        serves = self._entries.between_turns(self._surfaces.requests.in_flight)
        if first:  # a clear before FastDeploy's KV cache counts as there would not free it
            self._declare("")
        if serves:
            self._permit = self._worker.step()
            self._permit.__enter__()

    def control(self, model_runner: Any, request: requests.ControlRequest, body: Callable[[], Any]) -> Any:
        """Do what a control request of FastDeploy's asks, as one command of the group; see ``install()``.

        Collective: every rank gets the request. `body` is the model runner's own method, which runs once
        inside the command where there is anything to do. Blocks for less time than FastDeploy's engine waits.
        Whether the runner steps then follows from what this rank holds.

        Parameters
        ----------
        model_runner : object
            FastDeploy's.
        request : ControlRequest
            What is asked.
        body : callable
            What the model runner's class does.

        Returns
        -------
        object
            What `body` returns; None where there was nothing to do. Of a ``wakeup`` that returns nothing: the
            version that is held, whether it was served last or is the announced one.

        Raises
        ------
        GroupError, WsmError
            What became of the command: on every rank, if on any. The old weights are left if no rank has
            touched any, and ``call-failed`` says why; else no rank holds weights.
        RefusedError (``call-open``)
            If another control request is open on this rank.
        """
        if self._calls.passes_through(request.method):
            return body()
        self._surfaces.bind(model_runner)
        self._end_turn()
        # Said before: of a command that comes behind the request's own, a runner that sleeps sees nothing.
        self._declare(control.keeps_from_polling((), request.method))
        entered = False
        try:
            if not self._found_cache:
                if self._worker.kv is not KVState.NORMAL:
                    self._entries.together(
                        lambda controller: controller.begin_update(
                            tags={Tag.KV_CACHE},
                            deadline_s=requests.DEADLINES_S[request.method],
                            request_id="fastdeploy-found",
                        ),
                        bound_s=requests.REST_S,
                    )
                self._found_cache = True
            with self._calls.open(request, body, self._entries.commands, self._worker.plans) as call:
                try:
                    self._entries.together(
                        lambda controller: self._begun(controller, request), bound_s=requests.REST_S
                    )
                finally:
                    entered = call.entered
            if request.method == "wakeup" and call.result is None:
                return {"version": self._worker.version}
            return call.result
        finally:
            peer_gone = bool(self._entries.gone())
            if control.settles(self._worker.weights, entered=entered, peer_gone=peer_gone):
                self._settle_behind(model_runner, peer_gone=peer_gone)
            else:
                self._declare("")  # it is another command that goes on

    def _begun(self, controller: Controller, request: requests.ControlRequest) -> Pending | None:
        """Begin the command of a control request, on rank 0; None where there is nothing to do."""
        options: dict[str, Any] = {
            "deadline_s": requests.DEADLINES_S[request.method],
            "settle_s": requests.REST_S,
            "request_id": f"fastdeploy-{request.method}",
        }
        resident = [rank.resident for rank in controller.status().ranks]
        command = control.command_of(request.method, request.tags, resident)
        if command.given is Given.NOTHING:
            return None
        if command.given is Given.CLEAR:
            return controller.begin_clear(tags=command.tags, **options)
        options["on_failure"] = OnFailure.CLEAR
        loads, version = Tag.WEIGHTS in command.tags, None  # for an engine: what lies there now
        if request.method == "update_weights":
            version = self._asked_or_announced(request.version)
        elif loads:  # what was served last; where the source has it no more, what is announced
            served = controller.status().version
            if served is not None and not is_unnamed(served) and self._worker.finds(served):
                version = served
        return controller.begin_update(version, tags=command.tags, force=loads, **options, **request.options)

    def _settle_behind(self, model_runner: Any, *, peer_gone: bool) -> None:
        """Let the runner step only with all that a step needs, and hold nothing that the group does not."""
        found = self._found_cache
        asleep = control.sleeping(self._worker.weights, self._worker.kv, kv_found=found, peer_gone=peer_gone)
        weights, kv = Tag.WEIGHTS not in asleep, Tag.KV_CACHE not in asleep
        requests.give_back_unheld(self._surfaces, weights=weights, kv=kv)
        model_runner.is_weight_sleeping, model_runner.is_kvcache_sleeping = not weights, not kv
        self._entries.rests(asleep=bool(asleep))
        self._declare(control.keeps_from_polling(asleep))

    def _declare(self, keeps: str) -> None:
        """Say, for a loop with the second line, whether it looks at commands; `keeps`: what keeps it."""
        if self._polls and self._worker.rank == 0:
            declare_loop(self._segment, polls=not keeps, place=keeps)

    def _end_turn(self) -> None:
        """End the step that the last turn of FastDeploy's loop was."""
        if self._permit is not None:
            self._permit.__exit__(None, None, None)
            self._permit = None

    @cached_property
    def meta_src_id(self) -> int:
        """The number of this process's device, read when it is first asked for: not every way needs one."""
        return self._get_gpu_id()

    @cached_property
    def ipc_path(self) -> str:
        """Where the strategy ``ipc`` of FastDeploy looks."""
        return f"{SHARED_DIRECTORY}/ipc_metas_{self.meta_src_id}"

    @property
    def version(self) -> str | None:
        """The version whose weights this rank holds; None while it holds none."""
        return self._worker.version

    def close(self) -> None:
        """Leave the group. Idempotent."""
        self._ending.close()
        if DynamicWeightManager.present is self:
            DynamicWeightManager.present = None

    # -- FastDeploy's own methods: each is this rank's part of a group's command, or a single action ------

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
        inside = self._calls.inside
        if inside is not None:
            inside.units(names.RELEASE_WEIGHTS)
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
        total_s, inside = time.perf_counter() - began, self._calls.inside
        brought = self._brought
        calls.say(calls.Fragment.STREAM_ENDS, seconds=round(total_s, 2), version=self._worker.version)
        return {
            "sync_cost": brought.sync_s,
            "update_cost": total_s - brought.sync_s if brought.apply_s is None else brought.apply_s,
            "total_cost": total_s,
            "version": self._worker.version if inside is None else inside.context.facts["version"],
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
        try:
            return read_version(Path(self.fd_config.model_config.model))
        except WsmError as error:
            _log.error(log.COMMAND_FAILED, asked="version.yaml", error=str(error))
            return None

    def _load(self, version: Callable[[], str | None], **options: Any) -> None:
        """Load what `version` returns, for rank 0 alone: what each rank sees of a file may differ.

        Inside a control request its command says which version that is.
        """
        inside = self._calls.inside
        if inside is not None:
            inside.load(**options)
            return
        given = {name: value for name, value in options.items() if value is not None}
        given["on_failure"] = OnFailure.CLEAR

        def begin(controller: Any) -> Any:
            return controller.begin_update(version(), tags={Tag.WEIGHTS}, force=True, **given)

        self._entries.together(begin)

    def _units(self, *wanted: str) -> None:
        """Run single actions with their checks: of the control request that is open, else beside any plan."""
        inside = self._calls.inside
        if inside is not None:
            inside.units(*wanted)
            return
        self._singles += 1
        rank, plans = self._worker.rank, self._worker.plans
        context = ActionContext(
            self._surfaces, rank, self._segment.world_size, epoch=0, sequence=self._singles
        )
        actions = {
            action.name: action for plan in (plans.named(CLEAR), plans.named(UPDATE)) for action in plan
        }
        for action in (actions[name] for name in wanted if name in actions):
            action.precondition(context)
            action.run(context)
            action.probe(context)

    @property
    def _brought(self) -> Brought:
        """What the last load has brought to this rank."""
        inside = self._calls.inside
        return self._entries.brought if inside is None else Brought.said(inside.context.facts)

    def _asked_or_announced(self, version: str | None) -> str:
        asked = version or (UNNAMED_OVER_IPC if self._over_ipc else self.read_model_version_from_file())
        if not asked:
            directory = str(self.fd_config.model_config.model)
            raise BadInputError(
                f"rsync model version not set: the call names none, and {directory}/version.yaml says none; "
                "give one",
                code="no-version",
                directory=directory,
            )
        return asked

    @property
    def state_dict(self) -> dict[str, Any]:
        """Every parameter of the models by name, as they are now: a load may replace some.

        One that is set takes its place for the methods that FastDeploy's tests call one by one; the group's
        loads go by the models.
        """
        return _models.state_of(self.model_list) if self._state is None else self._state

    @state_dict.setter
    def state_dict(self, state: dict[str, Any]) -> None:
        self._state = state

    def _capture_model_state(self) -> None:
        """List every parameter in the log; :attr:`state_dict` is never older than the models."""
        for name, parameter in self.state_dict.items():
            place = str(getattr(parameter, "place", ""))
            shape, dtype = list(parameter.shape), str(parameter.dtype)
            calls.say(calls.Fragment.PARAMETER, name, shape=shape, dtype=dtype, place=place)

    def _get_gpu_id(self) -> int:
        """Return the number of this process's device, as file names carry it; 0 where there is none.

        Raises
        ------
        BadInputError (``bad-device-id``)
            If the environment names none by a number; a ValueError, too.
        """
        return device_id_from_environment(0, os.environ)

    def _verify_parameters(self, operation: str) -> None:
        """Raise RuntimeError unless every parameter holds memory after an update, and none after a clear."""
        wanted = operation == "update"
        state = self.state_dict.items()
        wrong = [name for name, parameter in state if parameter._is_initialized() is not wanted]
        if wrong:
            states = "hold no memory" if wanted else "hold memory still"
            raise RuntimeError(
                f"Model Parameter {operation} verification failed: {len(wrong)} parameters {states}, "
                f"the first is {wrong[0]}"
            )
        calls.say(calls.Fragment.VERIFIED, operation)

    def _validate_parameter_match(self, name: str, src: Any, dst: Any) -> None:
        """Raise TypeError for another dtype, ValueError for another shape."""
        if src.dtype != dst.dtype:
            raise TypeError(f"Type mismatch for {name}: {src.dtype} vs {dst.dtype}")
        if src.shape != dst.shape:
            raise ValueError(f"Shape mismatch for {name}: {src.shape} vs {dst.shape}")

    def _update_model_from_state(self, state_dict: Mapping[str, Any], src_type: str) -> None:
        """Let every parameter of a name in `state_dict` have its memory; other names are left out.

        Raises
        ------
        ValueError, TypeError
            If nothing is brought, or a tensor is of another shape or dtype. Those before it were taken.
        """
        if not state_dict:
            raise ValueError(f"No parameter found in state dict from {src_type}")
        own = self.state_dict
        calls.say(calls.Fragment.TOOK, len(state_dict.keys() & own.keys()), len(state_dict), source=src_type)
        for name, new in state_dict.items():
            if name not in own:
                continue
            target = own[name]
            self._validate_parameter_match(name, new, target)
            if new.stride() == target.stride():
                new._share_buffer_to(target)
                continue
            import paddle  # noqa: PLC0415 - only paddle's tensors have strides

            with paddle.no_grad():
                if not target._is_initialized():
                    paddle.empty(target.shape, dtype=target.dtype)._share_buffer_to(target)
                target[...] = new

    @staticmethod
    def _convert_ipc_meta_to_tensor(ipc_meta: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors that handles of a trainer's processes lead to, opened on this process's device.

        `ipc_meta` has by tensor what paddle's ``_share_cuda`` says; a handle may be text, of a byte each.

        Raises
        ------
        BadInputError (``call-missing``)
            If this build of paddle has no CUDA.
        """
        import paddle  # noqa: PLC0415 - the tensors are its own

        core = paddle.base.core
        dense = getattr(core, "LoDTensor", None) or core.DenseTensor
        opens = required_call(dense, "_new_shared_cuda", needed_for="opening a trainer's device tensors")
        device = device_index_from_environment(os.environ)
        opened = {}
        for name, (handle, *fields) in ipc_meta.items():
            as_bytes = handle.encode("latin-1") if isinstance(handle, str) else handle
            opened[name] = paddle.to_tensor(opens((as_bytes, *fields[:5], device, *fields[6:])))
        return opened

    def _log_memory(self, context: str) -> None:
        """Write one line with what the device's allocator holds and has held at most, in GiB."""
        memory = calls.device_memory()
        measured = memory.figures() if isinstance(memory, DetailedMemory) else {}
        figures = {
            f"{'max' if said.startswith('peak_') else 'current'}_{said.removeprefix('peak_')}": None
            if said not in measured
            else round(measured[said] / (1 << 30), 2)
            for said in ("peak_allocated", "peak_reserved", "allocated", "reserved")
        }
        _log.warning("device.memory", context=context, **figures)
