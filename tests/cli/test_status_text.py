from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wsm import GroupStatus
from wsm.cli.status_text import group_line, group_text
from wsm.cli.verdict import verdict
from wsm.controller import RankStatus

RANK = RankStatus(
    rank=0,
    life="alive",
    pid=100,
    weights="NORMAL",
    kv="NORMAL",
    code="DONE_COMMITTED",
    epoch=1,
    sequence=3,
    action=0,
    step_kind="running",
    step=12,
    heartbeat=9,
)
SERVING = GroupStatus(
    name="policy",
    run_id="run",
    epoch=1,
    sequence=3,
    operation="COMMIT",
    over=True,
    version=7,
    controller_pid=None,
    owner_pid=50,
    ranks=(RANK, replace(RANK, rank=1, pid=101)),
)


def group(
    *, one: dict[str, Any] | None = None, both: dict[str, Any] | None = None, **facts: Any
) -> GroupStatus:
    """SERVING, with other facts about the group, about both ranks, or about rank 1."""
    ranks = [replace(rank, **(both or {})) for rank in SERVING.ranks]
    ranks[1] = replace(ranks[1], **(one or {}))
    return replace(SERVING, ranks=tuple(ranks), **facts)


CASES = {
    "serving": (group(), "serves version 7"),
    "one dead": (group(one={"life": "dead"}), "its supervisor (process 50) replaces it"),
    "one dead, owned by rank 0": (
        replace(group(one={"life": "dead"}), owner_pid=100),
        "the group needs every rank; start the group again",
    ),
    "all dead": (group(both={"life": "dead"}), "every rank is dead"),
    "nobody came": (group(both={"life": "never", "pid": None}, over=False), "no rank has attached"),
    "one is missing": (group(one={"life": "never", "pid": None}), "rank 1 has not attached"),
    "under way": (
        group(
            both={"sequence": 4, "code": "PREPARED"},
            one={"sequence": 4, "code": "RUNNING", "action": 3},
            operation="UPDATE",
            sequence=4,
            over=False,
            controller_pid=77,
        ),
        "UPDATE by process 77 is under way; waits for rank 0 (PREPARED), rank 1 (RUNNING action 3)",
    ),
    "hot update": (
        group(
            both={"sequence": 4, "code": "PREPARED"},
            one={"sequence": 4, "code": "STAGING"},
            operation="HOT_UPDATE",
            sequence=4,
            over=False,
            controller_pid=77,
        ),
        (
            "serves version 7; HOT_UPDATE by process 77 is under way; "
            "waits for rank 0 (PREPARED), rank 1 (STAGING)"
        ),
    ),
    "one has not seen it": (
        group(both={"sequence": 4, "code": "DONE_CLEARED"}, one={"sequence": 3}, sequence=4, over=False,
              operation="CLEAR", controller_pid=77),
        "waits for rank 1 (has not answered)",
    ),
    "controller gone": (
        group(both={"code": "PREPARED"}, over=False, operation="UPDATE"),
        "its controller gone",
    ),
    "decided, and nobody drives": (
        group(both={"code": "STOPPED_UNTOUCHED"}, one={"sequence": 0}, over=False, operation="ABORT"),
        "ABORT is decided; waits for rank 1 (has not answered); if that does not end",
    ),
    "a new epoch": (
        group(both={"epoch": 2}, one={"epoch": 1}, epoch=2, sequence=0, over=False, operation="NONE"),
        "to join epoch 2",
    ),
    "broken": (group(one={"step_kind": "broken"}), "a step raised on rank 1"),
    "faulted": (group(one={"weights": "FAULTED"}), "'wsm clear policy' tries it again"),
    "cleared": (group(both={"weights": "CLEARED", "kv": "CLEARED"}), "'wsm update policy --version V'"),
    "mixed": (group(one={"weights": "CLEARED", "kv": "CLEARED"}), "the ranks differ"),
}  # fmt: skip


@pytest.mark.parametrize(("status", "said"), CASES.values(), ids=CASES.keys())
def test_one_sentence_says_what_matters_most(status: GroupStatus, said: str) -> None:
    assert said in verdict(status)


@pytest.mark.parametrize("status", [status for status, _ in CASES.values()], ids=CASES.keys())
def test_every_picture_fits_80_columns(status: GroupStatus) -> None:
    assert max(map(len, group_text(status).splitlines())) <= 80
    assert len(group_line(status)) <= 80


def test_the_widest_words_that_there_are_fit_80_columns() -> None:
    widest = group(
        both={
            "pid": 4_194_304,
            "life": "alive",
            "weights": "UPDATING",
            "kv": "CLEARING",
            "step_kind": "running",
            "step": (1 << 35) - 1,
            "sequence": 65535,
            "code": "STOPPED_UNTOUCHED",
        }
    )
    assert max(map(len, group_text(widest).splitlines())) <= 80


def test_the_table_has_a_row_per_rank_under_its_headings() -> None:
    lines = group_text(group(one={"code": "RUNNING", "action": 3, "weights": "UPDATING"})).splitlines()
    heading = next(index for index, line in enumerate(lines) if line.startswith("rank"))
    assert lines[heading].split() == ["rank", "pid", "life", "weights", "KV", "step", "code/sequence"]
    assert lines[heading + 1].split() == ["0", "100", "alive", "NORMAL", "NORMAL", "running", "12",
                                          "DONE_COMMITTED/3"]  # fmt: skip
    assert lines[heading + 2].split()[-1] == "RUNNING(3)/3"


def test_a_kv_cache_process_has_no_step() -> None:
    assert "KV cache" in group_text(group(one={"step_kind": "none"}))
