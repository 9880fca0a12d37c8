"""``python -m examples.rollout``: a whole group in the foreground, from its first process to its last."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from examples.commands import require
from wsm.cli._base import FROM_1, command, config_option, tell, wrong_usage
from wsm.cli.serving import listening, listening_options, surfaces_named
from wsm.printable import counted
from wsm.signals.layout import check_name

if TYPE_CHECKING:
    from examples.rollout.supervisor import RolloutSupervisor
    from wsm.http._serving import Listening
    from wsm.http.surface import Surface


@command
@click.option("--name", help="The group's name; may stand in the file instead.")
@click.option("--ranks", type=FROM_1, help="Number of ranks, one process each.  [default: 2]")
@config_option("Sections group, model, engine, load, recovery and seed; every option has a default.")
@listening_options(None)
def rollout(
    *,
    name: str | None,
    ranks: int | None,
    config_file: Path | None,
    address: str | None,
    surfaces: str,
    **options: Any,
) -> None:
    """Start a group of ranks that generate text, and keep it running until Ctrl-C, SIGTERM or SIGHUP.

    Each rank is a process with its share of a small transformer. The group loads the newest version of its
    snapshot directory, or random weights where there is none, and then serves. Afterwards any process of this
    user may clear and update it. A rank that dies is replaced, and the group serves again what it served
    before, unless that happens too often. A signal ends the group at any time, also while it starts, within
    seconds; a second one kills the ranks at once. Nothing is left behind either way.

    Examples
    --------
      python -m examples.rollout --name policy --ranks 2
          two tensor-parallel ranks with random weights
      python -m examples.rollout --name policy --config rollout.yaml &
          as the file says, in the background
      wsm status policy
          from any other terminal; so do 'wsm clear' and 'wsm update'
    """
    require("rollout", "paddle", extras="cpu")
    from examples.rollout.config import load_rollout_config  # noqa: PLC0415 - numpy and more, for this command only
    from examples.rollout.supervisor import run_group  # noqa: PLC0415 - the same

    if name is None and config_file is None:
        raise click.UsageError("the group needs a name: give --name, or a --config that has one")
    with wrong_usage():
        if name is not None:
            check_name(name)
        config = load_rollout_config(config_file, name=name, ranks=ranks)
        check_name(config.group.name)
    if address is None:
        click.get_current_context().exit(run_group(config, _announce, tell))
    require("rollout", "starlette", "uvicorn", "httpx", extras="cpu,http")
    with wrong_usage():
        at = listening(address, **options)
        at.security()
    from examples.rollout.text_requests import EngineRequests  # noqa: PLC0415 - the same
    from examples.rollout.text_routes import with_text  # noqa: PLC0415 - starlette and uvicorn, where it is asked for

    requests = EngineRequests(config.group.name)
    with wrong_usage():
        named = surfaces_named(surfaces, lambda: config.group, options, requests=requests)
    chosen = with_text(named, requests, model=options["served_model_name"])
    with contextlib.ExitStack() as serving:

        def announce(group: RolloutSupervisor) -> None:
            _announce(group)
            serving.enter_context(_served(group, at, chosen))

        code = run_group(config, announce, tell)
    click.get_current_context().exit(code)


@contextlib.contextmanager
def _served(group: RolloutSupervisor, at: Listening, surfaces: Sequence[Surface]) -> Iterator[None]:
    """Command the group over HTTP while the block runs."""
    from wsm.http import Commands, create_app  # noqa: PLC0415 - starlette and uvicorn, where it is asked for
    from wsm.http._serving import MOST_TEXTS, served_beside  # noqa: PLC0415 - the same

    config = group.config.group
    most = min(MOST_TEXTS, group.config.engine.limits.max_waiting)  # all that wait in a hold fit behind it
    with contextlib.closing(Commands(config.name, engine_words=config.engine_words)) as commands:
        app = create_app(commands, surfaces=surfaces, security=at.security(), most_texts=most)
        with served_beside(app, at) as where:
            tell(f"{config.name} is commanded at {where}")
            yield


def _announce(group: RolloutSupervisor) -> None:
    from examples.rollout.run_directory import log_path, run_directory_path  # noqa: PLC0415 - the same

    config = group.config.group
    name = config.name
    now = group.controller.status()
    pids = ", ".join(map(str, group.pids()))
    tell(f"{name} serves version {now.version} on {counted(config.ranks, 'rank')} (processes {pids})")
    if config.strategy == "ipc_snapshot":
        tell(f"snapshots are loaded from {config.snapshot.directory}")
    else:
        tell(f"weights arrive by the strategy {config.strategy}")
    tell(f"ranks log to {log_path(run_directory_path(name), 0)} and so on")
    tell(f"drive it: wsm status {name} | wsm clear {name} | wsm update {name}; Ctrl-C ends it")
