"""Commands whose ``--help`` teaches: what happens, how it is used, how it can end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

_EXIT_CODES = (
    ("0", "done"),
    ("1", "the operation failed or was refused; the message says what holds now"),
    ("2", "wrong usage: unknown name or option, bad value or configuration"),
    ("130", "interrupted by Ctrl-C (128 + N: by signal N)"),
)


class TeachingCommand(click.Command):
    """A command with examples.

    Parameters
    ----------
    examples : sequence of (str, str)
        Command lines, each with what it does.
    **attributes : Any
        As for :class:`click.Command`.
    """

    def __init__(self, *, examples: Sequence[tuple[str, str]] = (), **attributes: Any) -> None:
        super().__init__(**attributes)
        self._examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write the examples and the exit codes below the options."""
        if self._examples:
            with formatter.section("Examples"):
                for line, meaning in self._examples:
                    formatter.write_text(line)
                    with formatter.indentation():
                        formatter.write_text(meaning)
        write_exit_codes(formatter)


def write_exit_codes(formatter: click.HelpFormatter) -> None:
    """Write the codes that every command ends with."""
    with formatter.section("Exit codes"):
        formatter.write_dl(_EXIT_CODES)
