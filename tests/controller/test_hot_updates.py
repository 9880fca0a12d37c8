"""Updates that are asked for hot: what they are refused for, and when they are done in place instead."""

from __future__ import annotations

import pytest

from wsm import HotFallback, Outcome
from wsm.controller.errors import HotFallbackError, NothingServedError

pytestmark = pytest.mark.processes


def test_a_fallback_that_does_not_exist_is_refused_before_anything_is_written(group):
    with group.boot() as controller:
        with pytest.raises(HotFallbackError, match="'maybe'; say one of refuse, in_place"):
            controller.update(1, hot=True, hot_fallback="maybe", force=True)
        assert controller.status().sequence == 1


def test_a_group_that_serves_nothing_cannot_be_updated_hot(group):
    with group.boot() as controller:
        controller.clear()
        with pytest.raises(NothingServedError, match="every rank is CLEARED"):
            controller.update(1, hot=True)
        assert (controller.status().sequence, controller.status().controller_pid) == (2, None)
        assert controller.update(1).version == 1


def test_a_group_that_serves_nothing_is_updated_in_place_where_that_is_allowed_and_the_receipt_says_why(
    group,
):
    with group.boot() as controller:
        controller.clear()
        receipt = controller.update(1, hot=True, hot_fallback=HotFallback.IN_PLACE, request_id="either way")
        assert (receipt.outcome, receipt.hot, receipt.staging_s) == (Outcome.UPDATED, False, 0)
        assert receipt.request_id == "either way"
        assert "every rank is CLEARED" in receipt.fallback
        assert controller.status().serving


def test_a_version_that_is_served_already_is_not_staged(group):
    with group.boot() as controller:
        receipt = controller.update(1, hot=True)
        assert (receipt.outcome, receipt.loaded, receipt.hot) == (Outcome.ALREADY_SERVED, False, False)
        assert controller.status().sequence == 1
