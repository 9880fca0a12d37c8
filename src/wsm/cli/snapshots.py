"""``wsm inspect``, ``wsm convert`` and ``wsm delta``: files of versions, without a group."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from wsm.cli._base import (
    EXISTING_DIRECTORY,
    FROM_0,
    FROM_1,
    PATH,
    VERSION,
    answer,
    command,
    json_option,
    show,
)
from wsm.printable import counted, printable, size_text
from wsm.strategies import DeltaReport, delta_between
from wsm.strategies.files.snapshot_names import SHARED_DIRECTORY
from wsm.strategies.load import Preview
from wsm.strategies.load import inspect as inspect_snapshot
from wsm.strategies.offer import ManifestScope
from wsm.strategies.snapshot.source import SnapshotSource

_SCOPES = {
    ManifestScope.GROUP: "of the version, equal on all ranks",
    ManifestScope.RANK: "of this rank's shard alone",
    ManifestScope.LOADED: "",
}


@command
@click.argument("directory", type=PATH)
@click.option("--rank", type=FROM_0, required=True, help="Whose shard.")
@click.option("--version", type=VERSION, metavar="V", help="By default the newest announced.")
@click.option("--ranks", "world_size", type=FROM_1, help="Refuse a shard for another number of ranks.")
@click.option(
    "--device", "device_id", type=FROM_0, help="Device number in the file names, if it is not the rank."
)
@click.option(
    "--shared", "shared_directory", type=PATH, default=SHARED_DIRECTORY, help="The place of last resort."
)
@click.option(
    "--allow-pickle", is_flag=True, help="Read files in pickle format too, which runs code in them."
)
@json_option("Print the findings as JSON.")
def inspect(
    directory: Path,
    *,
    rank: int,
    version: str | None,
    as_json: bool,
    **lies: Any,
) -> None:
    """Show what rank R would load from DIRECTORY with the strategy ipc_snapshot.

    Everything is checked that can be without reading tensors: which of the four places wins, the order of
    the parts, headers, sizes, version and manifest. Nothing is loaded. Exit code 1 says that an update
    would refuse it, and why.

    Examples
    --------
      wsm inspect /models/policy --rank 0
          what rank 0 would load now
      wsm inspect /models/policy --rank 1 --version 7 --json
          whether version 7 is there for rank 1
    """
    preview = inspect_snapshot(SnapshotSource(directory, rank, **lies), version)
    content = {**asdict(preview), "manifest_scope": preview.manifest_scope.value, "rank": rank}
    answer(content, *_lines(preview, rank), as_json=as_json)


@command
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("destination", type=PATH)
def convert(source: Path, destination: Path) -> None:
    """Turn pickle files (.pdparams of paddle.save) into safetensors files of the same names.

    Reading a pickle runs whatever code its writer put into it: convert only what you trust. Names, dtypes
    and bytes stay the same; nothing is overwritten. Afterwards ranks load the result without that trust.

    Examples
    --------
      wsm convert model_state.tp0.0.pdparams converted/model_state.tp0.0.pdparams
          one file
      wsm convert old-snapshot new-snapshot
          every pickled snapshot file of a directory
    """
    from wsm.strategies.files.part_file import convert as convert_files  # noqa: PLC0415 - may need paddle

    report = convert_files(source, destination)
    for old, new in report.converted:
        show(f"{old} -> {new}")
    for file in report.skipped:
        show(f"{file}: no pickle, left as it is")


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
    answer({**asdict(report), "ratio": report.ratio}, *_delta_lines(report), as_json=as_json)


def _lines(preview: Preview, rank: int) -> list[str]:
    version = "unknown (no manifest, no version.yaml)" if preview.version is None else str(preview.version)
    digest, scope = preview.manifest_digest, _SCOPES[preview.manifest_scope]
    return [
        f"rank {rank} would load {counted(preview.tensors or 0, 'tensor')}, {_size(preview.bytes or 0)}",
        f"version   {version}",
        f"manifest  {digest} {scope}" if digest else "manifest  none: no digest is promised",
        f"memory    at most {_size(preview.peak_extra_bytes)} beside the model while loading",
        *(f"file      {file}" for file in preview.files),
        *(f"ignored   {file}: its name holds no part number" for file in preview.ignored),
    ]


def _size(count: int) -> str:
    return f"{size_text(count)} ({count} bytes)" if count >= 1 << 10 else size_text(count)


def _delta_lines(report: DeltaReport) -> list[str]:
    part = f"{report.bytes} bytes, {100 * report.ratio:.1f} % of the whole version's {report.whole_bytes}"
    return [
        f"delta from version {report.base_version} to {report.version}",
        f"none written: it would take {part}" if report.whole else f"{printable(str(report.path))}: {part}",
        f"tensors: {report.unchanged} unchanged, {report.changed} changed, {report.full} in full",
    ]
