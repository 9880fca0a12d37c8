"""``wsm memory``: the memory that a load would take, phase by phase, before anything is commanded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from wsm.actions.backends.paddle_memory import available_bytes
from wsm.cli._base import (
    CommandEndedError,
    TeachingCommand,
    Version,
    json_option,
    show_json,
    show_text,
    wrong_usage,
)
from wsm.cli._groups import read_config
from wsm.printable import size_text
from wsm.strategies.applier.admission import LoadWay
from wsm.strategies.load import MemoryPhase, Preview, admit, plan_memory
from wsm.strategies.load import inspect as inspect_source
from wsm.worker.loading import Sources

_Plans = Mapping[LoadWay, Sequence[MemoryPhase] | None]


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm memory wsm.yaml --rank 0", "what the announced version takes on rank 0"),
        ("wsm memory wsm.yaml --rank 0 --hot --version 7", "whether version 7 fits beside what serves"),
        ("wsm memory wsm.yaml --rank 0 --json | jq .phases", "the same in bytes"),
    ),
)
@click.argument("config_file", metavar="CONFIG", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--rank", type=click.IntRange(min=0), required=True, help="Whose shard.")
@click.option("--version", type=Version(), metavar="V", help="By default the newest announced.")
@click.option("--hot", is_flag=True, help="Plan for a version that is staged beside the one that serves.")
@json_option("Print the plan as JSON.")
def plan(config_file: Path, *, rank: int, version: str | None, hot: bool, as_json: bool) -> None:
    """Show what memory rank R takes to load a version by the strategy in CONFIG.

    Nothing is loaded and no group is asked: the source is looked at, and its numbers are held against the
    memory that is available on this host now, for all ranks at once. Exit code 1 says that a load in place,
    or with --hot a hot one, would not fit, or that there is no such version.
    """
    with wrong_usage():
        config = read_config(config_file)
        sources = Sources(config)
    if rank >= config.ranks:
        raise CommandEndedError(f"rank {rank} is none of the {config.ranks} of {config.name}", exit_code=2)
    try:
        preview = inspect_source(sources.of(rank), version, name=config.strategy, threads=sources.threads)
    finally:
        sources.close()
    ways = (LoadWay.HOT,) if hot else (LoadWay.IN_PLACE, LoadWay.AFTER_A_CLEAR)
    plans = {way: plan_memory(preview, way) for way in ways}
    available = available_bytes()
    if as_json:
        content = _content(preview, plans, rank=rank, ranks=config.ranks, available=available)
        show_json(content, indent=None)
    else:
        show_text(_text(preview, plans, rank=rank, ranks=config.ranks, available=available))
    first = plans[ways[0]]
    if first is not None:
        admit(first, ways[0], available=available, ranks=config.ranks)


def _content(
    preview: Preview, plans: _Plans, *, rank: int, ranks: int, available: int | None
) -> Mapping[str, object]:
    return {
        "rank": rank,
        "ranks": ranks,
        "strategy": preview.strategy,
        "version": preview.version,
        "bytes": preview.bytes,
        "available_bytes": available,
        "phases": [
            {"way": way.value, **asdict(phase), "peak": phase.peak}
            for way, phases in plans.items()
            for phase in phases or ()
        ],
    }


def _text(preview: Preview, plans: _Plans, *, rank: int, ranks: int, available: int | None) -> str:
    version = "a version that it does not name" if preview.version is None else f"version {preview.version}"
    known_bytes = "not known, it could not be read" if available is None else size_text(available)
    lines = [
        f"rank {rank} of {ranks} would load {version} by {preview.strategy}",
        f"available on this host, for all its ranks: {known_bytes}",
    ]
    known = {way: phases for way, phases in plans.items() if phases is not None}
    if not known:
        beside = size_text(preview.peak_extra_bytes)
        return "\n".join([*lines, f"its size is known only as it comes; at most {beside} beside the model"])
    lines.append(f"{'phase':26}{'held':>13}{'read':>13}{'besides':>13}{'peak':>13}")
    for way, phases in known.items():
        for phase in phases:
            numbers = (phase.held, phase.read, phase.taken, phase.peak)
            lines.append(
                f"{way.value + ': ' + phase.name:26}" + "".join(f"{size_text(n):>13}" for n in numbers)
            )
    return "\n".join(lines)
