"""``wsm explain``: why a group does not serve, in sentences. Asks no process, and works on a dead group."""

from __future__ import annotations

from pathlib import Path

import click

from wsm.cli._base import FAILED, WRONG_USAGE, CommandEndedError, answer, command, json_option, show_json
from wsm.cli._groups import image_of
from wsm.cli._remote import server_of, server_url
from wsm.cli.journal import Story
from wsm.errors import WsmError
from wsm.signals.layout import segment_path
from wsm.status import Explanation, GroupStatus, explain, facts_of_file
from wsm.status.reading import facts_with_locks
from wsm.status.text import TRANSITIONS


@command
@click.argument("name")
@click.option(
    "--last",
    type=click.IntRange(min=0, max=TRANSITIONS),
    default=TRANSITIONS,
    metavar="N",
    help="How many of the last transitions to show.",
)
@json_option("Print plain values as JSON.")
def explain_command(name: str, last: int, as_json: bool) -> None:
    """Explain what the group NAME is doing and why it does not serve, if it does not.

    NAME may also be the path of a segment, or of a copy of one. Nothing is asked of the group's processes,
    so it works while they hang and after they died; it says what each rank was doing when it did.

    Examples
    --------
      wsm explain policy
          why it does not serve, who waits for whom, what to do
      wsm explain policy --last 0
          the same without its last transitions
      wsm explain ./wsm.policy
          of a file that was copied from shared memory
      wsm explain policy --json | jq .waits
          for programs
    """
    url = server_url()
    if url is not None:
        with server_of(name, url) as client:
            show_json(client.explain())
        return
    explanation = _explained(name)
    story, told = Story(), explanation.transitions[-last:] if last else ()
    parts = (
        explanation.text(),
        "\n".join(["Last transitions:", *map(story.tell, told)]) if told else "",
        "" if explanation.serving else f"Runbook: {explanation.finding} (docs/operating.md)",
    )
    answer(explanation.to_mapping(), *"\n\n".join(filter(None, parts)).split("\n"), as_json=as_json)


def _explained(name: str) -> Explanation:
    """Return what is known; what is no segment is wrong usage, and one that is there and broken a failure."""
    if "/" in name:
        path, exit_code = Path(name), WRONG_USAGE
        facts = facts_of_file(path.name.removeprefix("wsm."), path.resolve())
    else:
        exit_code = FAILED
        try:
            facts = facts_with_locks(name, segment_path(name), image_of(name))
        except WsmError as error:
            facts = GroupStatus(name, problem=str(error))
    explanation = explain(facts)
    if facts.problem:
        raise CommandEndedError(f"{explanation.group} {explanation.headline}", exit_code=exit_code)
    return explanation
