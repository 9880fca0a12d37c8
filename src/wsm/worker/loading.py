"""From a configuration to the function that the load action calls.

Responsible for fitting a strategy's arguments and report to what actions expect. It knows strategies
and actions, no words and no states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wsm.actions.base import ActionContext
from wsm.config import WsmConfig
from wsm.errors import BadInputError
from wsm.strategies.load import inspect, load
from wsm.strategies.snapshot_source import SnapshotSource
from wsm.strategies.tensor import WeightTarget
from wsm.worker.execution import Load


class UnversionedWeightsError(BadInputError):
    """Neither the command nor the source says which version is to be loaded."""

    def __init__(self, *, strategy: str, files: tuple[str, ...]) -> None:
        first = files[0] if files else "none"
        super().__init__(
            f"{strategy} found {len(files)} file(s), first {first}: neither they nor the command "
            "name a version; name one (--version), or publish with a manifest and version.yaml",
            strategy=strategy,
            files=files,
        )


def load_function(config: WsmConfig) -> Load:
    """Return ``load(context, target) -> facts`` for the configured strategy.

    The facts are ``version``, ``manifest_digest``, ``manifest_scope``, ``digest``, ``bytes``, ``tensors``,
    ``files``, ``load_s`` and ``peak_extra_bytes``.
    """

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
