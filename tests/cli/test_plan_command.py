"""``wsm memory`` says what memory a load takes before anything is commanded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Run
from small_model import SPECS, publish

from tests.raising import raising
from wsm.cli.memory_plan import admit, plan_memory
from wsm.printable import size_text
from wsm.strategies.applier import admission
from wsm.strategies.applier.admission import LoadWay
from wsm.strategies.load import Preview
from wsm.strategies.offer import ManifestScope

BYTES = sum(spec.nbytes for spec in SPECS)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    publish(tmp_path / "policy", 7)
    file = tmp_path / "wsm.yaml"
    file.write_text(
        f"name: policy\nranks: 2\nsnapshot:\n  directory: {tmp_path / 'policy'}\n  device_ids: [0, 1]\n"
    )
    return file


def preview(nbytes: int | None, beside: int = 0) -> Preview:
    return Preview("ipc_async", 7, None, ManifestScope.LOADED, nbytes, None, (), (), beside)


def test_a_plan_shows_what_each_phase_takes_within_80_columns(wsm: Run, config: Path) -> None:
    ended = wsm("memory", config, "--rank", 1)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "rank 1 of 2 would load version 7 by ipc_snapshot"
    assert lines[2].split() == ["phase", "held", "read", "besides", "peak"]
    assert [line[:26].strip() for line in lines[3:]] == ["in place: overwrite", "after a clear: fill"]
    assert max(map(len, lines)) <= 80


def test_a_hot_plan_as_json_counts_two_versions(wsm: Run, config: Path) -> None:
    ended = wsm("memory", config, "--rank", 0, "--hot", "--version", 7, "--json")
    found = json.loads(ended.out)
    assert (found["version"], found["bytes"], found["ranks"]) == ("7", BYTES, 2)
    stage, flip, let_go = found["phases"]
    assert (stage["name"], stage["held"], stage["read"], stage["peak"]) == ("stage", BYTES, BYTES, 2 * BYTES)
    assert flip["peak"] == let_go["peak"] == 2 * BYTES
    assert found["available_bytes"] > 0


@pytest.mark.parametrize("arguments", [["--rank", 2], ["--rank", "x"], []])
def test_a_rank_that_is_none_of_the_group_is_wrong_usage(wsm: Run, config: Path, arguments: list) -> None:
    assert wsm("memory", config, *arguments).code == 2


def test_what_does_not_fit_all_ranks_at_once_is_a_typed_error_with_both_numbers() -> None:
    phases = plan_memory(preview(100, 20), LoadWay.HOT)
    assert phases is not None
    admit(phases, LoadWay.HOT, available=240, ranks=2)
    with raising(
        admission.load_memory, match="240 bytes besides for 2 ranks, and 239 are available"
    ) as caught:
        admit(phases, LoadWay.HOT, available=239, ranks=2)
    assert (caught.value.phase, caught.value.way) == ("stage", LoadWay.HOT)


def test_a_load_in_place_takes_only_what_lies_beside_and_one_after_a_clear_the_model_too() -> None:
    (overwrite,) = plan_memory(preview(100, 20), LoadWay.IN_PLACE) or ()
    (fill,) = plan_memory(preview(100, 20), LoadWay.AFTER_A_CLEAR) or ()
    assert (overwrite.held, overwrite.taken, overwrite.peak) == (100, 20, 120)
    assert (fill.held, fill.taken, fill.peak) == (0, 120, 120)


def test_a_stream_that_does_not_say_its_size_has_no_plan() -> None:
    assert plan_memory(preview(None), LoadWay.HOT) is None


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 bytes"), (1, "1 byte"), (1536, "1.5 KiB"), (26 << 20, "26.0 MiB"), (3 << 30, "3.0 GiB")],
)
def test_a_size_is_told_in_the_largest_unit_of_which_there_is_one(count: int, said: str) -> None:
    assert size_text(count) == said
