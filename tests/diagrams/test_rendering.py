"""The texts: complete, the same every time, and narrow enough to be read as text."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import wsm
from drawing.engine import actions_of, engine_with_everything
from wsm.actions import names
from wsm.actions.base import Plans
from wsm.cli.diagrams import heading_of
from wsm.states.joint import BESIDE
from wsm.states.phases import Phase
from wsm.states.plan_key import HOLD, HOLD_WITHOUT_KV_CACHE, PLANS, REJOIN, RELEASE
from wsm.states.table import CHARTS, KV_CHART, WEIGHT_CHART

FILES = {
    "README.md",
    "weights.mmd",
    "kv_cache.mmd",
    "admission.mmd",
    "command.md",
    "command.mmd",
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


def test_every_row_of_what_stands_beside_a_phase_is_on_the_page_of_the_command(
    rendered: dict[str, str],
) -> None:
    parts = dict(
        re.findall(r"^## (\w+)\n(.+?)(?=^## |\Z)", rendered["command.md"], flags=re.MULTILINE | re.DOTALL)
    )
    for phase in Phase:
        for row in BESIDE:
            assert (f": {row.why}\n" in parts[phase.name]) is (
                phase in row.phases or any(phase in each.phases and each.why == row.why for each in BESIDE)
            )


def test_every_plan_stands_under_every_edge_that_runs_it_with_all_its_actions(
    rendered: dict[str, str], plans: Plans
) -> None:
    page = rendered["plans.md"]
    parts = dict(re.findall(r"^## ([^\n]+)\n(.+?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL))
    drawn = set()
    for chart in CHARTS:
        for row in chart.rows:
            for key in row.plans if row.dest in chart.working else ():
                part = parts[heading_of(chart, row)]
                drawn.add(key)
                assert str(key) in part
                assert all(action.name in part for action in plans.named(key).actions)
    held = {HOLD, HOLD_WITHOUT_KV_CACHE, RELEASE}
    assert all(action.name in parts["Hold and release"] for key in held for action in plans.named(key))
    assert drawn | {REJOIN} | held == set(PLANS)
    assert all(action.name in parts["A new epoch"] for action in plans.rejoin.actions)


def test_every_action_that_there_is_stands_in_a_drawn_plan_with_what_it_declares(
    rendered: dict[str, str], plans: Plans
) -> None:
    known = {value for key, value in vars(names).items() if key.isupper() and isinstance(value, str)}
    assert actions_of(engine_with_everything()) == known
    edges, _, actions = rendered["plans.md"].partition("## Actions")
    for plan in plans:
        for action in plan:
            assert f"`{action.name}`" in edges
            [line] = [line for line in actions.splitlines() if line.startswith(f"| `{action.name}` ")]
            assert f"| {action.deadline_s:g} s " in line
            assert ("| v " in line) is action.collective
    assert re.search(r"`stop_admitting` +\| early ", edges)
    assert re.search(r"`resume_admitting` +\| behind ", edges)


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


def test_the_initial_state_and_the_working_ones_are_marked(rendered: dict[str, str]) -> None:
    for name in ("weights", "kv_cache"):
        assert rendered[f"{name}.mmd"].count("    [*] --> CLEARED\n") == 1
        assert "    class CLEARING,UPDATING working\n" in rendered[f"{name}.mmd"]


def test_no_state_is_drawn_as_the_active_one(rendered: dict[str, str]) -> None:
    assert all("active" not in text for name, text in rendered.items() if not name.endswith(".md"))
