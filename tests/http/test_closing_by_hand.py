"""Closing and opening the hold of a group in one thread, as servers do, with nothing between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.raising import raising
from wsm.controller import errors
from wsm.controller.group_view import GroupAccess
from wsm.http.closed_holds import ClosedHolds
from wsm.receipt import Receipt
from wsm.states.holding import ClosedBy, ClosedHold
from wsm.states.vocabulary import After, Tag
from wsm.strategies.tensor import TensorSpec
from wsm.testing import InMemoryRunner, LocalGroup

WHY = ClosedHold("vllm", "/update_weights", "digest-mismatch", "6", ClosedBy.FAILED)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalGroup]:
    """A group of two ranks that serves version 6."""
    specs = [TensorSpec("layer", "F32", (4,))]
    with LocalGroup(lambda _: InMemoryRunner(specs), tmp_path) as made:
        made.update(6)
        yield made


@pytest.fixture
def access(group: LocalGroup, tmp_path: Path) -> Iterator[GroupAccess]:
    made = GroupAccess("tested", directory=tmp_path)
    yield made
    made.close()


@pytest.fixture
def holds(group: LocalGroup, access: GroupAccess) -> ClosedHolds:
    return ClosedHolds(lambda: (group.controller, access))


def test_a_failure_closes_the_hold_that_is_there_and_a_group_that_is_open_stays_so(
    group: LocalGroup, holds: ClosedHolds
) -> None:
    assert not holds.close("vllm", WHY)
    assert group.controller.status().serving
    group.hold(owner="http:vllm")
    assert holds.close("vllm", WHY)
    assert holds.now()[1] == WHY


def test_a_failure_of_before_the_weights_changed_closes_nothing(
    group: LocalGroup, holds: ClosedHolds
) -> None:
    group.hold(owner="http:vllm")
    group.update(7)
    assert not holds.close("vllm", WHY), "another update has brought other weights meanwhile"
    assert holds.now()[0].may_release


def test_an_update_that_is_to_serve_under_anothers_hold_brings_nothing(
    group: LocalGroup, holds: ClosedHolds
) -> None:
    group.hold(owner="trainer")

    def update(after: After) -> Receipt:
        return group.update(7, after=after, owner="http:vllm")

    with raising("held-by-another"):
        holds.update(update, tags=None, owner="http:vllm")
    assert group.controller.status().version == "6"


def test_a_kv_cache_opens_no_closed_hold_and_is_not_brought_in_vain(
    group: LocalGroup, holds: ClosedHolds
) -> None:
    group.hold(owner="http:vllm")
    cache = frozenset({Tag.KV_CACHE})
    group.clear(tags=cache)
    assert holds.close("vllm", WHY)
    before = group.memory()

    def update(after: After) -> Receipt:
        return group.update(after=after, tags=cache, owner="http:vllm")

    with raising(errors.hold_closed):
        holds.update(update, tags=cache, owner="http:vllm")
    assert group.memory() == before


def test_an_update_whose_hold_was_forced_open_meanwhile_is_answered_by_what_it_has_done(
    group: LocalGroup, holds: ClosedHolds
) -> None:
    group.hold(owner="http:vllm")
    assert holds.close("vllm", WHY)

    def update(after: After) -> Receipt:
        try:
            return group.update(6, after=after, force=True, owner="http:vllm")
        finally:
            if after is After.SERVE:
                group.release(force=True)

    receipt = holds.update(update, tags=None, owner="http:vllm")
    assert (receipt.version, receipt.hold) == ("6", None)
