"""How a command ends when it does not end well: one line on standard error, and an exit code.

=====  ==================================================================================
code   meaning
=====  ==================================================================================
0      done
1      the operation failed, or was refused; the message says what holds now
2      wrong usage: an unknown name, option or group, a bad value or configuration
130    interrupted (Ctrl-C); 129 by a closed terminal, 143 by SIGTERM
=====  ==================================================================================

Knows no command.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

import click

from wsm.cli.printing import show, show_text
from wsm.errors import BadInputError, WsmError
from wsm.shortage import remedy

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
