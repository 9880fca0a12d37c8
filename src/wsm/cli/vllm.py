"""``wsm vllm``: vLLM's own command with wsm in it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

import click

from wsm.cli._base import EXISTING_DIRECTORY, EXIT_CODES, WRONG_USAGE, CommandEndedError, show_text

#: What vLLM loads of, if nothing is named.
_GROUPS = tuple(f"vllm.{kind}_plugins" for kind in ("general", "io_processor", "platform", "stat_logger"))
_PLUGINS, _EXTENSION = "VLLM_PLUGINS", "--worker-extension-cls"


@click.group(
    epilog=EXIT_CODES,
    help="""Serve with vLLM, and let wsm update it as a whole or not at all.

    \b
    Examples:
      wsm vllm serve /models/step-0 --port 8000
          what 'vllm serve' does, and POST /wsm/v1/update
    """,
)
def vllm() -> None:
    """Stand before the command."""


@vllm.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, epilog=EXIT_CODES)
@click.option("--fleet", "store", type=EXISTING_DIRECTORY)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def serve(words: Sequence[str], *, store: Path | None) -> None:
    """Run 'vllm serve' with wsm turned on; all words but --fleet STORE are vLLM's.

    With --fleet the server is a replica of the fleet whose targets lie in this store: text reaches only what
    the newest target allows.

    What wsm itself is told stands in --additional-config '{"wsm": {...}}': roots, store, committed and more,
    as docs/vllm.md says; a key that it does not know ends the start before a model is loaded.

    VLLM_PLUGINS keeps the plugins that it names; where it is not set, it names all that vLLM would load
    without it. A worker extension of your own is kept, too, and has to be a subclass of wsm.vllm.Worker.
    """
    beside = str(Path(sys.executable).parent)  # an environment need not be activated
    program = shutil.which("vllm", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if program is None:
        raise CommandEndedError(
            f"no command 'vllm' in {beside}, nor on PATH; install wsm where vLLM is installed",
            exit_code=WRONG_USAGE,
        )
    if {"--help", "-h"} & {*words}:
        show_text(click.get_current_context().get_help(), err=True)
    from wsm.vllm.options import check_words  # noqa: PLC0415 - of an environment that has vLLM

    check_words(words, is_vllm=False)
    loaded = (found.name for group in _GROUPS for found in entry_points(group=group))
    named = os.environ[_PLUGINS].split(",") if _PLUGINS in os.environ else sorted(loaded)
    plugins = [name for name in dict.fromkeys(named) if name not in ("", "wsm")]
    names_one = any(word.partition("=")[0] == _EXTENSION for word in words)
    extension = [] if names_one else [_EXTENSION, "wsm.vllm.Worker"]
    environment = {**os.environ, _PLUGINS: ",".join([*plugins, "wsm"])}
    if store is not None:
        environment["WSM_FLEET"] = str(store.absolute())
    os.execve(program, ["vllm", "serve", *words, *extension], environment)  # noqa: S606 - it is the command
