"""``python -m examples.demo``: the main job at small scale, with its results in a directory."""

from __future__ import annotations

from pathlib import Path

import click

from examples.commands import require
from wsm.cli._base import DIRECTORY, FROM_0, FROM_1, command, wrong_usage
from wsm.ending import Ending
from wsm.errors import WsmError


@command
@click.option(
    "--out", type=DIRECTORY, default="demo-out", help="Where report, picture, trace and journals go."
)
@click.option("--steps", type=FROM_1, default=40, help="Turns of the loop.")
@click.option("--ranks", type=FROM_1, default=2, help="Ranks of the group.")
@click.option("--seed", type=FROM_0, default=0, help="Of weights and prompts.")
@click.option("--no-update", is_flag=True, help="Train, but never update the group.")
@click.option("--hot", is_flag=True, help="Clear nothing: stage each version while the old one serves.")
@click.option(
    "--hold", is_flag=True, help="Clear nothing: pause the group, update it in place, let it go on."
)
def demo(out: Path, *, steps: int, ranks: int, seed: int, no_update: bool, hot: bool, hold: bool) -> None:
    """Train a policy with reinforcement learning while a live group serves it.

    Each step generates answers with the group, clears the group, trains in another process, publishes the new
    weights as a snapshot, and updates the group to them. That every rank holds what was published, and that
    every answer comes from one version, is checked in each step.

    With --hot, the group is never cleared: it serves other requests while the trainer works and while it
    stages the new weights beside the old, and pauses only to switch.

    With --hold, it keeps its memory, too, and stands still while the trainer works: pause, update in place,
    resume, as trainers command an engine.

    A signal ends it at any time, within seconds; a second one kills its processes at once.

    Writes report.json (numbers per step), timeline.png (reward and states), trace.json (every action, for
    Perfetto) and the ranks' journals.

    Examples
    --------
      python -m examples.demo
          the reward rises from chance to almost 1
      python -m examples.demo --no-update --out no-update
          the same without updates: the reward stays flat
      python -m examples.demo --hot --out hot
          each version is staged beside the one that serves
      python -m examples.demo --hold --out hold
          the group stands still with its memory, and is updated in place
    """
    require("demo", "paddle", extras="cpu")
    from examples.demo.loop import run_demo  # noqa: PLC0415 - numpy and more, for this command only
    from examples.demo.settings import DemoSettings  # noqa: PLC0415 - the same

    with wrong_usage():
        settings = DemoSettings(
            out, steps=steps, ranks=ranks, seed=seed, update=not no_update, hot=hot, hold=hold
        )
    ending = Ending()
    try:
        with ending.heeded():
            run_demo(settings, ending=ending)
            ending.check()
    except (WsmError, OSError):
        # What fails while all ends fails because of that; so does what is written to a closed terminal.
        ending.check()
        raise
