"""Who may hold a group and release it, what a command leaves of that, and what a lease that ran out means."""

from __future__ import annotations

import pytest

from wsm.states import holding
from wsm.states.holding import Answer, Hold
from wsm.states.vocabulary import Admission, AdmissionEvent, After, InFlightPolicy, OnLease, Tag

MINE = Hold("h1", "trainer")
LEASED = Hold("h1", "trainer", lease_s=10.0, on_lease=OnLease.SERVE, renewed_ns=0)
EXPIRED_NS = 11 * 10**9


@pytest.mark.parametrize(
    ("after", "held", "then"),
    [
        (After.AS_BEFORE, False, False),
        (After.AS_BEFORE, True, True),
        (After.HELD, False, True),
        (After.HELD, True, True),
        (After.SERVE, False, False),
        (After.SERVE, True, False),
    ],
)
def test_a_command_leaves_of_admission_what_it_says_and_by_default_what_was(
    after: After, held: bool, then: bool
) -> None:
    assert holding.held_after(after, held=held) is then


def test_a_machine_is_fired_only_where_it_is_not_what_was_decided() -> None:
    assert holding.event_to(Admission.OPEN, held=True) is AdmissionEvent.HOLD
    assert holding.event_to(Admission.HELD, held=False) is AdmissionEvent.RELEASE
    assert holding.event_to(Admission.OPEN, held=False) is None
    assert holding.event_to(Admission.HELD, held=True) is None


def test_a_hold_is_renewed_by_its_owner_and_refused_to_any_other() -> None:
    assert holding.asked_to_hold(None, held=False, owner="trainer") is Answer.COMMAND
    assert holding.asked_to_hold(MINE, held=True, owner="trainer") is Answer.RENEW
    assert holding.asked_to_hold(MINE, held=True, owner="operator") is Answer.NOT_THE_OWNER


@pytest.mark.parametrize(
    ("held", "owner", "forced", "missing", "answer"),
    [
        (False, "operator", False, {Tag.WEIGHTS}, Answer.NOTHING),
        (True, "trainer", False, (), Answer.COMMAND),
        (True, "operator", False, (), Answer.NOT_THE_OWNER),
        (True, "operator", True, (), Answer.COMMAND),
        (True, "trainer", False, {Tag.KV_CACHE}, Answer.CANNOT_SERVE),
        (True, "operator", True, {Tag.KV_CACHE}, Answer.CANNOT_SERVE),
    ],
)
def test_a_group_is_released_by_the_owner_or_by_force_and_only_where_it_can_serve(
    held: bool, owner: str, forced: bool, missing: set[Tag], answer: Answer
) -> None:
    found = holding.asked_to_release(MINE, held=held, owner=owner, forced=forced, missing=missing)
    assert found is answer


def test_a_command_that_names_a_hold_is_good_while_that_very_hold_is_in_force() -> None:
    assert holding.is_in_force(MINE, None, held=True)
    assert holding.is_in_force(None, None, held=False)
    assert holding.is_in_force(MINE, "h1", held=True)
    assert not holding.is_in_force(MINE, "h2", held=True)
    assert not holding.is_in_force(MINE, "h1", held=False)
    assert not holding.is_in_force(None, "h1", held=True)


def test_the_in_flight_policy_under_a_hold_is_the_holds_unless_the_command_says_another() -> None:
    abort, keep, drain = InFlightPolicy.ABORT, InFlightPolicy.KEEP, InFlightPolicy.DRAIN
    kept = Hold("h1", "trainer", in_flight=keep)
    assert holding.in_flight_under(kept, None, abort) is keep
    assert holding.in_flight_under(kept, abort, keep) is abort
    assert holding.in_flight_under(None, None, keep) is keep
    assert holding.in_flight_objection(drain, held=True, set_aside=2)
    assert holding.in_flight_objection(drain, held=True, set_aside=None)
    assert holding.in_flight_objection(drain, held=True, set_aside=0) is None
    assert holding.in_flight_objection(drain, held=False, set_aside=2) is None
    assert holding.in_flight_objection(keep, held=True, set_aside=2) is None


@pytest.mark.parametrize(
    ("hold", "now_ns", "known", "due"),
    [
        (LEASED, EXPIRED_NS, {}, True),
        (LEASED, EXPIRED_NS, {"whole": False}, False),
        (LEASED, EXPIRED_NS, {"is_over": False}, False),
        (LEASED, EXPIRED_NS, {"whole": False, "owed": True}, False),
        (LEASED, EXPIRED_NS, {"held": False}, False),
        (LEASED, 9 * 10**9, {}, False),
        (MINE, EXPIRED_NS, {}, False),
        (None, EXPIRED_NS, {}, False),
        (Hold("h1", "trainer", lease_s=10.0), EXPIRED_NS, {}, False),
        (Hold("h1", "trainer", lease_s=10.0, renewed_ns=2 * 10**9), EXPIRED_NS, {}, False),
    ],
)
def test_a_lease_that_ran_out_serves_only_what_is_whole_and_waits_for_what_is_open(
    hold: Hold | None, now_ns: int, known: dict[str, bool], due: bool
) -> None:
    usual = {"held": True, "is_over": True, "whole": True, "owed": False}
    assert holding.lease_ends(hold, now_ns, **(usual | known)) is due
