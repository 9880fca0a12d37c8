"""``python -m bench.loading``: every way to load, side by side with plain copies, and with the aims.

What is warm has been touched before, files are in the page cache; what is cold has been taken out of it.
Sizes for which this machine has no memory are left out, and it is said so.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.loading_measure import Case, Loading, measure
from bench.loading_model import Model
from bench.measure import Unmeasured
from wsm.actions.backends.memory import available_bytes

_MIB = 1 << 20

#: Source, target, a file's pages, and what a trainer or paddle holds: as often is a model in memory at most.
COPIES_IN_MEMORY = 5

# Larger models, and cold ones, are loaded this often at most: a load takes a second or more.
_MANY_LOADS_MIB, _FEW_LOADS = 512, 3

# A part or a stream's window, and 64 MiB: the most that a load may take beside the model.
_PART_MIB, _WINDOW_MIB = 64 + 64, 16 + 64

WARM = (
    Case("memcpy, two threads"),
    Case("bare reads, two threads"),
    Case("bare reads, one thread"),
    Case("paddle.load and set_value"),
    Case("FastDeploy's part loop"),
    Case("ipc_snapshot", aim=1.0, extra_aim_mib=_PART_MIB),
    Case("ipc_snapshot, one thread", aim=0.75, extra_aim_mib=_PART_MIB),
    Case("ipc_snapshot", digests=False),
    Case("ipc, copied", aim=1.0, extra_aim_mib=_PART_MIB),
    Case("ipc, copied", digests=False),
    Case("ipc, kept", extra_aim_mib=_PART_MIB),
    Case("ipc_async", aim=0.7, extra_aim_mib=_WINDOW_MIB),
    Case("ipc_async", digests=False),
)
COLD = (Case("FastDeploy's part loop", cold=True), Case("ipc_snapshot", cold=True))
SMALL = tuple(Case(way) for way in ("ipc_snapshot", "ipc, copied", "ipc, kept", "ipc_async"))

#: Many small tensors, and the most microseconds for one of them.
SMALL_MODEL = Model(10_000, 1024)
AIM_SMALL_US = 15.0


@dataclass(frozen=True)
class NotLoaded:
    """A way to load that could not be measured, and why."""

    case: Case
    model: Model
    why: Unmeasured


def measured(sizes_mib: Sequence[int], repeats: int, console: Console) -> Iterator[Loading | NotLoaded]:
    """Measure everything, one after the other; yield each as it is there. Blocks.

    What cannot be measured is no reason to keep the rest from it.

    Parameters
    ----------
    sizes_mib : sequence of int
        MiB of models of few large tensors.
    repeats : int
        Loads of each.
    console : Console
        Told about sizes that do not fit.
    """
    for mib in sizes_mib:
        left = available_bytes()
        if left is not None and COPIES_IN_MEMORY * mib * _MIB > left:
            console.print(f"{mib} MiB are not measured: there is no memory for {COPIES_IN_MEMORY} times that")
            continue
        for case in (*WARM, *COLD):
            fewer = case.cold or mib > _MANY_LOADS_MIB
            yield _measured(case, Model.large(mib), min(repeats, _FEW_LOADS) if fewer else repeats)
    for case in SMALL:
        yield _measured(case, SMALL_MODEL, repeats)


def _measured(case: Case, model: Model, repeats: int) -> Loading | NotLoaded:
    try:
        return measure(case, model, repeats)
    except Exception as error:  # noqa: BLE001 - whatever it is becomes a row of the table
        return NotLoaded(case, model, Unmeasured.of(error))


def loading_table(found: Sequence[Loading | NotLoaded]) -> Table:
    """Return a table of at most 80 columns; `extra` is the memory beside the model's, in MiB."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("loading", no_wrap=True)
    for column in ("size", "ms", "GB/s", "x copy", "extra", "aim"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in found:
        small = each.model == SMALL_MODEL
        if isinstance(each, NotLoaded):
            table.add_row(each.case.title, _size(each.model), *[""] * 4, each.why.verdict)
            continue
        table.add_row(
            each.case.title,
            _size(each.model),
            _short(each.ms.p50),
            f"{each.us_per_tensor:.1f} us" if small else f"{each.gb_per_s:.1f}",
            "" if small else f"{each.of_memcpy:.2f}",
            f"{each.extra_bytes / _MIB:.0f}",
            _verdict(each),
        )
    return table


def reasons(found: Sequence[Loading | NotLoaded]) -> dict[str, Unmeasured]:
    """Return why what is missing in the table could not be measured, by what the table calls it."""
    return {
        f"{each.case.title}, {_size(each.model)}": each.why for each in found if isinstance(each, NotLoaded)
    }


def _size(model: Model) -> str:
    if model == SMALL_MODEL:
        return f"{model.count // 1000}k x 1K"
    mib = model.total // _MIB
    return f"{mib // 1024} GiB" if mib >= 1024 and mib % 1024 == 0 else f"{mib} MiB"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _verdict(each: Loading) -> str:
    case = each.case
    if each.model == SMALL_MODEL:
        return _aim(f"{AIM_SMALL_US:g} us", missed=each.us_per_tensor > AIM_SMALL_US)
    if case.extra_aim_mib is not None and each.extra_bytes > case.extra_aim_mib * _MIB:
        return _aim(f"{case.extra_aim_mib:g} MiB", missed=True)
    return "" if case.aim is None else _aim(f"{case.aim:g}", missed=each.of_memcpy < case.aim)


def _aim(what: str, *, missed: bool) -> str:
    return f"{what}, missed" if missed else what


def as_plain(found: Sequence[Loading | NotLoaded]) -> list[dict[str, Any]]:
    """Return what was measured, and why what was not, ready for JSON."""
    return [
        {
            "title": each.case.title,
            "count": each.model.count,
            "tensor_bytes": each.model.nbytes,
            **(asdict(each.why) if isinstance(each, NotLoaded) else _numbers(each)),
            **asdict(each.case),
        }
        for each in found
    ]


def _numbers(each: Loading) -> dict[str, Any]:
    return {
        "ms": each.ms.as_mapping(),
        "gb_per_s": each.gb_per_s,
        "of_memcpy": each.of_memcpy,
        "us_per_tensor": each.us_per_tensor,
        "extra_bytes": each.extra_bytes,
    }


def main() -> None:
    """Run this part of the bench alone."""
    parser = argparse.ArgumentParser(prog="python -m bench.loading", description=__doc__)
    parser.add_argument("--sizes", default="256,1024,4096", help="MiB of the large models")
    parser.add_argument("--repeats", type=int, default=10, help="loads of each")
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    options = parser.parse_args()
    console = Console(highlight=False)
    found = list(measured([int(size) for size in options.sizes.split(",")], options.repeats, console))
    console.print(loading_table(found))
    for what, why in reasons(found).items():
        console.print(f"{what}: {why.verdict}: {why.reason}")
    if options.out is not None:
        options.out.write_text(json.dumps(as_plain(found), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
