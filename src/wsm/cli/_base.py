"""What all commands share: loading on demand, help, options, what is printed, and how a command fails.

What commands print passes :func:`show` and its like, so that no name of others reaches a terminal raw. A
command's module is imported when the command is asked for.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from wsm.cli import errors
from wsm.command import RequestIdError, TagsError, checked_request_id, parse_tags
from wsm.errors import BadInputError, WsmError
from wsm.labels import checked_version
from wsm.printable import printable, printable_json, printable_lines
from wsm.shortage import remedy
from wsm.states.vocabulary import Tag


def show(line: str, *, err: bool = False) -> None:
    """Print one line; a line feed within it is of others, and shown as such."""
    click.echo(printable(line), err=err)


def show_text(text: str, *, err: bool = False) -> None:
    """Print lines that were put together here; names in them went through :func:`wsm.printable.printable`."""
    click.echo(printable_lines(text), err=err)


def show_json(content: Any, *, indent: int | None = 2) -> None:
    """Print plain values as JSON."""
    click.echo(json_text(content, indent=indent))


def json_text(content: Any, *, indent: int | None = None) -> str:
    """Return JSON that a terminal may show; what JSON does not know becomes text."""
    return printable_json(json.dumps(content, indent=indent, default=str))


class Seconds(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on only
    """A finite number of seconds.

    Parameters
    ----------
    zero : bool
        Whether 0 is allowed.
    """

    name = "seconds"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail as wrong usage."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not self._zero):
            least = "of 0 or more" if self._zero else "greater than 0"
            self.fail(f"{value!r} is no number of seconds {least}", param, ctx)
        return seconds


class Version(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on only
    """The label of a version."""

    name = "version"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the label, or fail as wrong usage."""
        try:
            return checked_version(str(value))
        except BadInputError as error:
            self.fail(str(error), param, ctx)


class RequestId(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on only
    """A name that a request may have."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name, or fail as wrong usage."""
        try:
            return checked_request_id(str(value))
        except RequestIdError as error:
            self.fail(str(error), param, ctx)


class RsyncOptions(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on only
    """FastDeploy's ``rsync_config`` as its command line has it: a JSON object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Return the options, or fail as wrong usage."""
        try:
            options = value if isinstance(value, dict) else json.loads(str(value))
        except (ValueError, RecursionError) as error:
            self.fail(f"{value!r} is no JSON ({error})", param, ctx)
        if not isinstance(options, dict):
            self.fail(f"{value!r} is no JSON object", param, ctx)
        return options


class Tags(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on only
    """What a command is about, by whole names separated by commas."""

    name = "tags"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[Tag]:
        """Return the tags, or fail as wrong usage."""
        if isinstance(value, frozenset):
            return value
        try:
            return parse_tags(str(value))
        except TagsError as error:
            self.fail(str(error), param, ctx)


def json_option(help_text: str) -> Callable[[Any], Any]:
    """Return ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help=help_text)


def config_option(help_text: str) -> Callable[[Any], Any]:
    """Return ``--config FILE``; the command is given a path or None."""
    return click.option(
        "--config",
        "config_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help=help_text,
    )


def require_paddle(command: str) -> None:
    """Refuse a command that computes where paddle is not installed. Does not import it.

    Raises
    ------
    RefusedError
        If it is not there.
    """
    if importlib.util.find_spec("paddle") is None:
        raise errors.paddle_required(command=command)


FAILED = 1
WRONG_USAGE = 2

#: What a line says that no error of wsm stands behind.
UNFORESEEN = "this is a bug in wsm"

#: What an error may carry besides its line: what a process on the other side wrote.
_DETAILS = {"remote_traceback": "traceback of rank {rank}", "log": "last lines of rank {rank}"}


class CommandEndedError(Exception):
    """The end of a command, as the terminal shows it.

    Parameters
    ----------
    message : str
        What happened and what to do; shown as one line.
    exit_code : int
        What the process ends with.
    details : str
        Shown below the line; for ``--traceback``.
    """

    def __init__(self, message: str, *, exit_code: int = FAILED, details: str = "") -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code
        self.details = details

    def show(self) -> None:
        """Write the line, and the details if there are any, to standard error."""
        tell(f"error: {self}", err=True)
        if self.details:
            with contextlib.suppress(OSError):
                show_text(self.details, err=True)


def tell(line: str, *, err: bool = False) -> None:
    """Write a line for the reader; a terminal that is gone keeps nothing from its end."""
    with contextlib.suppress(OSError):
        show(line, err=err)


@contextlib.contextmanager
def wrong_usage() -> Iterator[None]:
    """Read what the user gave: inside, bad input is wrong usage, and not a failed operation."""
    try:
        yield
    except BadInputError as error:
        raise CommandEndedError(str(error), exit_code=WRONG_USAGE) from error


def failure_of(error: WsmError | OSError, *, with_traceback: bool) -> CommandEndedError:
    """Return how a command ends with an error.

    Parameters
    ----------
    error : WsmError or OSError
        What was raised.
    with_traceback : bool
        Whether to show the tracebacks, those of other processes included.
    """
    parts = _other_side(error)
    fix = remedy(error)
    said = str(error) if fix is None or fix in str(error) else f"{error}; {fix}"
    if with_traceback:
        here = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        shown = [f"-- {title} --\n{text.rstrip()}" for title, text in (*parts, ("traceback here", here))]
        return CommandEndedError(said, details="\n".join(shown))
    hint = f" [--traceback shows the {parts[0][0]}]" if parts else ""
    return CommandEndedError(f"{said}{hint}")


def unexpected(error: Exception, *, with_traceback: bool) -> CommandEndedError:
    """Return how a command ends with what it did not foresee: one line all the same, and how to tell more."""
    if isinstance(error, MemoryError):
        said = "out of memory; give this process more, or less to read"
    else:
        said = f"{type(error).__name__}: {error}; {UNFORESEEN}: report what 'wsm --traceback ...' shows"
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return CommandEndedError(
        said, details=f"-- traceback here --\n{trace.rstrip()}" if with_traceback else ""
    )


def usage_failure(error: click.ClickException) -> CommandEndedError:
    """Return click's complaint about the command line as one line that says where the help is."""
    ctx = getattr(error, "ctx", None)
    path = "wsm" if ctx is None else ctx.command_path
    message = error.format_message().rstrip(".")
    return CommandEndedError(f"{message}; see '{path} --help'", exit_code=error.exit_code)


def _other_side(error: BaseException) -> list[tuple[str, str]]:
    """Return title and text of what another process wrote about its end, where an error carries it."""
    facts = error.context if isinstance(error, WsmError) else {}
    return [(title.format(**facts), facts[key]) for key, title in _DETAILS.items() if facts.get(key)]


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
