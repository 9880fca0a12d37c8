"""What the audit of a campaign tells: tokens of no version or an unproved one, and refusals without cause."""

from __future__ import annotations

from tests.vllm.audit import CLOSED, Answer, Era, Span, broken_promises

PROMPT = (7,)
MADE = {("A", PROMPT): (1, 2, 3, 4), ("B", PROMPT): (5, 6, 7, 8)}
ERAS = [
    Era(0.0, {"A"}),
    Era(10.0, {"A", "B"}),
    Era(20.0, {"B"}),
    Era(30.0, set(), CLOSED),
    Era(40.0, {"A"}),
]


def continues(_version, before, _tokens):
    return (9, 9) if before == (7, 1, 2) else ()


def told(began, tokens=(), spans=(), status=200):
    one = Answer(began, began + 1.0, PROMPT, status, tokens, tuple(Span(*span) for span in spans))
    return broken_promises(
        [one], ERAS, MADE, lambda version, before, _: (9, 9) if before == (7, 1, 2) else ()
    )


def test_tokens_of_a_version_are_those_that_it_made_without_any_fault():
    assert told(1.0, (1, 2), [("A", 0, 2)]) == []
    assert "version A answers (1, 2)" in told(1.0, (1, 6), [("A", 0, 2)])[0]
    assert "of no version" in told(1.0, (1, 2, 3), [("A", 0, 2)])[0]


def test_a_version_answers_only_while_it_is_proved():
    for began, proved in (
        (1.0, False),
        (9.5, True),
        (15.0, True),
        (29.5, True),
        (32.0, False),
        (45.0, False),
    ):
        assert (told(began, (5,), [("B", 0, 1)]) == []) is proved


def test_tokens_behind_a_change_are_those_that_the_new_version_continues_with():
    assert told(15.0, (1, 2, 9, 9), [("A", 0, 2), ("B", 2, 4)]) == []
    assert len(told(15.0, (1, 2, 3, 4), [("A", 0, 2), ("B", 2, 4)])) == 1


def test_a_refusal_is_answered_by_a_closed_gate_alone():
    assert told(32.0, status=503) == told(29.5, status=503) == []
    assert "refused" in told(25.0, status=503)[0]
    assert "refused" in told(32.0, status=500)[0]
