"""What a load function says it has loaded must be what was asked, before anybody offers it for commit."""

from __future__ import annotations

import pytest
from lone_rank import LoneRank, load

from wsm.controller.errors import RankFailedError
from wsm.strategies.errors import VersionNumberError


@pytest.mark.parametrize("said", [8, None, "7", True, -1])
def test_a_load_that_brings_another_version_than_asked_fails_and_nothing_serves(make_lone, said):
    """All ranks could agree on it, and committed word, receipt and tokens would name two versions."""
    lone: LoneRank = make_lone(load=lambda context, target: {**load(context, target), "version": said})
    with pytest.raises(RankFailedError, match=r"version 7 was asked for") as caught:
        lone.update(7)
    assert caught.value.action == "load_weights"
    assert lone.worker.weights.name == "CLEARED"
    assert lone.controller.status().version is None


def test_a_load_that_says_what_was_asked_serves(make_lone):
    lone = make_lone()
    assert lone.update(7).version == 7
    assert lone.worker.version == 7


@pytest.mark.parametrize("version", [-1, 1 << 40, True, "7", 7.0])
def test_a_version_that_no_word_can_carry_is_refused_before_anything_is_written(make_lone, version):
    """It could be loaded, prepared and decided, and then never be stored as committed."""
    lone = make_lone()
    with pytest.raises(VersionNumberError):
        lone.controller.update(version)
    assert lone.controller.status().sequence == 0
