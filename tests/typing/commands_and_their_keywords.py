"""Every form of a command takes the keywords of its command, and no other; checked by mypy only."""

from __future__ import annotations

from wsm import Controller, Receipt
from wsm.controller import Pending, Prepared
from wsm.states.vocabulary import Tag


def every_form(controller: Controller) -> tuple[Receipt, Pending, Prepared]:
    receipt = controller.update("7", tags=[Tag.WEIGHTS], transfer_mode="direct", wait_s=1)
    controller.hold(owner="trainer", lease_s=5, on_lease="serve")
    controller.release(force=True)
    return receipt, controller.begin_clear(hold="one"), controller.prepare(7, lease_s=3.0, hot=False)


async def every_form_in_a_coroutine(controller: Controller) -> tuple[Receipt, Prepared]:
    await controller.begin_hold(owner="trainer")
    return await controller.begin_update(7, force=True), await controller.begin_prepare(7, lease_s=3.0)


async def keywords_that_are_none(controller: Controller) -> None:
    controller.update(7, hott=True)  # type: ignore[call-arg] # misspelt
    controller.clear(hot=True)  # type: ignore[call-arg] # of another command
    controller.begin_update(7, lease_s=3.0)  # type: ignore[call-arg] # of another command
    controller.hold(owner=7)  # type: ignore[arg-type] # no name
