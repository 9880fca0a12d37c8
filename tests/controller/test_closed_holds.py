"""Why a hold is closed stands in the segment: it opens by other weights that commit, or by force, alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from tests.raising import raising
from wsm.actions.base import ActionContext, Loaded
from wsm.controller import errors
from wsm.controller.abandoned_commands import revise_hold
from wsm.controller.group_view import GroupAccess
from wsm.payload import convert
from wsm.signals.errors import RoleBusyError
from wsm.states import decide, holding
from wsm.states.holding import Answer, ClosedBy, ClosedHold, Hold
from wsm.states.vocabulary import After, OnLease, Tag
from wsm.strategies.tensor import TensorSpec, WeightTarget
from wsm.testing import InMemoryRunner, LocalGroup, load_bytes

NAME = "tested"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalGroup]:
    """A group of two ranks that serves version 6."""
    specs = [TensorSpec("layer", "F32", (4,))]
    with LocalGroup(lambda _: InMemoryRunner(specs), tmp_path) as made:
        made.update(6)
        yield made


@pytest.fixture
def access(group: LocalGroup, tmp_path: Path) -> Iterator[GroupAccess]:
    made = GroupAccess(NAME, directory=tmp_path)
    yield made
    made.close()


def close(access: GroupAccess, by: ClosedBy = ClosedBy.REFUSED) -> None:
    why = ClosedHold("sglang", "/update_weights_from_tensor", "push-unverifiable", "6", by)
    revise_hold(access, lambda hold, _: structs.replace(hold, closed=why), wait_s=0)


def closed(access: GroupAccess) -> bool:
    hold = access.group.known_hold(access.group.view())
    return hold is not None and hold.closed is not None


def test_no_blind_release_opens_a_closed_hold_and_force_does(group: LocalGroup, access: GroupAccess) -> None:
    held = group.hold(owner="http:sglang")
    close(access)
    for blind in ({"owner": "http:sglang"}, {"owner": "http:sglang", "hold": held.request_id}):
        with raising(errors.hold_closed):
            group.release(**blind)
    assert group.hold(owner="http:sglang", lease_s=1e-6, on_lease="serve").hold is not None
    assert closed(access), "its owner has asked for it again"
    assert group.controller.status().hold.closed.reason == "push-unverifiable"
    assert "--force" in group.controller.status().advice[0]
    assert group.release(force=True).serving


@pytest.mark.slow_but
@pytest.mark.parametrize("by", ClosedBy)
def test_other_weights_that_commit_open_it_and_those_that_were_there_do_not(
    group: LocalGroup, access: GroupAccess, by: ClosedBy
) -> None:
    group.hold(owner="o")
    close(access, by)
    group.clear()
    group.update(6, force=True)
    assert closed(access), "a restore by hand"
    group.replace(1)
    assert closed(access), "a death, and the restore behind it"
    with raising(errors.hold_closed):
        group.update(after=After.SERVE, owner="o")
    with raising(errors.hold_closed):
        group.update(6, after=After.SERVE, owner="o")
    group.update(7)
    assert not closed(access)
    assert group.release(owner="o").serving


def test_other_content_under_the_same_label_opens_it(tmp_path: Path) -> None:
    specs, meant = [TensorSpec("layer", "F32", (4,))], ["6"]

    def load(context: ActionContext, target: WeightTarget) -> Loaded:
        return replace(load_bytes(replace(context, version=meant[-1]), target), version="step")

    with LocalGroup(lambda _: InMemoryRunner(specs), tmp_path, load=load) as group:
        access = GroupAccess(NAME, directory=tmp_path)
        group.update("step")
        group.hold(owner="o")
        why = ClosedHold("sglang", "/push", "push-unverifiable", "step")
        revise_hold(access, lambda hold, _: structs.replace(hold, closed=why), wait_s=0)
        group.update("step", force=True)
        assert closed(access), "the weights that were there"
        meant.append("7")
        group.update("step", force=True)
        assert not closed(access)
        access.close()


def test_an_update_that_serves_opens_it_where_it_names_other_weights(
    group: LocalGroup, access: GroupAccess
) -> None:
    group.hold(owner="o")
    close(access)
    group.clear(tags={Tag.KV_CACHE})
    with raising(errors.hold_closed):
        group.update(tags={Tag.KV_CACHE}, after=After.SERVE, owner="o")
    assert group.update(7, after=After.SERVE, owner="o").serving


def test_what_was_prepared_before_the_hold_was_closed_opens_it_by_other_weights_alone(
    group: LocalGroup, access: GroupAccess
) -> None:
    group.hold(owner="o")
    for version, opens in ((6, False), (7, True)):
        leased = group.controller.lease(version, hot=False, force=True, after=After.SERVE, owner="o")
        close(access)
        if opens:
            assert group.controller.commit(leased.request_id).serving
        else:
            with raising(errors.hold_closed):
                group.controller.commit(leased.request_id)
            group.controller.abort(leased.request_id)
            group.update(6)


def test_a_hold_is_closed_under_the_controller_role(group: LocalGroup, access: GroupAccess) -> None:
    group.hold(owner="o")
    with access.group.role.acquire(0), pytest.raises(RoleBusyError):
        close(access)
    assert not closed(access)


def test_a_release_that_a_dead_controller_had_decided_is_ended_before_its_hold_is_closed(
    group: LocalGroup, access: GroupAccess
) -> None:
    group.hold(owner="o")
    held = access.group.view().committed
    group.release(owner="o")
    access.group.write_committed(held)  # as if it had died before it could store that word
    assert decide.lacks_a_word(access.group.view())
    close(access)
    assert not closed(access)
    assert group.controller.status().hold is None
    assert group.step() == "6"


def test_what_a_closed_hold_lets_through() -> None:
    why = ClosedHold("vllm", "/init_communicator", "push-unverifiable", "6")
    hold = Hold("h", "o", lease_s=1.0, on_lease=OnLease.SERVE, closed=why)
    assert convert(Hold, hold.facts()) == hold
    assert "closed" not in structs.replace(hold, closed=None).facts()

    def released(*, forced: bool, missing: tuple[Tag, ...] = ()) -> Answer:
        return holding.asked_to_release(hold, held=True, owner="o", forced=forced, missing=missing)

    assert released(forced=False) is Answer.CLOSED
    assert released(forced=True) is Answer.COMMAND
    assert released(forced=True, missing=(Tag.WEIGHTS,)) is Answer.CANNOT_SERVE
    assert not holding.lease_ends(hold, 10**12, held=True, is_over=True, whole=True, owed=False)
    assert holding.keeps_closed(hold, "6", loads=True, restores=False) is why
    assert holding.keeps_closed(hold, "7", loads=True, restores=True) is why
    assert holding.keeps_closed(hold, "7", loads=True, restores=False) is None
    with pytest.raises(ValueError, match="nobody"):
        convert(Hold, {**hold.facts(), "closed": {**hold.facts()["closed"], "by": "nobody"}})
