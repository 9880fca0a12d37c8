"""The command lines of the examples: they end and fail like those of ``wsm``, and take its common options."""

from __future__ import annotations

import importlib.util

from wsm.cli._base import EXIT_CODES, CommandEndedError, LazyGroup
from wsm.cli.main import wsm

EXAMPLES = LazyGroup(
    name="python -m examples",
    lazy={
        "rollout": ("examples.rollout.command:rollout", "Start ranks that generate text."),
        "demo": ("examples.demo.command:demo", "Train a policy while a group serves it."),
    },
    help="Run an example of wsm.",
    params=wsm.params,
    callback=wsm.callback,
    invoke_without_command=True,
    context_settings=wsm.context_settings,
    epilog=EXIT_CODES,
)


def require(example: str, *packages: str, extras: str) -> None:
    """Refuse an example whose packages are not installed. Imports none of them."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise CommandEndedError(
            f"'python -m examples.{example}' needs {', '.join(missing)}, which this Python does not have; "
            f"in the clone run: pip install -e '.[{extras}]' (or gpu in the place of cpu)"
        )
