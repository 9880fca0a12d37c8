"""The applier as a load calls it: its errors say whether the target was touched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from wsm.strategies.applier import apply, feeding
from wsm.strategies.observer import LoadObserver, Taint, stamping


def _stamped(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def stamped(offered: Any, *more: Any, **options: Any) -> Any:
        *targets, observer = more
        assert isinstance(observer, LoadObserver)
        taint = Taint(observer.taint)
        with stamping(taint):
            return call(offered, *targets, replace(observer, taint=taint), **options)

    return stamped


apply_tensors = _stamped(apply.apply_tensors)
feed_loaders = _stamped(feeding.feed_loaders)
feed_models = _stamped(feeding.feed_models)
