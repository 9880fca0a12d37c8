"""Every pair of a hold's state and an event, and what each state means to text and to a blind release."""

from __future__ import annotations

import itertools

from wsm.http.hold_table import HoldEvent, HoldState, Meaning, Text, failure, meaning, state_of, success
from wsm.states.holding import ClosedBy, ClosedHold, Hold

O, X, H, D, F, R = HoldState  # noqa: E741 - open, foreign, held, delayed, failed, refused

#: The state behind each event, by the state before it.
BEHIND = {
    HoldEvent.REFUSED: {O: O, X: X, H: R, D: R, F: R, R: R},
    HoldEvent.FAILED: {O: O, X: X, H: F, D: F, F: F, R: R},
    HoldEvent.DELAYED: {O: O, X: X, H: D, D: D, F: D, R: R},
    HoldEvent.FAILED_ELSEWHERE: {O: O, X: X, H: H, D: D, F: F, R: R},
    HoldEvent.UPDATED: {O: O, X: X, H: H, D: H, F: H, R: R},
    HoldEvent.UPDATED_ELSEWHERE: {O: O, X: X, H: H, D: D, F: F, R: R},
    HoldEvent.SENT: {O: O, X: X, H: H, D: H, F: H, R: H},
}

MEANS = {
    O: (Text.PASSES, True),
    X: (Text.WAITS, True),
    H: (Text.WAITS, True),
    D: (Text.WAITS, False),
    F: (Text.FAILS, False),
    R: (Text.FAILS, False),
}


def test_every_event_makes_of_every_state_what_is_written_here() -> None:
    found = {event: {state: meaning(state, event).state for state in HoldState} for event in HoldEvent}
    assert found == BEHIND


def test_a_state_means_the_same_however_it_came_about() -> None:
    for state, event in itertools.product(HoldState, [None, *HoldEvent]):
        now = meaning(state, event)
        assert now == Meaning(now.state, *MEANS[now.state])


def test_no_series_of_failures_lets_a_closed_hold_be_released() -> None:
    harm = [event for event in HoldEvent if "failed" in event.value or "refused" in event.value]
    for before, *events in itertools.product([D, F, R], *[harm] * 3):
        state = before
        for event in events:
            state = meaning(state, event).state
            assert not meaning(state).may_release


def hold(owner: str, by: ClosedBy | None = None) -> Hold:
    closed = None if by is None else ClosedHold("vllm", "/pause", "why", by=by)
    return Hold("h", owner, closed=closed)


def test_a_hold_has_its_state_from_its_owner_and_from_what_closed_it() -> None:
    assert [state_of(each) for each in (None, hold("trainer"), hold("http:vllm"))] == [O, X, H]
    assert {by: state_of(hold("http:vllm", by)) for by in ClosedBy} == {
        ClosedBy.DELAYED: D,
        ClosedBy.FAILED: F,
        ClosedBy.REFUSED: R,
    }


def test_an_event_is_of_the_surface_whose_hold_it_is() -> None:
    own, other = hold("http:vllm"), hold("http:sglang")
    assert failure(ClosedBy.REFUSED, other, "vllm") is HoldEvent.REFUSED
    assert failure(ClosedBy.FAILED, None, "vllm") is HoldEvent.FAILED
    assert failure(ClosedBy.FAILED, own, "vllm") is HoldEvent.FAILED
    assert failure(ClosedBy.DELAYED, own, "vllm") is HoldEvent.DELAYED
    assert failure(ClosedBy.DELAYED, other, "vllm") is HoldEvent.FAILED_ELSEWHERE
    failed = hold("http:vllm", ClosedBy.FAILED)
    assert success(failed, "vllm", sent=False) is HoldEvent.UPDATED
    assert success(failed, "sglang", sent=False) is HoldEvent.UPDATED_ELSEWHERE
    assert success(failed, "sglang", sent=True) is HoldEvent.SENT
