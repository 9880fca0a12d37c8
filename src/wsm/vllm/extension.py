"""What each worker of vLLM gets by ``--worker-extension-cls``: one method, by which its rank takes part.

Theory of operation
-------------------
vLLM's answers carry no names: behind a worker that raises, each later answer is one of another question, for
good. So :meth:`WorkerExtension.wsm_answer` never raises. An error is a value, and an answer repeats the token
of its question.

A rank votes once it has read and verified the version, in a thread, while it serves (``ready`` in its status
word). It reloads only when it is told that all have voted alike and the engine is paused; that is its update
in place, at whose end it is PREPARED. So nothing is left that can fail when it hears COMMIT. A reload that
fails leaves parameters that may be on the meta device: the rank is touched, and drops. vLLM keeps what a
layer had got of it, and the next reload would go on there; so that is let go first.

The machines of :mod:`wsm.states` decide, here as everywhere. CLEARED says of these weights that nothing whole
is there; vLLM keeps their memory.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from wsm.errors import GroupError, RefusedError, WsmError, described
from wsm.labels import version_id
from wsm.signals.presence import ProcessIdentity
from wsm.states import command_events
from wsm.states.command_events import Asked
from wsm.states.joint import JointState
from wsm.states.machine import LifeCycle
from wsm.states.table import Event
from wsm.states.vocabulary import ALL_TAGS
from wsm.states.words import CommandWord, CommittedWord, Operation, StatusCode, StatusWord
from wsm.status.facts import ALIVE
from wsm.strategies.digest import digest_of
from wsm.strategies.dtype_names import DTYPES_BY_NAME
from wsm.strategies.tensor import TensorSpec
from wsm.typed import resolved
from wsm.vllm.engine import PushedVersion
from wsm.vllm.versions import EngineTerms, HeldCheckpoint, StagedRead, VersionPlace

_TORCH_NAMES = {dtype: name for name, dtype in DTYPES_BY_NAME.items()}


class WorkerExtension:
    """A part of vLLM's worker; ``--worker-extension-cls wsm.vllm.Worker``."""

    def wsm_tensor(self, spec: TensorSpec, data: bytearray | memoryview) -> Any:
        """Return the bytes of a tensor as one of torch, which looks at them where they lie."""
        import torch  # noqa: PLC0415 - only a worker of vLLM has it

        dtype = getattr(torch, _TORCH_NAMES[spec.dtype])
        if not data:
            return torch.empty(spec.shape, dtype=dtype)
        return torch.frombuffer(data, dtype=dtype).reshape(spec.shape)

    def wsm_forget(self) -> None:
        """Let go what a reload or a push that failed has left in vLLM: else the next one goes on with it."""
        reloading = importlib.import_module("vllm.model_executor.model_loader.reload.layerwise")
        self._weight_update_active = False
        config, model = self.vllm_config, self.model_runner.get_model()  # type: ignore[attr-defined] # vLLM's
        for layer in model.modules():
            begun = reloading.get_layerwise_info(layer)
            begun.loaded_weights.clear()
            begun.load_numel = 0
        with importlib.import_module("vllm.config").set_current_vllm_config(config):
            reloading.finalize_layerwise_reload(model, config.model_config)

    def wsm_fingerprint(self) -> str | None:
        """Return the digest of vLLM's checksums of this rank's parameters; None: they do not see all weights.

        What is quantised, or packed for a CPU, lies elsewhere: its parameters are empty, or not what is used.
        """
        worker: Any = self
        model = worker.model_runner.get_model()
        # vLLM's linear layers close over what they have packed; the plain one closes over nothing.
        linears = [getattr(module, "cpu_linear", None) for module in model.modules()]
        packed = any(getattr(linear, "__closure__", None) for linear in linears)
        empty = any(parameter.numel() == 0 for parameter in model.parameters())
        checksums = getattr(worker, "compute_weight_checksums", None)  # vLLM 0.31 has none
        if packed or empty or checksums is None or worker.vllm_config.quant_config is not None:
            return None
        return digest_of(msgspec.json.encode(checksums(), order="sorted"))

    def wsm_answer(self, question: Any) -> dict[str, Any]:
        """Answer the server's question, and go on with what it tells. Does not wait for files; never raises.

        Parameters
        ----------
        question : dict
            ``token``: repeated in the answer. ``do``: ``hello``, with ``server``, the ``place`` of what
            serves and the ``terms`` of this engine; or ``tell``, with ``server``, ``words``
            (command, committed), and ``place``, ``restores``, ``load`` and ``touched`` of the command, and
            ``sent``: a verb of vLLM's worker by which a trainer pushes, and what it was ``given``; or
            ``connect``, with ``server`` and such a verb that brings no weights.
        """
        token = question.get("token") if isinstance(question, dict) else None
        try:
            sides = self.__dict__
            if "_wsm_side" not in sides:  # vLLM does not run the constructor of an extension
                sides["_wsm_side"] = RankSide(self)
            return {"token": token, **sides["_wsm_side"].answer(question)}
        except Exception as error:  # noqa: BLE001 - behind one that raises, all later answers are out of step
            return {"token": token, "rank": getattr(self, "rank", None), "error": error_value(error)}


def error_value(error: BaseException) -> dict[str, Any]:
    """Return an error as plain values; what it knows besides its message stands beside it."""
    if not isinstance(error, WsmError):
        return {"code": type(error).__name__, "message": described(error)}
    about = {key: value for key, value in error.context.items() if value is not None}
    about = msgspec.to_builtins(about, enc_hook=str)
    return {**about, "code": error.code, "message": str(error)}


class RankSide:
    """One rank: what it serves, and how far it is with the command at hand.

    One thread: the worker's, between two steps.
    """

    def __init__(self, worker: Any) -> None:
        self._worker, self._process = worker, list(ProcessIdentity.current())
        self._life = LifeCycle()
        self._server: str | None = None
        self._term = 0
        self._heard = CommandWord(1, 0, Operation.NONE)
        self._committed = CommittedWord(0, None)
        self._code = StatusCode.ATTACHED
        self._asked = Asked(Operation.UPDATE, ALL_TAGS, self._life.joint)
        self._begun = False
        self._is_half = False  # whether vLLM keeps of a load what another one would go on with
        self._reading: StagedRead | None = None  # of the command at hand; of the first version until then
        self._staged: HeldCheckpoint | PushedVersion | None = None  # verified, or awaited: this rank's vote
        self._served: HeldCheckpoint | None = None  # kept open: what a failed update is followed by
        self._terms = EngineTerms()
        self._layout: dict[str, TensorSpec] | None = None
        self._fingerprint: str | None = None  # of what was loaded last
        self._fingerprints: dict[str, str] = {}  # of each version, by its digest, as it was loaded first
        self._error: dict[str, Any] | None = None

    @property
    def joint(self) -> JointState:
        """Where weights and KV cache are: a rank is the machines that the events of commands reach."""
        return self._life.joint

    def can(self, event: Event) -> bool:
        """As :meth:`wsm.states.machine.LifeCycle.can`."""
        return self._life.can(event)

    def fire(self, event: Event, *, kept: bool = False, kv_kept: bool = True, cause: str = "") -> None:
        """As :meth:`wsm.states.machine.LifeCycle.fire`, for the command that is heard last."""
        at = {"at_ns": time.monotonic_ns(), "epoch": self._heard.epoch, "sequence": self._heard.sequence}
        self._life.fire(event, **at, kept=kept, kv_kept=kv_kept, cause=cause)

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Take in what the server says, do what can be done, and say how far it is."""
        if question["do"] == "hello":
            self._hello(question)
        elif self._server is None or question["server"] != self._server:
            raise RefusedError(
                "this worker takes no command: no server has said hello to it under that name, so that "
                "nothing would keep requests from weights that are not whole; start vLLM with "
                "VLLM_PLUGINS=wsm",
                code="no-hello",
            )
        elif question["do"] == "connect":
            getattr(self._worker, question["verb"])(*question["given"])
        else:
            command = CommandWord.unpack(question["words"][0])
            if _how_far(command) > _how_far(self._heard):
                self._hear(command, question)
            if command[:2] == self._heard[:2]:
                self._go_on(question)
            if self._served is not None:
                self._served.is_on_all_ranks()
                if not self._terms.keep_previous:
                    self._served.give_memory_back()
        return self._said()

    def _hello(self, question: Mapping[str, Any]) -> None:
        reading = self._reading if self._heard.operation is Operation.NONE else None
        if question["server"] != self._server:
            self._server, self._term = question["server"], self._term + 1
            self._terms = msgspec.convert(question["terms"], resolved(EngineTerms))
            if self._committed.version_id is None:
                place = msgspec.convert(question["place"], resolved(VersionPlace))
                self._committed = CommittedWord(0, version_id(place.version))
                for moment in (command_events.begin, command_events.finish):  # vLLM has loaded it
                    moment(self._asked, self)
                command_events.commit(self)
                self._reading = self._read(place, None)
        elif reading is not None and (reading.error or reading.held):
            self._error = error_value(reading.error) if reading.error else None
            self._serve(reading.held)

    def _serve(self, version: HeldCheckpoint | PushedVersion | None) -> None:
        held = version if isinstance(version, HeldCheckpoint) else None
        if self._served is not None and held is not self._served:
            self._served.close()
        self._served, self._layout = held, held.layout if held else self._layout
        self._staged = self._reading = None

    def _hear(self, command: CommandWord, question: Mapping[str, Any]) -> None:
        begins = command[:2] != self._heard[:2]
        self._heard = command
        if not begins:
            return
        self._drop_staged()
        self._error, self._begun, self._code = None, False, StatusCode.DRAINING
        self._asked = Asked(Operation.UPDATE, ALL_TAGS, self._life.joint)
        refused = command_events.objection(self._asked, self)
        if refused is not None or command.operation is not Operation.UPDATE:
            self._code = StatusCode.REFUSED
            self._error = {"code": "refused", "message": refused} if refused else None
        elif question["restores"]:
            self._staged = self._served
        else:
            place = msgspec.convert(question["place"], resolved(VersionPlace))
            if place.pushed:
                self._staged = PushedVersion(place, self._layout)
            else:
                self._reading = self._read(place, self._layout)

    def _read(self, place: VersionPlace, layout: Mapping[str, TensorSpec] | None) -> StagedRead:
        name = f"{self._server}.{self._heard.epoch}.{self._heard.sequence}"
        return StagedRead(place, layout, name, self._terms.room_bytes(self._served))

    def _go_on(self, question: Mapping[str, Any]) -> None:
        operation = self._heard.operation
        if operation is Operation.UPDATE and self._code is StatusCode.DRAINING:
            if self._staged is None and self._reading is not None:
                self._staged = self._reading.held
                if self._reading.error is not None:
                    self._code, self._error = StatusCode.FAILED, error_value(self._reading.error)
            if self._staged is not None and question["load"]:
                self._load(self._staged, question)
        elif operation.is_commit and self._code is StatusCode.PREPARED:
            command_events.commit(self)
            self._serve(self._staged)
            self._committed = CommittedWord.unpack(question["words"][1])
            self._code = StatusCode.DONE_COMMITTED
        elif operation.is_abort and not self._code.is_terminal:
            self._stop(question["touched"])

    def _load(self, staged: HeldCheckpoint | PushedVersion, question: Mapping[str, Any]) -> None:
        sent, place = question["sent"], msgspec.convert(question["place"], resolved(VersionPlace))
        begun, self._begun, read = self._begun, True, list[str]()
        try:
            if not begun:
                command_events.begin(self._asked, self)
                if self._is_half:
                    self._worker.wsm_forget()
                self._is_half = True
            if isinstance(staged, HeldCheckpoint):
                staged.is_on_all_ranks()
                self._worker.reload_weights(weights_iterator=self._tensors(staged, read))
                _require_all(staged, read)
            elif sent is None or not staged.take(self._worker, sent, place):
                return
            self._require_memory()
            self._fingerprint = None
            if isinstance(staged, HeldCheckpoint):
                self._require_same(staged)
            command_events.finish(self._asked, self)
            self._code, self._is_half = StatusCode.PREPARED, False
        except Exception as error:  # noqa: BLE001 - whatever a loader raises, this rank is touched
            last = {"tensor": read[-1]} if read else {}
            self._code, self._error = StatusCode.FAILED, {**last, **error_value(error)}

    def _require_memory(self) -> None:
        named = self._worker.model_runner.get_model().named_parameters()
        empty = [name for name, parameter in named if parameter.is_meta]
        if empty:
            problem = f"vLLM's reload left {empty[0]} and {len(empty) - 1} others without memory"
            raise GroupError(problem, code="not-reloaded", tensor=empty[0])

    def _require_same(self, staged: HeldCheckpoint) -> None:
        self._fingerprint = found = self._worker.wsm_fingerprint() if self._terms.fingerprints else None
        if found is not None and self._fingerprints.setdefault(staged.digest, found) != found:
            problem = (
                f"vLLM has made other parameters of version {staged.place.version} than at its first load"
            )
            raise GroupError(problem, code="other-parameters", version=staged.place.version)

    def _tensors(self, staged: HeldCheckpoint, read: list[str]) -> Iterator[tuple[str, Any]]:
        for spec, data in staged.read():
            read.append(spec.name)
            yield spec.name, self._worker.wsm_tensor(spec, data)

    def _stop(self, any_touched: bool | None) -> None:
        self._code = StatusCode.STOPPED_TOUCHED if self._begun else StatusCode.STOPPED_UNTOUCHED
        if any_touched is None:
            return
        if any_touched:
            command_events.drop(self._asked, self)
            command_events.freed(self)
            self._code = StatusCode.DONE_CLEARED
        else:
            command_events.keep(self._asked, self)
            self._code = StatusCode.DONE_KEPT
        self._drop_staged()

    def _drop_staged(self) -> None:
        if self._reading is not None:
            self._reading.drop()
        self._staged = self._reading = None

    def _said(self) -> dict[str, Any]:
        command, life, ready = self._heard, self._life, int(self._staged is not None)
        status = StatusWord(*command[:2], self._code, 0, ready, int(life.weights), int(life.kv))
        return {
            "rank": self._worker.rank,
            "life": ALIVE,
            "process": self._process,
            "weights": life.weights.name,
            "kv": life.kv.name,
            "words": [self._term, command.pack(), status.pack(), self._committed.pack()],
            "first_is_read": self._reading is None or command.operation is not Operation.NONE,
            "fingerprint": self._fingerprint,
            "error": self._error,
            "staged": self._staged and self._staged.said(),
            "served": self._served and self._served.said(),
        }


def _require_all(staged: HeldCheckpoint, read: list[str]) -> None:
    if len(read) != len(staged.tensors):
        problem = f"vLLM's loaders took {len(read)} of {len(staged.tensors)} tensors"
        raise GroupError(problem, code="half-read")


def _how_far(command: CommandWord) -> tuple[int, int, bool]:
    return command.epoch, command.sequence, command.operation.is_decision
