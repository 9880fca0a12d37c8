"""When an update that was asked for hot is done in place instead, because there is no room for two versions.

Only where the command says so, and only for refusals that an ordinary update does not share: a version that
cannot be read is no better in place. Writes nothing.
"""

from __future__ import annotations

from wsm.controller.errors import CommandRefusedError, NothingServedError, RankFailedError
from wsm.controller.order import Order
from wsm.errors import WsmError
from wsm.states.vocabulary import HotFallback, WeightState


def before_it_began(order: Order, state: WeightState) -> str | None:
    """Return why an order cannot be hot from where the group is; None if it can, or never was.

    Raises
    ------
    NothingServedError
        If it cannot and must not be done otherwise.
    """
    if not order.is_hot or state is WeightState.NORMAL:
        return None
    refusal = NothingServedError(state=state.name)
    if order.arguments.hot_fallback is HotFallback.REFUSE:
        raise refusal
    return str(refusal)


def after_it_was_refused(order: Order, error: WsmError) -> str | None:
    """Return why an order is to be done in place, given how its hot command ended; None if it is not."""
    allowed = order.is_hot and order.arguments.hot_fallback is HotFallback.IN_PLACE
    refused = isinstance(error, CommandRefusedError | RankFailedError) and error.context["no_room"]
    return str(error) if allowed and refused else None
