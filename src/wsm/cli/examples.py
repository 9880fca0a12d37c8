"""``wsm rollout`` and ``wsm demo``: where the reference engine and its training loop are."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from wsm.cli._base import WRONG_USAGE, CommandEndedError, command

_ANY = {"ignore_unknown_options": True}


@command
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def rollout(words: Sequence[str]) -> None:
    """Say where the reference engine is: a group of ranks that generate text, and need paddle.

    It is an example beside the library, and not a part of the wheel. It runs from a clone of the repository.

    Examples
    --------
      wsm rollout --name policy
          how the same is started from a clone
    """
    raise _elsewhere("rollout", words, install="pip install -e '.[cpu,http]' once")


@command
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def demo(words: Sequence[str]) -> None:
    """Say where the demo is: a training loop on a live group of the reference engine.

    It is an example beside the library, and not a part of the wheel. It runs from a clone of the repository.

    Examples
    --------
      wsm demo
          how it is started from a clone
    """
    raise _elsewhere("demo", words, install="pip install -e '.[cpu,dev]' once, or make demo")


rollout.context_settings = demo.context_settings = _ANY


def _elsewhere(name: str, words: Sequence[str], *, install: str) -> CommandEndedError:
    line = shlex.join(["python", "-m", f"examples.{name}", *words])
    return CommandEndedError(
        f"'wsm {name}' is in examples/{name} of wsm's repository, and not in the wheel; in a clone "
        f"run: {line} ({install})",
        exit_code=WRONG_USAGE,
    )
