"""``wsm inspect`` and ``wsm convert``: snapshot files, without a group."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from wsm.cli._base import TeachingCommand, Version, json_option, show, show_json
from wsm.printable import counted, size_text
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


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm inspect /models/policy --rank 0", "what rank 0 would load now"),
        ("wsm inspect /models/policy --rank 1 --version 7 --json", "whether version 7 is there for rank 1"),
    ),
)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--rank", type=click.IntRange(min=0), required=True, help="Whose shard.")
@click.option("--version", type=Version(), metavar="V", help="By default the newest announced.")
@click.option("--ranks", type=click.IntRange(min=1), help="Refuse a shard for another number of ranks.")
@click.option(
    "--device", type=click.IntRange(min=0), help="Device number in the file names, if it is not the rank."
)
@click.option(
    "--shared",
    type=click.Path(path_type=Path),
    default=SHARED_DIRECTORY,
    show_default=True,
    help="The place of last resort.",
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
    ranks: int | None,
    device: int | None,
    shared: Path,
    allow_pickle: bool,
    as_json: bool,
) -> None:
    """Show what rank R would load from DIRECTORY with the strategy ipc_snapshot.

    Everything is checked that can be without reading tensors: which of the four places wins, the order of
    the parts, headers, sizes, version and manifest. Nothing is loaded. Exit code 1 says that an update
    would refuse it, and why.
    """
    source = SnapshotSource(
        directory,
        rank,
        device_id=device,
        world_size=ranks,
        shared_directory=shared,
        allow_pickle=allow_pickle,
    )
    preview = inspect_snapshot(source, version)
    if as_json:
        content = {**asdict(preview), "manifest_scope": preview.manifest_scope.value, "rank": rank}
        show_json(content)
    else:
        for line in _lines(preview, rank):
            show(line)


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm convert model_state.tp0.0.pdparams converted/model_state.tp0.0.pdparams", "one file"),
        ("wsm convert old-snapshot new-snapshot", "every pickled snapshot file of a directory"),
    ),
)
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("destination", type=click.Path(path_type=Path))
def convert(source: Path, destination: Path) -> None:
    """Turn pickle files (.pdparams of paddle.save) into safetensors files of the same names.

    Reading a pickle runs whatever code its writer put into it: convert only what you trust. Names, dtypes
    and bytes stay the same; nothing is overwritten. Afterwards ranks load the result without that trust.
    """
    from wsm.strategies.snapshot.convert import convert as convert_files  # noqa: PLC0415 - may need paddle

    report = convert_files(source, destination)
    for old, new in report.converted:
        show(f"{old} -> {new}")
    for file in report.skipped:
        show(f"{file}: no pickle, left as it is")


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
