"""``wsm status``: what a group is doing, read off its words. Asks no process and disturbs none."""

from __future__ import annotations

import click

from wsm.cli._base import (
    SECONDS,
    CommandEndedError,
    answer,
    command,
    json_option,
    json_text,
    show,
    show_json,
    show_text,
)
from wsm.cli._groups import viewed_group
from wsm.cli._remote import server_url, show_status
from wsm.errors import WsmError
from wsm.signals.segment import existing_groups
from wsm.status import GroupStatus, status_line, status_of, status_text


@command
@click.argument("name", required=False)
@json_option("Print plain values as JSON; with --watch, one line per change.")
@click.option("--watch", is_flag=True, help="Show changes until interrupted.")
@click.option(
    "--every", "every_s", type=SECONDS, default=0.5, help="Longest time between two looks with --watch."
)
def status(name: str | None, as_json: bool, watch: bool, every_s: float) -> None:
    """Show what the group NAME is doing; without NAME, every group of this host.

    It reads the group's shared memory and needs no help from the ranks, so it also works while they hang, and
    after they died.

    The table has one row per rank. 'weights' and 'KV' are its states. 'step' is 'running N' while it steps or
    may step, 'parked N' where it has stood still since a command, 'broken N' after a step raised.
    'code/sequence' is how far it is with which command; RUNNING(3) is in the fourth action of its plan.

    Examples
    --------
      wsm status
          one line for every group of this host
      wsm status policy
          one group, rank by rank
      wsm status policy --watch
          the same, anew whenever it changes; Ctrl-C ends it
      wsm status policy --json | jq .serving
          for programs
    """
    url = server_url()
    if url is not None:
        if name is None or watch:
            raise click.UsageError("--url needs the NAME of a group, and goes without --watch")
        show_status(name, url, as_json=as_json)
    elif name is None:
        if watch:
            raise click.UsageError("--watch needs the NAME of a group")
        _show_all(as_json=as_json)
    elif watch:
        _watch(name, every_s, as_json=as_json)
    else:
        with viewed_group(name) as group:
            now = group.status()
        answer(now.to_mapping(), *status_text(now).split("\n"), as_json=as_json)


def _show_all(*, as_json: bool) -> None:
    found: list[GroupStatus] = []
    broken: dict[str, str] = {}
    for name in existing_groups():
        try:
            with viewed_group(name) as group:
                found.append(group.status())
        except (WsmError, CommandEndedError) as error:  # noqa: PERF203 - one that cannot be read must not hide the others
            broken[name] = str(error)
    if as_json:
        show_json([now.to_mapping() for now in found])
        return
    lines = [*map(status_line, found), *(f"{name}: unreadable: {why}" for name, why in broken.items())]
    for line in lines or ["no group on this host; 'wsm try' shows one"]:
        show(line)


def _watch(name: str, every_s: float, *, as_json: bool) -> None:
    """Show the group whenever a word changes, and after `every_s` seconds in any case, until interrupted."""
    shown = ""
    while True:
        with viewed_group(name) as group:
            while not group.segment.inode_changed():
                look = group.look()
                now = status_of(group.facts().without_times())
                text = json_text(now.to_mapping()) if as_json else status_text(now)
                if text != shown:
                    if not as_json:
                        click.clear()  # of a terminal alone
                    show_text(text)
                    shown = text
                group.wait(look, every_s)
