"""The texts: complete, the same every time, and narrow enough to be read as text."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wsm
from wsm.states.table import CHARTS, KV_CHART, WEIGHT_CHART

FILES = {
    "README.md",
    "weights.mmd",
    "kv_cache.mmd",
    "admission.mmd",
    "command.md",
    "command.mmd",
    "command_aborted.mmd",
    "group.md",
    "fleet.mmd",
    "group.mmd",
    "plans.md",
    "transitions.md",
    "sequence_clear.mmd",
    "sequence_update.mmd",
    "sequence_hot_update.mmd",
    "sequence_rank_loss.mmd",
    "sequence_restore.mmd",
}

PROGRAM = """
import sys
from drawing.files import every_text
for name, text in every_text().items():
    sys.stdout.write(name + "\\n" + text)
"""
ROOT = Path(__file__).parents[2]


def test_every_file_is_drawn(rendered: dict[str, str]) -> None:
    assert set(rendered) == FILES
    assert all(text.endswith("\n") and not text.endswith("\n\n") for text in rendered.values())


@pytest.mark.slow
def test_the_text_is_the_same_with_every_hash_seed() -> None:
    texts = set()
    for seed in ("0", "4711"):
        path = os.pathsep.join((str(Path(wsm.__path__[0]).parent), str(ROOT)))
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=True
        )
        texts.add(done.stdout)
    assert len(texts) == 1
    assert len(texts.pop()) > 10_000


def test_every_table_of_every_page_fits_a_hundred_and_twenty_columns(rendered: dict[str, str]) -> None:
    wide = [
        (name, line)
        for name, text in rendered.items()
        for line in text.splitlines()
        if line.startswith("|") and len(line) > 120
    ]
    assert not wide


def test_the_page_of_transitions_has_every_state_with_what_it_takes_and_what_it_refuses(
    rendered: dict[str, str],
) -> None:
    parts = re.split(r"^### ", rendered["transitions.md"], flags=re.MULTILINE)[1:]
    assert len(parts) == sum(len(chart.states) for chart in CHARTS)
    for chart, heading in ((WEIGHT_CHART, "Weights"), (KV_CHART, "KV cache")):
        for state in chart.states:
            [part] = [part for part in parts if part.startswith(f"{heading} {state.name}\n")]
            [refused] = re.findall(r"^Refused: (.+)\.$", part, flags=re.MULTILINE)
            lines = [
                [cell.strip() for cell in line.strip("|").split("|")]
                for line in part.partition("Refused:")[0].splitlines()
                if line.startswith("|")
            ]
            taken = {
                (event.partition(" [")[0], dest.strip("*"))
                for event, dest, _ in lines[2:]
                if dest.startswith("*")
            }
            expected = {(row.event.value, row.dest.name) for row in chart.rows if row.source is state}
            assert taken == expected
            known = {event for event, _ in taken} | set(refused.split(", "))
            assert known == {event.value for event in chart.events}
    told = rendered["transitions.md"]
    assert "If the work fails: fail → FAULTED." in told
    assert "its phase and its word say FAILED, and the decision leads on: abort [kept] → NORMAL" in told


def test_every_link_between_the_pages_leads_to_a_heading(rendered: dict[str, str]) -> None:
    for name, text in rendered.items():
        for page, anchor in re.findall(r"\]\((\w+\.md)(?:#([\w-]+))?\)", text):
            assert page in rendered, (name, page)
            headings = [
                re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
                for line in rendered[page].splitlines()
                if line.startswith("#")
            ]
            assert not anchor or anchor in headings, (name, page, anchor)


def test_the_index_shows_every_picture_in_place(rendered: dict[str, str]) -> None:
    for name, text in rendered.items():
        if name.endswith(".mmd"):
            assert f"```mermaid\n{text}```" in rendered["README.md"]
