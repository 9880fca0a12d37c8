"""Pushed weights on one rank: an engine of vLLM receives them, and what it gives to the model is digested.

Theory of operation
-------------------
``wsm+nccl`` is vLLM's ``nccl`` under another name: a server that is started with it takes pushes. The rank's
one method, which never raises (:mod:`.extension`), calls the engine as a part of an update: from a trainer's
start the rank is touched; behind its finish the rank is PREPARED, and votes.

An engine gives the tensors of a checkpoint to the model's ``load_weights``. They are digested there, on their
way. What an engine writes past it is not seen, and has not come.
"""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from wsm.errors import GroupError
from wsm.strategies.adopt.record import marked_label
from wsm.strategies.digest import digest_of
from wsm.strategies.tensor import TensorSpec
from wsm.strategies.trainer.tensors import tensor_of
from wsm.vllm.versions import VersionPlace, proven_digest, said_of

#: Before the name of an engine of vLLM's.
PREFIX = "wsm+"
#: The first and the last verb of vLLM's worker for a push.
START, FINISH = "start_weight_update", "finish_weight_update"


def register() -> None:
    """Let vLLM know each engine by a second name: its general plugin, in every process. Idempotent.

    Raises
    ------
    WsmError
        If the words that vLLM is started with are none that wsm can keep; no model is loaded then.
    """
    is_first = multiprocessing.parent_process() is None
    if is_first and sys.argv[1:2] == ["serve"] and "wsm" in os.environ.get("VLLM_PLUGINS", "").split(","):
        from wsm.vllm.options import check_words  # noqa: PLC0415 - workers serve nothing

        check_words(sys.argv[2:], is_vllm=True)
    engines = importlib.import_module(
        "vllm.distributed.weight_transfer"
    ).WeightTransferEngineFactory._registry
    for name, load in [*engines.items()]:
        if not name.startswith(PREFIX):
            engines.setdefault(f"{PREFIX}{name}", load)
    if is_first:
        atexit.register(_remove_names)


def _remove_names() -> None:
    from wsm.vllm.api_servers import ApiServers  # noqa: PLC0415 - workers serve nothing

    ApiServers().remove_names()


class PushedVersion:
    """A version that a trainer pushes, as far as it has come.

    Each tensor of `layout` must come, unless it is what changes over another version.
    """

    def __init__(self, place: VersionPlace, layout: Mapping[str, TensorSpec] | None) -> None:
        self.place, self.digest = place, ""
        self._wanted = frozenset[str]() if place.over is not None else frozenset(layout or ())
        self._came: dict[str, tuple[TensorSpec, str]] = {}

    def said(self) -> dict[str, Any]:
        """Return what a receipt says of it."""
        said = said_of(self.place, self.digest, (spec for spec, _ in self._came.values()))
        return said | {"read_bytes": 0, "memory_bytes": 0}

    def take(self, worker: Any, sent: Mapping[str, Any], place: VersionPlace) -> bool:
        """Do a trainer's verb; return whether that was the last, and `place` names it. Blocks as its engine.

        A trainer that counts anew has pushed it all before it gives a label. Where that has meant other
        content, this one gets a label of its own.

        Raises
        ------
        Exception
            Whatever the engine raises; and at the end, if tensors have not come (``half-pushed``).
        """
        model = worker.weight_transfer_engine.model
        model.load_weights = self._digesting(model.load_weights)
        try:
            getattr(worker, sent["verb"])(*sent["given"])
        finally:
            del model.load_weights
        return sent["verb"] == FINISH and self._finish(place)

    def _digesting(self, load_weights: Any) -> Any:
        def load(weights: Iterable[tuple[str, Any]], *more: Any, **named: Any) -> Any:
            return load_weights(self._seen(weights), *more, **named)

        return load

    def _seen(self, weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        for name, tensor in weights:
            spec, data = tensor_of(name, tensor)
            found = digest_of(data)
            if name in self._came:  # a patch over a patch
                found = digest_of(f"{self._came[name][1]}{found}".encode())
            self._came[name] = spec, found
            yield name, tensor

    def _finish(self, place: VersionPlace) -> bool:
        missing = sorted(self._wanted - self._came.keys())
        if missing:
            problem = f"{len(missing)} of {len(self._wanted)} tensors have not come, {missing[0]} first"
            fix = "push all of them, or start vLLM with partial_pushes"
            raise GroupError(f"{problem}; {fix}", code="half-pushed", tensor=missing[0])
        whole = proven_digest(msgspec.structs.replace(place, digest=None), self._came.values())
        if place.digest not in (None, whole):
            place = msgspec.structs.replace(place, version=marked_label(place.version, whole), digest=None)
            whole = proven_digest(place, self._came.values())
        self.place, self.digest = place, whole
        return True
