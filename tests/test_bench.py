"""The bench itself, on few samples: that it measures what it says, on real ranks, and leaves nothing."""

from __future__ import annotations

import errno
import io
import json
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from bench import __main__ as bench
from bench.__main__ import Row, pause_rows, show
from bench.acceptance import measure_acceptance
from bench.against import compare
from bench.cycle import measure_cycles
from bench.delta import measure_deltas
from bench.detection import measure_deaths, measure_stops
from bench.group import measured_group
from bench.hot import measure_pauses
from bench.loading import (
    COLD,
    SMALL,
    SMALL_MODEL,
    WARM,
    as_plain,
    loading_table,
    measured,
    reasons,
)
from bench.loading_measure import Case, Loading, measure
from bench.loading_model import Model
from bench.measure import CannotRunError, Distribution, Unmeasured
from bench.walks import ROOMS, room, walks
from wsm.errors import RefusedError

REPOSITORY = Path(__file__).parent.parent


def test_percentiles_are_samples_by_nearest_rank() -> None:
    found = Distribution.of([float(value) for value in range(1, 201)])
    assert found.p90 == 180.0
    assert (found.p50, found.p99, found.least, found.most, found.samples) == (100.0, 198.0, 1.0, 200.0, 200)
    assert Distribution.of([7.0]) == Distribution(7.0, 7.0, 7.0, 7.0, 7.0, 1)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("mode", ["idle", "serving"])
def test_every_clear_of_a_real_group_is_accepted_after_its_call(mode: str) -> None:
    found = measure_acceptance(3, ranks=2, mode=mode)
    assert found.samples == 3
    assert found.least > 0


@pytest.mark.slow
@pytest.mark.processes
def test_a_killed_and_a_stopped_rank_are_named_after_it_happened() -> None:
    assert measure_deaths(1).least > 0
    assert measure_stops(1).least > 0


@pytest.mark.processes
@pytest.mark.slow
def test_two_commits_are_measured_beside_each_other_in_one_run() -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, check=True)
    rows = compare(head.stdout.decode().strip(), rounds=1, commands=2)
    assert len(rows) == 5
    assert all(row.here > 0 and row.there > 0 and row.ratio > 0 for row in rows)


def test_a_commit_that_is_none_is_said_to_be_none() -> None:
    with pytest.raises(CannotRunError, match="git knows no commit 'nowhere'"):
        compare("nowhere", rounds=1, commands=1)


@pytest.mark.slow
@pytest.mark.processes
def test_a_cycle_is_measured_on_a_real_group() -> None:
    assert measure_cycles(2).samples == 2


@pytest.mark.slow
@pytest.mark.paddle
@pytest.mark.processes
def test_pauses_of_hot_and_in_place_updates_are_measured_on_real_parameters() -> None:
    found = measure_pauses(1 << 20, updates=2)
    assert found is not None
    assert found.hot.samples == found.in_place.samples == 2
    assert min(found.hot.least, found.in_place.least, found.staging.least) > 0


def test_weights_that_this_machine_cannot_hold_twice_are_not_measured() -> None:
    assert measure_pauses(1 << 60, updates=1) is None
    assert [row.note for row in pause_rows([(1 << 40, 1)])] == ["no room for two"]


@pytest.fixture
def bench_that_ends_early(monkeypatch, tmp_path, capsys):
    """Run a bench whose parts take no time, and whose last one raises after its first row."""

    def run(wrong: Exception):
        def ends_early(*_):
            yield Row("before it went wrong", "ms", 1.0)
            raise wrong

        for name in ("serving", "acceptance", "cycle", "detection", "pause", "delta"):
            monkeypatch.setattr(bench, f"{name}_rows", lambda *_, name=name: iter([Row(name, "ms", 1.0)]))
        monkeypatch.setattr(bench, "mooncake_rows", ends_early)
        monkeypatch.setattr(bench, "measured", lambda *_: iter([]))
        monkeypatch.setattr("sys.argv", ["bench", "--quick", "--out", str(tmp_path / "bench.json")])
        code = bench.main()
        printed = " ".join(capsys.readouterr().out.split())
        return code, printed, json.loads((tmp_path / "bench.json").read_text())["rows"]

    return run


MISSING = RefusedError("Mooncake cannot be loaded (libibverbs.so.1: cannot open)", code="mooncake-missing")


@pytest.mark.parametrize(
    ("wrong", "failed", "reason"),
    [
        (MISSING, False, str(MISSING)),
        (CannotRunError("no paddle"), False, "no paddle"),
        (OSError(errno.ENOSPC, "No space left"), False, "OSError: [Errno 28] No space left"),
        (ZeroDivisionError("of its own"), True, "ZeroDivisionError: of its own"),
    ],
)
def test_a_part_that_ends_early_is_a_row_that_says_why_and_the_rest_is_kept(
    bench_that_ends_early, wrong, failed, reason
):
    code, printed, rows = bench_that_ends_early(wrong)
    assert code == failed
    assert [row["what"] for row in rows][-3:] == ["delta", "before it went wrong", "rsync over Mooncake"]
    assert rows[-1]["why"] == {"reason": reason, "failed": failed}
    assert rows[-2]["p50"] == 1.0
    assert f"rsync over Mooncake: {'failed' if failed else 'cannot run'}: {reason}" in printed
    assert len(rows) == 8


def test_a_way_to_load_that_cannot_be_measured_is_a_row_that_says_why(monkeypatch):
    def measure_some(case, model, repeats):
        if case.way == "ipc, kept":
            raise CannotRunError("there is no room")
        return Loading(case, model, Distribution.of([1.0]), 0.5, 0)

    monkeypatch.setattr("bench.loading.measure", measure_some)
    found = list(measured((1,), 1, Console(file=io.StringIO())))
    assert reasons(found) == {
        what: Unmeasured("there is no room", failed=False)
        for what in ("ipc, kept, 1 MiB", "ipc, kept, 10k x 1K")
    }
    stream = io.StringIO()
    Console(file=stream, width=80).print(loading_table(found))
    assert stream.getvalue().count("cannot run") == 2
    plain = [each for each in as_plain(found) if each["way"] == "ipc, kept"]
    assert [(each["reason"], each["failed"]) for each in plain] == [("there is no room", False)] * 2


@pytest.mark.processes
def test_what_a_measured_process_lacks_is_said_by_its_parent():
    with pytest.raises(RuntimeError, match="KeyError: 'no such way'"):
        measure(Case("no such way"), Model(1, 1 << 10), 1)


@pytest.mark.processes
def test_a_rank_that_ends_before_it_has_attached_is_named_at_once():
    with (
        pytest.raises(RuntimeError, match="rank 0 of bench-ends ended with code 1"),
        measured_group("bench-ends", 1, "timed", module="bench.no_such_module"),
    ):
        pass


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("case", dict.fromkeys([*WARM, *COLD, *SMALL]), ids=lambda case: case.title)
def test_every_way_to_load_is_measured_beside_a_plain_copy(case: Case) -> None:
    found = measure(case, Model(3, 1 << 16), 2)
    assert found.ms.samples == 2
    assert found.of_memcpy > 0
    assert found.extra_bytes >= 0


@pytest.mark.slow
@pytest.mark.processes
def test_memory_that_a_load_takes_beside_the_model_is_seen_from_outside() -> None:
    """paddle.load holds the whole model a second time, twice over if it is pickled."""
    model = Model.large(64)
    assert measure(Case("paddle.load and set_value"), model, 1).extra_bytes >= model.total * 0.9
    assert measure(Case("ipc_snapshot"), model, 1).extra_bytes < model.total // 2


def test_the_loading_table_fits_80_columns_and_says_which_aims_are_missed() -> None:
    ms = Distribution.of([1234.5])
    cases = [*WARM, *COLD, Case("ipc_snapshot", aim=0.75, extra_aim_mib=64)]
    found = [Loading(case, Model.large(4096), ms, 0.5, 100 << 20) for case in cases]
    found += [Loading(case, SMALL_MODEL, ms, 0.5, 0) for case in SMALL]
    stream = io.StringIO()
    Console(file=stream, width=80).print(loading_table(found))
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert len(lines) == len(found) + 1
    aimed = cases.index(Case("ipc_snapshot", aim=1.0, extra_aim_mib=128))
    assert lines[1 + aimed].endswith(" 1, missed")
    assert lines[len(cases)].endswith(" 64 MiB, missed")
    assert lines[-1].endswith(" 15 us, missed")
    assert max(map(len, lines)) <= 80
    assert not any("\N{HORIZONTAL ELLIPSIS}" in line for line in lines)


def test_a_delta_is_measured_beside_the_whole_version() -> None:
    found = measure_deltas(1 << 22, 2, tensors=2)
    assert [cost.changed for cost in found] == [0.01, 0.03, 0.1]
    assert 0 < found[0].stored < found[1].stored < found[2].stored < 0.5
    assert all(cost.load_ms.least > 0 and cost.whole_ms.least > 0 and cost.publish_ms > 0 for cost in found)


def test_the_table_fits_80_columns_and_says_which_aims_are_missed() -> None:
    stream = io.StringIO()
    rows = [
        Row("the same, FastDeploy's legacy sleeps", "ms", 6001.2, 6001.9, note="1827 times ours"),
        Row("call to all accepted, 4 serving ranks", "us", 150.0, 2950.0, aim=200.0),
        Row("poll() and step()", "ns", 303.0, 328.0, aim=250.0),
        Row("pause of a hot update, 512 MiB", "ms", 2.31, 2.9, aim=2.0),
        Row("pause of the same in place, 512 MiB", "ms", 190.2, 210.1, note="82 times hot"),
        Row("pause of a hot update, 4 GiB", "ms", None, aim=2.0, note="no room for two"),
        Row("delta of 10%, 256 MiB", "ms", 152.1, 190.2, note="12% of bytes"),
        Row("rsync over Mooncake, 256 MiB", "ms", 152.1, 190.2, note="0.85 of engine"),
        Row("turns of a serving loop", "", None, note=Unmeasured("", failed=False).verdict),
    ]
    show(rows, Console(file=stream, width=80))
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert len(lines) == len(rows) + 1
    assert lines[2].endswith("aim 200")
    assert lines[3].endswith("aim 250, missed")
    assert lines[4].endswith("aim 2, missed")
    assert lines[6].endswith("no room for two")


@pytest.mark.slow
def test_a_load_from_files_walks_through_few_functions(tmp_path: Path) -> None:
    found = dict(walks(tmp_path))
    assert len(found["load ipc_snapshot"].functions) < 130
    assert all(walk.calls > walk.switches > 0 for walk in found.values())
    assert all(sum(room(name)) for name in ROOMS)
