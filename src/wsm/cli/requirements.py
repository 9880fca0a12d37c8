"""What a command needs beyond the core, asked for before anything is started."""

from __future__ import annotations

import importlib.util

from wsm.cli import errors


def require_paddle(command: str) -> None:
    """Refuse a command that computes where paddle is not installed. Does not import it.

    Raises
    ------
    RefusedError
        If it is not there.
    """
    if importlib.util.find_spec("paddle") is None:
        raise errors.paddle_required(command=command)
