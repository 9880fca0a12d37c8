"""A group of commands whose modules are imported when they are asked for.

Importing every command would make ``wsm status`` wait for what only ``wsm demo`` needs.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from wsm.cli.failures import CommandEndedError, failure_of, unexpected
from wsm.cli.teaching_command import write_exit_codes
from wsm.errors import WsmError


class LazyCommand(NamedTuple):
    """Where a command is, and what the list of commands says about it."""

    module: str
    attribute: str
    summary: str


class LazyGroup(click.Group):
    """Commands by name.

    Parameters
    ----------
    lazy : mapping of str to LazyCommand
        In the order in which they are listed.
    aliases : mapping of str to str
        Other names that commands go on answering to; they are not listed.
    **attributes : Any
        As for :class:`click.Group`.
    """

    def __init__(
        self, *, lazy: Mapping[str, LazyCommand], aliases: Mapping[str, str], **attributes: Any
    ) -> None:
        super().__init__(**attributes)
        self._lazy, self._aliases = lazy, aliases

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in their own order, not the alphabet's."""
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import the command's module."""
        lazy = self._lazy.get(self._aliases.get(cmd_name, cmd_name))
        if lazy is None:
            return None
        command: click.Command = getattr(importlib.import_module(lazy.module), lazy.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.summary) for name, lazy in self._lazy.items()])
        write_exit_codes(formatter)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for; whatever is raised becomes one line."""
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, CommandEndedError, click.ClickException, click.Abort, click.exceptions.Exit):
            raise  # the reader that closed the pipe has seen enough: click ends quietly
        except (WsmError, OSError) as error:
            raise failure_of(error, with_traceback=ctx.params["traceback"]) from error
        except Exception as error:
            raise unexpected(error, with_traceback=ctx.params["traceback"]) from error
