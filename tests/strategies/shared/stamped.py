"""The applier as a load calls it: its errors say whether the target was touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from typing import Any

from wsm.strategies.applier import apply, feeding
from wsm.strategies.observer import LoadObserver, Taint, stamping
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.tensor import TensorSpec, WeightTarget


def _stamped(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def stamped(offered: Any, *more: Any, **options: Any) -> Any:
        *targets, observer = more
        assert isinstance(observer, LoadObserver)
        taint = Taint(observer.taint)
        with stamping(taint):
            return call(offered, *targets, replace(observer, taint=taint), **options)

    return stamped


def apply_tensors(
    tensors: Iterable[OfferedTensor],
    target: WeightTarget,
    observer: LoadObserver,
    *,
    declared: bool = True,
    promised: Iterable[TensorSpec] | None = None,
    **options: Any,
) -> apply.Applied:
    """Apply them as an offer, which threads may read."""
    offer = Offer(
        version=None,
        tensors=tensors,
        files=(),
        manifest_digest=None,
        manifest_scope=ManifestScope.LOADED,
        declared=declared,
        parallel=declared,
        promised=None if promised is None else tuple(promised),
    )
    applied: apply.Applied = _applied(offer, target, observer, **options)
    return applied


def of_bytes(
    name: str,
    data: bytes,
    *,
    dtype: str = "U8",
    shape: tuple[int, ...] | None = None,
    digest: str | None = None,
) -> OfferedTensor:
    """A tensor of these bytes, flat if nothing else is said."""
    spec = TensorSpec(name, dtype, (len(data),) if shape is None else shape)
    return OfferedTensor.of_bytes(spec, "a stream", memoryview(data), digest)


_applied = _stamped(apply.apply_tensors)
feed = _stamped(feeding.feed)
