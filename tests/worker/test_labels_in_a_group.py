"""A group that is commanded by labels: what it serves, what it says, and which label it refuses."""

from __future__ import annotations

import json

import pytest
from lone_rank import load

from tests.raising import raising
from wsm.actions.options import PlanOptions
from wsm.controller.errors import CommandRefusedError, RankFailedError
from wsm.journal import entry as kinds
from wsm.labels import bad_version, version_id
from wsm.receipt import Outcome
from wsm.states.vocabulary import WeightState
from wsm.strategies.digest import digest_of
from wsm.typed import bad_keyword

LABEL = "global_step_1200:a+b"
#: Found by a search over step_0, step_1, ...: the first two labels with one number.
ALIKE = ("step_520427", "step_803510")


def test_receipt_permit_status_and_journal_name_the_label(make_lone):
    lone = make_lone()
    first = lone.update(LABEL)
    assert (first.version, first.previous_version) == (LABEL, None)
    with lone.worker.step() as permit:
        assert permit.version == LABEL
    hot = lone.update("Step-2", hot=True)
    assert (hot.version, hot.previous_version, hot.hot) == ("Step-2", LABEL, True)
    status = lone.controller.status()
    assert (status.version, lone.worker.version, status.serving) == ("Step-2", "Step-2", True)
    assert json.loads(json.dumps(hot.to_mapping()))["version"] == "Step-2"
    served = [entry.facts["version"] for entry in lone.worker.journal if entry.kind == kinds.SERVED_VERSION]
    assert served == [LABEL, "Step-2"]


def test_a_number_is_taken_for_its_digits_and_text_comes_back(make_lone):
    lone = make_lone()
    assert lone.update(7).version == "7"
    assert lone.update("7").outcome is Outcome.ALREADY_SERVED
    assert lone.update(8).previous_version == "7"


@pytest.mark.parametrize("version", [True, -1, 7.0, "", "a b", "latest", "unnamed-1.1.1", "x" * 129])
def test_what_is_no_label_is_refused_before_anything_is_touched(lone, version):
    word = lone.segment.words[lone.segment.layout.command]
    with raising((bad_version, bad_keyword)):
        lone.controller.update(version)
    assert lone.segment.words[lone.segment.layout.command] == word
    assert lone.worker.version == "1"


def test_a_label_whose_number_is_the_committed_ones_is_refused_and_nothing_changes(make_lone):
    assert version_id(ALIKE[0]) == version_id(ALIKE[1])
    lone = make_lone()
    lone.update(ALIKE[0])
    for options in ({}, {"hot": True}, {"force": True}):
        with raising(CommandRefusedError, match=f"{ALIKE[1]}.*{ALIKE[0]}; publish it under another label"):
            lone.update(ALIKE[1], **options)
        lone.worker.poll()
        assert (lone.worker.version, lone.controller.status().serving) == (ALIKE[0], True)
    lone.update("between")
    assert lone.update(ALIKE[1]).version == ALIKE[1]


def test_the_committed_label_with_another_content_is_refused_by_name_and_loaded_by_force(make_lone):
    added = [0]

    def overwritten(context, target):
        facts = load(context, target)
        data = target.writable("bias")
        data[:1] = bytes([data[0] + added[0]])
        held = {name: bytes(target.readable(name)) for name in target.specs()}
        return {**facts, "digest": digest_of(b"".join(held.values()))}

    def digest(weights, _progress):
        return digest_of(b"".join(bytes(weights.readable(name)) for name in weights.specs()))

    lone = make_lone(load=overwritten, plan_options=PlanOptions(resident_digest=digest))
    lone.update("a")
    lone.clear()
    added[0] = 1
    with raising(RankFailedError, match=r"version a is .* not what the group committed .* overwritten"):
        lone.update("a")
    lone.worker.poll()
    assert lone.worker.weights is WeightState.CLEARED
    forced = lone.update("a", force=True)
    assert forced.version == "a"
    assert f"content {forced.content_digest}" in forced.sentence()
    lone.clear()
    again = lone.update("a")  # the label means that content from now on
    assert (again.version, again.content_digest) == ("a", forced.content_digest)
    assert lone.controller.status().content_digest == forced.content_digest
    with lone.worker.step() as permit:
        assert (permit.version, permit.content_digest) == ("a", forced.content_digest)
    assert lone.update("b").content_digest is None
