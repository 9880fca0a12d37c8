"""What is said in each situation, word for word: a person reads it at night.

``python tests/explanation/test_sentences.py`` writes the texts anew; read what changed before you commit it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from situations import SITUATIONS

from wsm.states.words import Operation
from wsm.status import explain, status_line, status_of, status_text

SERVING = (
    "serving",
    "a commit whose version nobody wrote",
    "a hot update that failed",
    "nothing to do",
    "staging",
)
TEXTS = Path(__file__).with_name("texts")


def file_of(situation: str) -> Path:
    return TEXTS / f"{situation.replace(' ', '_')}.txt"


def told_of(situation: str) -> str:
    """What ``wsm explain`` and ``wsm status`` say of it."""
    group = SITUATIONS[situation]
    return f"{explain(group).text()}\n\n=== wsm status\n{status_text(group)}\n"


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_situation_is_told_in_these_words(situation):
    assert told_of(situation) == file_of(situation).read_text()


@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_text_fits_80_columns_and_every_mapping_is_json(situation):
    explanation = explain(SITUATIONS[situation])
    assert all(len(line) <= 80 for line in told_of(situation).splitlines())
    assert len(status_line(SITUATIONS[situation])) <= 80
    told = json.loads(json.dumps(explanation.to_mapping()))
    assert told["headline"] == explanation.headline
    assert told["serving"] is (situation in SERVING)
    status = status_of(SITUATIONS[situation])
    assert status.serving is (situation in SERVING)
    assert status.headline in explanation.headline or status.because in explanation.headline
    assert json.loads(json.dumps(status.to_mapping()))["advice"] == list(explanation.advice)


def test_no_text_is_left_of_a_situation_that_is_gone():
    assert {path.name for path in TEXTS.iterdir()} == {file_of(situation).name for situation in SITUATIONS}


def test_who_does_not_serve_is_told_what_to_do():
    speechless = [name for name, group in SITUATIONS.items() if not explain(group).advice]
    assert set(speechless) == {
        "serving",
        "a hot update that failed",
        "nothing to do",
        "no segment",
        "another layout",
    }


def test_a_wait_names_whom_it_is_for_and_what_is_left():
    (wait, *_) = explain(SITUATIONS["a vote that is missing"]).waits
    assert (wait.rank, wait.ranks, wait.seconds, wait.left_s) == (0, (1,), 3.0, 57.0)
    assert SITUATIONS["a vote that is missing"].command.operation is Operation.UPDATE


if __name__ == "__main__":
    TEXTS.mkdir(exist_ok=True)
    for old in TEXTS.iterdir():
        old.unlink()
    for name in SITUATIONS:
        file_of(name).write_text(told_of(name))
