"""The bench itself, on few samples: that it measures what it says, on real ranks, and leaves nothing."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench.__main__ import Row, pause_rows, show
from bench.acceptance import measure_acceptance
from bench.cycle import measure_cycles
from bench.delta import measure_deltas
from bench.detection import measure_deaths, measure_stops
from bench.hot import measure_pauses
from bench.loading import COLD, SMALL, SMALL_MODEL, WARM, loading_table
from bench.loading_measure import Case, Loading, measure
from bench.loading_model import Model
from bench.measure import Distribution


def test_percentiles_are_samples_by_nearest_rank() -> None:
    found = Distribution.of([float(value) for value in range(1, 201)])
    assert found.p90 == 180.0
    assert (found.p50, found.p99, found.least, found.most, found.samples) == (100.0, 198.0, 1.0, 200.0, 200)
    assert Distribution.of([7.0]) == Distribution(7.0, 7.0, 7.0, 7.0, 7.0, 1)


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["idle", "serving"])
def test_every_clear_of_a_real_group_is_accepted_after_its_call(mode: str) -> None:
    found = measure_acceptance(3, ranks=2, mode=mode)
    assert found.samples == 3
    assert found.least > 0


@pytest.mark.processes
def test_a_killed_and_a_stopped_rank_are_named_after_it_happened() -> None:
    assert measure_deaths(1).least > 0
    assert measure_stops(1).least > 0


@pytest.mark.processes
def test_a_cycle_is_measured_on_a_real_group() -> None:
    assert measure_cycles(2).samples == 2


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


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("case", dict.fromkeys([*WARM, *COLD, *SMALL]), ids=lambda case: case.title)
def test_every_way_to_load_is_measured_beside_a_plain_copy(case: Case) -> None:
    found = measure(case, Model(3, 1 << 16), 2)
    assert found.ms.samples == 2
    assert found.of_memcpy > 0
    assert found.extra_bytes >= 0


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
    ]
    show(rows, Console(file=stream, width=80))
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert len(lines) == len(rows) + 1
    assert lines[2].endswith("aim 200")
    assert lines[3].endswith("aim 250, missed")
    assert lines[4].endswith("aim 2, missed")
    assert lines[6].endswith("no room for two")
