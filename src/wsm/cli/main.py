"""The entry point of ``wsm``: which commands there are, their common options, and how the process ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final, TextIO

import click

from wsm import __version__, log
from wsm.cli._base import (
    EXIT_CODES,
    WRONG_USAGE,
    CommandEndedError,
    LazyGroup,
    failure_of,
    show_text,
    usage_failure,
)
from wsm.ending import SignalReceived, signals_raise

_COMMANDS: Final = {
    "try": ("wsm.cli.trying:trying", "Show a group at work, in some seconds."),
    "doctor": ("wsm.cli.doctor:doctor", "Show what this host has, and what is missing."),
    "rollout": ("wsm.cli.examples:rollout", "Say where the reference engine is."),
    "status": ("wsm.cli.status:status", "Show what a group, or every group, is doing."),
    "explain": ("wsm.cli.explain:explain_command", "Say why a group does not serve."),
    "clear": ("wsm.cli.commanding:clear", "Release weights and KV cache on every rank."),
    "update": ("wsm.cli.commanding:update", "Load a version on every rank and serve it."),
    "prepare": ("wsm.cli.commanding:prepare", "Load a version on every rank; decide later."),
    "commit": ("wsm.cli.commanding:commit", "Serve what was prepared."),
    "abort": ("wsm.cli.commanding:abort", "Take back what was prepared."),
    "hold": ("wsm.cli.commanding:hold", "Let every rank stand still with all that it has."),
    "release": ("wsm.cli.commanding:release", "Let the ranks of a held group step again."),
    "serve": ("wsm.cli.serving:serve_command", "Let a group be commanded over HTTP."),
    "fleet": ("wsm.cli.fleet:fleet", "Bring many replicas to one version."),
    "vllm": ("wsm.cli.vllm:vllm", "Run vLLM's server with wsm in it."),
    "demo": ("wsm.cli.examples:demo", "Say where the RL loop on a live group is."),
    "inspect": ("wsm.cli.snapshots:inspect", "Show what a rank would load from a directory."),
    "memory": ("wsm.cli.memory_plan:plan", "Show what memory a load would take, by phase."),
    "convert": ("wsm.cli.snapshots:convert", "Turn pickle files into safetensors files."),
    "delta": ("wsm.cli.snapshots:delta", "Put the change between two versions beside them."),
    "adopt": ("wsm.cli.adopting:adopting", "Take in what a trainer wrote, as a version."),
    "digest": ("wsm.cli.digests:digest", "Read what files or a group hold, as digests."),
    "diff": ("wsm.cli.digests:diff", "Show in which tensors two of them differ."),
    "verify": ("wsm.cli.digests:verify", "Hold bytes against the digests promised for them."),
    "journal": ("wsm.cli.journal:journal", "Read journals, and hold them against the tables."),
    "trace": ("wsm.cli.journal:trace", "Draw journals for Perfetto or chrome://tracing."),
    "metrics": ("wsm.cli.metrics:metrics", "Show what Prometheus would scrape of a group."),
    "diagrams": ("wsm.cli.diagrams:diagrams", "Draw the state machines from their tables."),
}

#: Commands that speak through the log even without being asked: they run until they are stopped.
_TALKATIVE = ("rollout", "serve")

#: Commands that a group's server can be asked for.
_OVER_HTTP = ("status", "explain", "clear", "update", "hold", "release", "prepare", "commit", "abort")

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 80, "show_default": True}


@click.group(
    "wsm",
    cls=LazyGroup,
    lazy=_COMMANDS,
    context_settings=_CONTEXT,
    invoke_without_command=True,
    epilog=EXIT_CODES,
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    envvar="WSM_LOG_LEVEL",
    help="Log events of this level and above to standard error. [env: WSM_LOG_LEVEL]",
)
@click.option(
    "--log-format",
    type=click.Choice(["console", "json"]),
    envvar="WSM_LOG_FORMAT",
    help="How log lines look. [env: WSM_LOG_FORMAT]",
)
@click.option(
    "--traceback",
    is_flag=True,
    envvar="WSM_TRACEBACK",
    help="Show tracebacks below an error, a failed rank's first. [env: WSM_TRACEBACK]",
)
@click.option(
    "--url",
    envvar="WSM_URL",
    metavar="URL",
    help="Command the group through its server (wsm serve): http://HOST:PORT, or unix:PATH. The token, if it "
    "needs one, is read from WSM_TOKEN. [env: WSM_URL]",
)
@click.version_option(__version__, prog_name="wsm", message="%(prog)s %(version)s")
@click.pass_context
def wsm(
    ctx: click.Context,
    log_level: str | None,
    log_format: str | None,
    traceback: bool,  # noqa: ARG001 - LazyGroup reads it from the context
    url: str | None,
) -> None:
    """Change the weights of running inference workers.

    A group of ranks serves a version, is cleared (weights and KV cache are released, the processes
    live on), and is updated to another version. The ranks switch together or not at all.

    Any terminal of the host may command and watch a group, by its name; one command at a time. Results go to
    standard output, logs and errors to standard error.
    """
    ctx.obj = url
    if url is not None and ctx.invoked_subcommand not in (None, *_OVER_HTTP):
        raise click.UsageError(
            f"--url is for {', '.join(_OVER_HTTP)}; {ctx.invoked_subcommand} needs this host"
        )
    if ctx.invoked_subcommand is None:
        show_text(ctx.get_help())
        ctx.exit(WRONG_USAGE)
    if log_level:
        os.environ["WSM_LOG_LEVEL"] = log_level  # ranks that we start log as we do
    if log_level or log_format or ctx.invoked_subcommand in _TALKATIVE:
        log.configure(json=log_format == "json", level=log_level or "info")


def run(arguments: Sequence[str], commands: click.Group = wsm) -> int:
    """Run one command line; return the exit code, of those in :mod:`wsm.cli._base`."""
    try:
        with signals_raise():
            code = commands.main(args=arguments, prog_name=commands.name, standalone_mode=False)
    except SignalReceived as received:
        failure = CommandEndedError("interrupted", exit_code=received.exit_code)
    except click.Abort:
        failure = CommandEndedError("interrupted", exit_code=SignalReceived(signal.SIGINT).exit_code)
    except click.ClickException as error:
        failure = usage_failure(error)
    except CommandEndedError as error:
        failure = error
    except OSError as error:  # standard output takes no help
        failure = failure_of(error, with_traceback=False)
    else:
        return code if isinstance(code, int) else 0
    failure.show()
    return failure.exit_code


def main(*words: str, commands: click.Group = wsm) -> int:
    """Run `words` and the command line of this process; return the exit code."""
    code = run([*words, *sys.argv[1:]], commands)
    _flush(sys.stdout)
    _flush(sys.stderr)
    return code


def _flush(stream: TextIO) -> None:
    """Flush a stream; what a terminal that is gone does not take would else change the exit code."""
    try:
        stream.flush()
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
