"""``wsm fleet``: many replicas, brought to one version of a store."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wsm.cli._base import (
    EXISTING_DIRECTORY,
    EXIT_CODES,
    FILE,
    FROM_1,
    SECONDS,
    VERSION,
    config_option,
    json_text,
    options,
    require_http,
    show,
    tell,
    wrong_usage,
)
from wsm.cli._groups import configuration_of
from wsm.cli.serving import listening, of_surfaces, surfaces_named

if TYPE_CHECKING:
    from wsm.fleet import FleetReport, ReplicaRow

_EXIT_CODES = """\b
Exit codes:
  0    all replicas serve the version
  1    some do not: the table says which, and why
  2    wrong usage: unknown name or option, bad value or list
  3    superseded: another caller has set a newer target
  130  interrupted by Ctrl-C: the same call goes on where it stopped"""


@click.group(
    epilog=_EXIT_CODES,
    help="""Bring many replicas to one version.

    A replica is a group behind a server of its own, 'wsm serve NAME'.

    \b
    Examples:
      wsm fleet update 7 --store /models/policy --replicas replicas.json
          prepare and commit them, one at a time
      wsm fleet watch --store /models/policy --replicas replicas.json
          keep them at what was asked for last
      wsm fleet serve --store /models/policy --replicas replicas.json
          a trainer drives them as one at 127.0.0.1:8400
    """,
)
def fleet() -> None:
    """Stand before the commands of a fleet."""


_of_replicas = options(
    click.option("--store", type=EXISTING_DIRECTORY, required=True, help="Where the versions lie."),
    click.option(
        "--replicas",
        metavar="LIST",
        required=True,
        help="A file, a URL that returns one, or addresses with commas between.",
    ),
    click.option(
        "--deadline", "deadline_s", type=SECONDS, default=300.0, help="Seconds for a step of a replica."
    ),
    click.option(
        "--token-file", type=FILE, help="Lines 'PREFIX TOKEN', mode 0600: a token goes there alone."
    ),
    click.option("--insecure", is_flag=True, help="Let a token go over plain HTTP to another host."),
)


_of_rolls = options(
    click.option("--at-a-time", type=FROM_1, default=1, help="How many are committed at once."),
    click.option(
        "--on-failure", type=click.Choice(["stop", "back"]), default="stop", help="What a failed step does."
    ),
)
_of_looks = options(
    click.option("--every", "every_s", type=SECONDS, default=2.0, help="Seconds from one look to the next."),
    click.option("--trust", multiple=True, metavar="CIDR", help="A network that may ask there. Repeatable."),
)


@fleet.command(epilog=_EXIT_CODES)
@click.argument("version", type=VERSION)
@_of_replicas
@_of_rolls
@click.option("--stage-ahead", type=FROM_1, help="How many stand prepared at most. Default: twice as many.")
@click.option("--strict", is_flag=True, help="Let the version before be served no longer, from now on.")
@click.option("--force", is_flag=True, help="Take a list that is less than half as long as the last one.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
@click.pass_context
def update(
    ctx: click.Context,
    /,
    version: str,
    *,
    store: Path,
    replicas: str,
    as_json: bool,
    **terms: Any,
) -> None:
    """Bring all replicas to VERSION: prepare, then commit so many at a time.

    The same call again goes on where it stopped.
    """
    require_http("fleet")
    from wsm import fleet as fleets  # noqa: PLC0415 - httpx, for this command only

    with wrong_usage():
        found = fleets.read_replicas(replicas)
        report = fleets.update(store, version, found, told=_progress(), **terms)
    _show(report, as_json=as_json)
    ctx.exit(report.exit_code)


@fleet.command(epilog=EXIT_CODES)
@_of_replicas
@_of_looks
@click.option(
    "--routable", type=FILE, help="Replace this file by who may get text behind each look; *.json: with ages."
)
@click.option(
    "--http", "address", metavar="[HOST:]PORT", help="Answer /wsm/v1/fleet/routable and /workers there."
)
def watch(
    *,
    store: Path,
    replicas: str,
    routable: Path | None,
    address: str | None,
    trust: tuple[str, ...],
    **terms: Any,
) -> None:
    """Keep all replicas at the newest target, until Ctrl-C.

    Several may do so at once, and beside 'wsm fleet update'. The list is read anew with each look.
    """
    require_http("fleet")
    from wsm import fleet as fleets  # noqa: PLC0415 - httpx, for this command only
    from wsm.fleet.watching import routable_app  # noqa: PLC0415 - the same
    from wsm.http._serving import served_beside  # noqa: PLC0415 - uvicorn, for this command only
    from wsm.http.security import SecurityGuard  # noqa: PLC0415 - the same

    with wrong_usage():
        watching = fleets.FleetWatch(store, lambda: fleets.read_replicas(replicas), told=_progress(), **terms)
        at = None if address is None else listening(address, trust=trust)
        security = None if at is None else at.security()
    with contextlib.ExitStack() as undo:
        if at is not None and security is not None:
            where = undo.enter_context(served_beside(SecurityGuard(routable_app(watching), security), at))
            tell(f"who may get text is told at {where}/wsm/v1/fleet/routable", err=True)
        asyncio.run(watching.run(routable))


@fleet.command(epilog=EXIT_CODES)
@_of_replicas
@_of_rolls
@_of_looks
@click.option("--lease", "lease_s", type=SECONDS, default=30.0, help="Seconds that a hold outlives it.")
@click.option("--http", "address", metavar="[HOST:]PORT", default="127.0.0.1:8400", show_default=True)
@click.option("--surface", "surfaces", metavar="NAME[,NAME...]", default="", help="As of 'wsm serve'.")
@of_surfaces
@click.option("--tokens", type=FILE, help="What its own callers need, as --token-file of 'wsm serve'.")
@config_option("The configuration of a replica's group, by which directories are adopted into the store.")
def serve(
    *, store: Path, replicas: str, address: str, surfaces: str, config_file: Path | None, **asked: Any
) -> None:
    """Offer trainers their verbs once for all replicas, until Ctrl-C.

    What brings weights sets the target, and rolls it. A pause holds all replicas or none.
    """
    require_http("fleet")
    from wsm import fleet as fleets  # noqa: PLC0415 - httpx, for this command only
    from wsm.fleet.serving import FleetCommands, routes  # noqa: PLC0415 - the same
    from wsm.http import _serving, create_app  # noqa: PLC0415 - the same
    from wsm.strategies.trainer.targets import set_address  # noqa: PLC0415 - the same

    rolls = {name: asked.pop(name) for name in ("lease_s", "at_a_time", "on_failure")}
    looks = {name: asked.pop(name) for name in ("every_s", "deadline_s", "token_file", "insecure")}
    with wrong_usage():
        at = listening(address, trust=asked["trust"], token_file=asked["tokens"])
        security = at.security()
        watching = fleets.FleetWatch(store, lambda: fleets.read_replicas(replicas), told=_progress(), **looks)
        chosen = surfaces_named(surfaces, lambda: configuration_of(None, config_file), asked)
    commands = FleetCommands(watching, **rolls)
    app = create_app(commands, surfaces=chosen, security=security, own=routes(watching))

    def announce(where: str) -> None:
        set_address(store, where)
        tell(f"the fleet is commanded at {where}; Ctrl-C ends this, and what it holds")

    _serving.serve(app, at, announce, commands.keep)


def _progress() -> Callable[[ReplicaRow], None]:
    """Return what tells of each row that changes: on a terminal in words, else as JSON lines."""
    in_words = sys.stderr.isatty()

    def told(row: ReplicaRow) -> None:
        tell(" ".join(_cells(row)) if in_words else json_text(row.to_mapping()), err=True)

    return told


def _show(report: FleetReport, *, as_json: bool) -> None:
    if as_json:
        rows = [row.to_mapping() for row in report.rows]
        target = {"generation": report.target.generation, "version": report.target.content.label}
        show(
            json_text({**target, "went_back": report.went_back, "exit_code": report.exit_code, "rows": rows})
        )
        return
    table = [("replica", "version", "digest", "state", "seconds", "error"), *map(_cells, report.rows)]
    widths = [max(len(row[column]) for row in table) for column in range(5)]
    for row in table:
        show("  ".join((*map(str.ljust, row, widths), row[5])).rstrip())


def _cells(row: ReplicaRow) -> tuple[str, ...]:
    error = "" if row.error is None else f"{row.code}: {row.error}"
    held = (row.version or "-", (row.digest or "-")[:12])
    return row.replica.url, *held, row.state.value, f"{row.seconds:.1f}", error
