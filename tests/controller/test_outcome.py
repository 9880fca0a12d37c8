"""What the reports of ranks come to: whether they agree, and whose steps broke."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from wsm.command import RankReport
from wsm.controller import outcome
from wsm.states.view import View
from wsm.states.words import CommandWord, CommittedWord, Operation, StepKind, StepWord

COMMAND = CommandWord(1, 2, Operation.ABORT)


def test_only_a_step_that_raised_in_this_epoch_counts_as_broken():
    steps = [
        StepWord(1, 1, StepKind.BROKEN, 7),
        StepWord(0, 9, StepKind.BROKEN, 7),
        StepWord(1, 1, StepKind.RUNNING, 8),
    ]
    view = View(COMMAND, steps, [], CommittedWord(0, None))
    assert outcome.broken(view, [0, 1, 2]) == (0,)


def prepared(rank, digest, scope="group"):
    return RankReport(rank, version=7, manifest_digest=digest, facts={"manifest_scope": scope})


@pytest.mark.parametrize("nothing", ["", None])
def test_ranks_that_name_no_publication_do_not_agree_on_one(nothing):
    assert not outcome.disagreement([prepared(0, "m"), prepared(1, "m")])
    assert outcome.disagreement([prepared(0, nothing), prepared(1, nothing)])
    assert not outcome.disagreement([prepared(0, "a", "rank"), prepared(1, "b", "rank")])
    assert outcome.disagreement([prepared(0, "m"), prepared(1, "m", "rank")])
    facts = [{"manifest_scope": "group", "publication": publication} for publication in "pq"]
    one, other = (RankReport(0, version=7, manifest_digest="m", facts=fact) for fact in facts)
    assert not outcome.disagreement([one, one])
    assert outcome.disagreement([one, replace(other, rank=1)]), "the same tensors, published twice"
