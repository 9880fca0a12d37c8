"""``wsm memory``: the memory that a load would take, phase by phase, before anything is commanded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from wsm.actions.backends.memory import available_bytes
from wsm.cli._base import (
    FILE,
    FROM_0,
    VERSION,
    WRONG_USAGE,
    CommandEndedError,
    answer,
    command,
    json_option,
    wrong_usage,
)
from wsm.cli._groups import read_config
from wsm.config import WsmConfig
from wsm.printable import size_text
from wsm.strategies.applier.admission import LoadWay, load_memory
from wsm.strategies.load import Preview
from wsm.strategies.load import inspect as inspect_source
from wsm.worker.loading import Sources


@command
@click.argument("config_file", metavar="CONFIG", type=FILE)
@click.option("--rank", type=FROM_0, required=True, help="Whose shard.")
@click.option("--version", type=VERSION, metavar="V", help="By default the newest announced.")
@click.option("--hot", is_flag=True, help="Plan for a version that is staged beside the one that serves.")
@json_option("Print the plan as JSON.")
def plan(config_file: Path, *, rank: int, version: str | None, hot: bool, as_json: bool) -> None:
    """Show what memory rank R takes to load a version by the strategy in CONFIG.

    Nothing is loaded and no group is asked: the source is looked at, and its numbers are held against the
    memory that is available on this host now, for all ranks at once. Exit code 1 says that a load in place,
    or with --hot a hot one, would not fit, or that there is no such version.

    Examples
    --------
      wsm memory wsm.yaml --rank 0
          what the announced version takes on rank 0
      wsm memory wsm.yaml --rank 0 --hot --version 7
          whether version 7 fits beside what serves
      wsm memory wsm.yaml --rank 0 --json | jq .phases
          the same in bytes
    """
    with configured_sources(config_file, rank) as (config, sources):
        preview = inspect_source(sources.of(rank), version, name=config.strategy, threads=sources.threads)
    ways = (LoadWay.HOT,) if hot else (LoadWay.IN_PLACE, LoadWay.AFTER_A_CLEAR)
    plans = {way: plan_memory(preview, way) for way in ways}
    available = available_bytes()
    content = {
        "rank": rank,
        "ranks": config.ranks,
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
    answer(content, *_text(content, beside=preview.peak_extra_bytes), as_json=as_json)
    first = plans[ways[0]]
    if first is not None:
        admit(first, ways[0], available=available, ranks=config.ranks)


@dataclass(frozen=True)
class MemoryPhase:
    """One phase of one rank's load; all numbers are bytes of tensors.

    Parameters
    ----------
    name : str
        What happens in it.
    held : int
        What the rank holds of the model when it begins.
    read : int
        What it reads from the source.
    taken : int
        What it takes besides what is held, at most.
    """

    name: str
    held: int
    read: int
    taken: int

    @property
    def peak(self) -> int:
        """The most that is held at any time."""
        return self.held + self.taken


def plan_memory(preview: Preview, way: LoadWay) -> tuple[MemoryPhase, ...] | None:
    """Return the phases of one rank's load; None if the source says only as it comes what it brings.

    Parameters
    ----------
    preview : Preview
        What was found; the model has its tensors.
    way : LoadWay
        Over what it is loaded.
    """
    model, beside = preview.bytes, preview.peak_extra_bytes
    if model is None:
        return None
    if way is LoadWay.IN_PLACE:
        return (MemoryPhase("overwrite", model, model, beside),)
    if way is LoadWay.AFTER_A_CLEAR:
        return (MemoryPhase("fill", 0, model, model + beside),)
    return (
        MemoryPhase("stage", model, model, model + beside),
        MemoryPhase("flip", 2 * model, 0, 0),
        MemoryPhase("let go", 2 * model, 0, 0),
    )


def admit(phases: Sequence[MemoryPhase], way: LoadWay, *, available: int | None, ranks: int) -> None:
    """See that every phase fits into memory that `ranks` ranks share, all of them loading at once.

    Where it is not known how much is `available`, nothing is refused.

    Raises
    ------
    NoRoomError
        If one does not.
    """
    begun = phases[0].held
    for phase in phases:
        needed = ranks * (phase.peak - begun)
        if available is not None and needed > available:
            raise load_memory(way=way, phase=phase.name, needed=needed, available=available, ranks=ranks)


@contextlib.contextmanager
def configured_sources(file: Path, rank: int | None) -> Iterator[tuple[WsmConfig, Sources]]:
    """Give the configuration in `file` and what its ranks load from; one of them alone may be asked for."""
    with wrong_usage():
        config = read_config(file)
        sources = Sources(config)
    with contextlib.closing(sources):
        if rank is not None and rank >= config.ranks:
            said = f"rank {rank} is none of the {config.ranks} of {config.name}"
            raise CommandEndedError(said, exit_code=WRONG_USAGE)
        yield config, sources


def _text(content: Mapping[str, Any], *, beside: int) -> list[str]:
    version, available = content["version"], content["available_bytes"]
    named = "a version that it does not name" if version is None else f"version {version}"
    left = "not known, it could not be read" if available is None else size_text(available)
    lines = [
        f"rank {content['rank']} of {content['ranks']} would load {named} by {content['strategy']}",
        f"available on this host, for all its ranks: {left}",
    ]
    if not content["phases"]:
        most = size_text(beside)
        return [*lines, f"its size is known only as it comes; at most {most} beside the model"]
    lines.append(f"{'phase':26}{'held':>13}{'read':>13}{'besides':>13}{'peak':>13}")
    for phase in content["phases"]:
        numbers = "".join(f"{size_text(phase[key]):>13}" for key in ("held", "read", "taken", "peak"))
        lines.append(f"{phase['way'] + ': ' + phase['name']:26}{numbers}")
    return lines
