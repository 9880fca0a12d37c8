"""From a configuration to the function that the load action calls.

Responsible for fitting a strategy's arguments and report to what actions expect. It knows strategies
and actions, no words and no states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wsm.actions.base import ActionContext
from wsm.config import WsmConfig
from wsm.strategies.errors import UnknownStrategyError
from wsm.strategies.load import inspect, load
from wsm.strategies.registry import STRATEGIES
from wsm.strategies.snapshot_source import SnapshotSource
from wsm.strategies.tensor import WeightTarget
from wsm.worker.errors import UnversionedWeightsError
from wsm.worker.execution import Load


def load_function(config: WsmConfig) -> Load:
    """Return ``load(context, target) -> facts`` for the configured strategy.

    The facts are ``version``, ``manifest_digest``, ``manifest_scope``, ``digest``, ``bytes``, ``tensors``,
    ``files``, ``load_s`` and ``peak_extra_bytes``.

    Raises
    ------
    wsm.strategies.errors.UnknownStrategyError
        If there is no such strategy: now, not at the first update.
    """
    if config.strategy not in STRATEGIES:
        raise UnknownStrategyError(name=config.strategy, known=sorted(STRATEGIES))

    def load_snapshot(context: ActionContext, target: WeightTarget) -> Mapping[str, Any]:
        snapshot = config.snapshot
        source = SnapshotSource(
            snapshot.directory,
            rank=context.rank,
            device_id=snapshot.device_ids[context.rank] if snapshot.device_ids else None,
            world_size=context.world_size,
            shared_directory=snapshot.shared_directory,
            allow_pickle=snapshot.allow_pickle,
        )
        if context.version is None:
            _require_version(source, config.strategy)
        report = load(
            source,
            target,
            name=config.strategy,
            version=context.version,
            progress=lambda _done, _total: context.progress(),
            cancelled=context.cancelled,
        )
        return {
            "version": report.version if report.version is not None else context.version,
            "manifest_digest": report.manifest_digest,
            "manifest_scope": report.manifest_scope.value,
            "digest": report.digest,
            "bytes": report.bytes,
            "tensors": report.tensors,
            "files": list(report.files),
            "load_s": report.seconds,
            "peak_extra_bytes": report.peak_extra_bytes,
        }

    return load_snapshot


def _require_version(source: SnapshotSource, strategy: str) -> None:
    """Refuse weights that nobody can name, before the first byte of them is applied."""
    preview = inspect(source, name=strategy)
    if preview.version is None:
        raise UnversionedWeightsError(strategy=strategy, files=preview.files)
