"""Every dialogue here can be held on the protocol of this build, word by word, and ends as it says.

A dialogue says who does what at the margin, and what the words say then behind it. Files in this folder are
written by hand, by ``python -m explorer --save`` and by failed property tests; only the margin is needed.
``python -m tests.scenarios.test_dialogues`` writes the rest anew: read the difference before keeping it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from explorer import dialogue

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*.txt"))


def held(text: str) -> str:
    """Hold the dialogue of a file, and return it with what the words say now."""
    told = dialogue.read(text)
    return dialogue.as_text(dialogue.replay(told), told.scope, told.remarks)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_dialogue_is_held_word_by_word(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert held(text).splitlines() == text.splitlines()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_dialogue_says_what_it_is_about_and_breaks_no_rule(path: Path) -> None:
    told = dialogue.read(path.read_text(encoding="utf-8"))
    assert told.remarks
    assert told.broken == ""
    assert max(len(line) for line in path.read_text(encoding="utf-8").splitlines()) <= 115


def test_there_is_a_dialogue_for_every_kind_of_end() -> None:
    said = {
        line.split(":")[-1].split()[0]
        for path in FILES
        for line in path.read_text().splitlines()
        if "status:" in line
    }
    assert {
        "DONE_KEPT",
        "DONE_CLEARED",
        "DONE_COMMITTED",
        "DONE_FAULTED",
        "FAILED",
        "STOPPED_TOUCHED",
    } <= said


def test_a_word_that_the_protocol_does_not_say_is_noticed() -> None:
    text = (HERE / "an_ordinary_clear.txt").read_text(encoding="utf-8")
    wrong = text.replace("DONE_CLEARED", "DONE_KEPT", 1)
    assert wrong != text
    assert held(wrong) == text


def main() -> None:
    """Write what the words say now into every file."""
    for path in FILES:
        path.write_text(held(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
