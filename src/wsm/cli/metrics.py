"""``wsm metrics``: what a group does and did, for Prometheus; once, or for every scrape."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from wsm.cli._base import EXISTING_DIRECTORY, command, show, show_text, wrong_usage
from wsm.cli._groups import image_of
from wsm.metrics.exporter import Alias, Exporter


@command
@click.argument("name", required=False)
@click.option(
    "--http",
    "address",
    metavar="HOST:PORT",
    help="Answer GET /metrics there until interrupted; on the loopback alone.",
)
@click.option(
    "--aliases",
    type=click.Choice(get_args(Alias)),
    multiple=True,
    help="Repeat the metrics of weight updates under these names.",
)
@click.option(
    "--journals",
    type=EXISTING_DIRECTORY,
    metavar="DIRECTORY",
    help="The journals of NAME, where its owner names none.",
)
def metrics(name: str | None, address: str | None, aliases: tuple[Alias, ...], journals: Path | None) -> None:
    """Print the metrics of the group NAME, or of every group of this host.

    They are read off the group's shared memory and its journals, so no process of it is asked, and a dead
    group has them, too. Counters and histograms are of its journal files, where it keeps some; else of the
    last lines in its memory, and of what was written since this process began.

    Examples
    --------
      wsm metrics policy
          what a scrape would get, once
      wsm metrics --http 127.0.0.1:9464
          every group of this host, at /metrics
      wsm metrics policy --http :9464 --aliases vllm
          with vLLM's two names besides
    """
    if journals is not None and name is None:
        raise click.UsageError("--journals needs the NAME of a group")
    exporter = Exporter(name, aliases=aliases, journals=journals)
    if address is not None:
        _serve(exporter, address)
        return
    if name is not None and journals is None:
        image_of(name)  # or it is no group
    show_text(exporter.answer()[2].decode().rstrip("\n"))


def _serve(exporter: Exporter, address: str) -> None:
    from wsm.metrics._endpoint import MetricsServer, parse_address  # noqa: PLC0415 - a server is not always asked

    with wrong_usage():
        host, port = parse_address(address)
    with MetricsServer(exporter, host, port) as server:
        found = server.server_address
        show(f"metrics at http://{f'[{host}]' if ':' in host else host}:{found[1]}/metrics; Ctrl-C ends it")
        server.serve_forever()
