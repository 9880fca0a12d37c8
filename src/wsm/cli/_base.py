"""The parts that all commands share: loading on demand, help, options, printing, and how a command fails.

Commands print by :func:`show` and its like, so that no name of others reaches a terminal raw. A
command's module is imported when the command is asked for.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import json
import math
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from wsm.command import checked_request_id, parse_tags
from wsm.errors import BadInputError, WsmError, remedy
from wsm.labels import checked_version
from wsm.named import object_at
from wsm.printable import printable, printable_json, printable_lines


def show(line: str, *, err: bool = False) -> None:
    """Print one line; a line feed within it is of others, and shown as such."""
    click.echo(printable(line), err=err)


def show_text(text: str, *, err: bool = False) -> None:
    """Print lines that were put together here; names in them went through :func:`wsm.printable.printable`."""
    click.echo(printable_lines(text), err=err)


def show_json(content: Any) -> None:
    """Print plain values as JSON."""
    click.echo(json_text(content, indent=2))


def answer(content: Any, *lines: str, as_json: bool) -> None:
    """Print the result of a command: plain values as JSON, or its lines as :func:`show` prints them."""
    if as_json:
        show_json(content)
    else:
        for line in lines:
            show(line)


def json_text(content: Any, *, indent: int | None = None) -> str:
    """Return JSON that a terminal may show; what JSON does not know becomes text."""
    return printable_json(json.dumps(content, indent=indent, default=str))


class Checked(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on only
    """A parameter that one of wsm's checks converts; bad input is wrong usage."""

    def __init__(self, name: str, check: Callable[[Any], Any]) -> None:
        self.name = name
        self._check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value, or fail as wrong usage."""
        try:
            return self._check(value)
        except (BadInputError, ValueError) as error:
            self.fail(str(error), param, ctx)


def _seconds(value: Any, *, zero: bool) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not zero):
        least = "of 0 or more" if zero else "greater than 0"
        raise ValueError(f"{value!r} is no number of seconds {least}")
    return seconds


def _rsync_options(value: Any) -> dict[str, Any]:
    """Return FastDeploy's ``rsync_config`` as its command line has it: a JSON object."""
    try:
        options = value if isinstance(value, dict) else json.loads(str(value))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{value!r} is no JSON ({error})") from error
    if not isinstance(options, dict):
        raise ValueError(f"{value!r} is no JSON object")  # noqa: TRY004 - click's function takes this one
    return options


FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
DIRECTORY = click.Path(file_okay=False, path_type=Path)
EXISTING_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
PATH = click.Path(path_type=Path)
FROM_0, FROM_1 = click.IntRange(min=0), click.IntRange(min=1)

SECONDS = Checked("seconds", functools.partial(_seconds, zero=False))
SECONDS_OR_NONE = Checked("seconds", functools.partial(_seconds, zero=True))
VERSION = Checked("version", lambda value: checked_version(str(value)))
REQUEST_ID = Checked("text", lambda value: checked_request_id(str(value)))
RSYNC_OPTIONS = Checked("json", _rsync_options)
#: Whole names, separated by commas.
TAGS = Checked("tags", lambda value: value if isinstance(value, frozenset) else parse_tags(str(value)))


def options(*several: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return several options as one decorator, in their order."""
    return lambda function: functools.reduce(lambda made, option: option(made), reversed(several), function)


def json_option(help_text: str) -> Callable[[Any], Any]:
    """Return ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help=help_text)


def config_option(help_text: str) -> Callable[[Any], Any]:
    """Return ``--config FILE``; the command is given a path or None."""
    return click.option("--config", "config_file", type=EXISTING_FILE, metavar="FILE", help=help_text)


def require_http(command: str) -> None:
    """Refuse a command that speaks HTTP where the extra is not installed. Does not import it."""
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn", "httpx")):
        raise CommandEndedError(
            f"'wsm {command}' speaks HTTP, and starlette, uvicorn or httpx is not installed; "
            "pip install 'wsm[http]'"
        )


def named_object(where: str) -> Any:
    """Return what ``MODULE:NAME`` names; the current directory is searched as well.

    Raises
    ------
    ImportError
        If nothing can be imported from there, with what that module raised.
    """
    sys.path.insert(0, "")
    try:
        return object_at(where)
    except Exception as error:  # whatever that module raises
        raise ImportError(f"{type(error).__name__}: {error}") from error
    finally:
        sys.path.remove("")


FAILED = 1
WRONG_USAGE = 2

#: The end of a line about an error that wsm did not foresee.
UNFORESEEN = "this is a bug in wsm"

#: The context of an error that holds text of a process on the other side.
_DETAILS = {"remote_traceback": "traceback of rank {rank}", "log": "last lines of rank {rank}"}


class CommandEndedError(Exception):
    """The end of a command, as the terminal shows it.

    Parameters
    ----------
    message : str
        The event and the way out; shown as one line.
    exit_code : int
        The exit code of the process.
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


def failure_of(error: Exception, *, with_traceback: bool) -> CommandEndedError:
    """Return how a command ends with an error: one line, and the tracebacks of all processes if asked for."""
    parts = _other_side(error)
    if isinstance(error, (WsmError, OSError)):
        fix = remedy(error)
        said = str(error) if fix is None or fix in str(error) else f"{error}; {fix}"
    elif isinstance(error, MemoryError):
        said = "out of memory; give this process more, or less to read"
    else:
        said = f"{type(error).__name__}: {error}; {UNFORESEEN}: report what 'wsm --traceback ...' shows"
    if with_traceback:
        here = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        shown = [f"-- {title} --\n{text.rstrip()}" for title, text in (*parts, ("traceback here", here))]
        return CommandEndedError(said, details="\n".join(shown))
    hint = f" [--traceback shows the {parts[0][0]}]" if parts else ""
    return CommandEndedError(f"{said}{hint}")


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


#: The end of the help of every command.
EXIT_CODES = """\b
Exit codes:
  0    done
  1    the operation failed or was refused; the message says what holds now
  2    wrong usage: unknown name or option, bad value or configuration
  130  interrupted by Ctrl-C (128 + N: by signal N)"""


def command(function: Callable[..., None]) -> click.Command:
    """Make a command of a function, with its docstring as the help; examples in it keep their lines."""
    text = (inspect.getdoc(function) or "").replace("Examples\n--------\n", "\b\nExamples:\n")
    return click.command(help=text, epilog=EXIT_CODES)(function)


class LazyGroup(click.Group):
    """Commands by name.

    Parameters
    ----------
    lazy : mapping of str to (str, str)
        The place of each, ``MODULE:NAME``, and its line in the list of commands, in their order there.
    **attributes : Any
        As for :class:`click.Group`.
    """

    def __init__(self, *, lazy: Mapping[str, tuple[str, str]], **attributes: Any) -> None:
        super().__init__(**attributes)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in their own order, not the alphabet's."""
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import the command's module."""
        command: click.Command | None = None
        if cmd_name in self._lazy:
            command = object_at(self._lazy[cmd_name][0])
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._lazy.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for; whatever is raised becomes one line."""
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, CommandEndedError, click.ClickException, click.Abort, click.exceptions.Exit):
            raise  # the reader that closed the pipe has seen enough: click ends quietly
        except Exception as error:
            raise failure_of(error, with_traceback=ctx.params["traceback"]) from error
