"""``wsm delta``: the change between two published versions, put beside them for ranks that hold the first."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from wsm.cli._base import EXISTING_DIRECTORY, VERSION, answer, command, json_option
from wsm.printable import printable
from wsm.strategies import DeltaReport, delta_between


@command
@click.argument("directory", type=EXISTING_DIRECTORY)
@click.option("--base", type=VERSION, metavar="V", required=True, help="The version that ranks hold.")
@click.option("--version", type=VERSION, metavar="V", required=True, help="The version it leads to.")
@click.option(
    "--crossover",
    type=click.FloatRange(min=0),
    default=0.6,
    help="Write none that is larger than this part of the whole version.",
)
@click.option("--replace", is_flag=True, help="Replace another delta to the same version.")
@json_option("Print the findings as JSON.")
def delta(
    directory: Path, *, base: str, version: str, crossover: float, replace: bool, as_json: bool
) -> None:
    """Write the delta between two versions of DIRECTORY into its deltas/, for every rank.

    Both versions are read once and digested on the way. Ranks that load with the strategy delta and hold the
    base read the delta instead of the whole version; all others load the whole one, as before.

    Examples
    --------
      wsm delta /models/policy --base 6 --version 7
          what turns version 6 into version 7
      wsm delta /models/policy --base 6 --version 7 --json
          the same, with the findings as JSON
    """
    report = delta_between(directory, base, version, crossover=crossover, replace=replace)
    answer({**dataclasses.asdict(report), "ratio": report.ratio}, *_text(report).split("\n"), as_json=as_json)


def _text(report: DeltaReport) -> str:
    part = f"{report.bytes} bytes, {100 * report.ratio:.1f} % of the whole version's {report.whole_bytes}"
    tensors = f"{report.unchanged} unchanged, {report.changed} changed, {report.full} in full"
    end = f"none written: it would take {part}" if report.whole else f"{printable(str(report.path))}: {part}"
    return f"delta from version {report.base_version} to {report.version}\n{end}\ntensors: {tensors}"
