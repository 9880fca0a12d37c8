"""The one registry of load strategies, used by boot, update and wake-up alike.

FastDeploy keeps one map for updates and one for reloads, and they drifted apart. A new strategy is one
module plus one entry here.
"""

from __future__ import annotations

from collections.abc import Mapping

from wsm.strategies.buckets.ipc_async import IpcAsync
from wsm.strategies.delta.strategy import Delta
from wsm.strategies.errors import SourceTypeError, UnknownStrategyError
from wsm.strategies.ipc.strategy import Ipc
from wsm.strategies.offer import Strategy
from wsm.strategies.snapshot.ipc_snapshot import IpcSnapshot
from wsm.strategies.transports.gdr import Gdr
from wsm.strategies.transports.rsync import Rsync

#: Every strategy, under the name that configuration and command line know it by.
STRATEGIES: Mapping[str, Strategy] = {
    "ipc_snapshot": IpcSnapshot(),
    "ipc": Ipc(),
    "ipc_async": IpcAsync(),
    "delta": Delta(),
    "rsync": Rsync(),
    "gdr": Gdr(),
}


def strategy_for(name: str, source: object) -> Strategy:
    """Return the strategy called `name`.

    Raises
    ------
    UnknownStrategyError
        If there is none.
    SourceTypeError
        If it does not load from such a source.
    """
    strategy = STRATEGIES.get(name)
    if strategy is None:
        raise UnknownStrategyError(name=name, known=sorted(STRATEGIES))
    if not isinstance(source, strategy.source_type):
        raise SourceTypeError(
            strategy=name, expected=strategy.source_type.__name__, found=type(source).__name__
        )
    return strategy
