"""What several actions ask of a command before they run: the same question, the same refusal.

Knows no action by name.
"""

from __future__ import annotations

from wsm.actions.base import ActionContext
from wsm.actions.errors import PreconditionError


def require_load(context: ActionContext, *, action: str) -> None:
    """Refuse a command that brings nothing to load (PreconditionError)."""
    if context.load is None:
        raise PreconditionError(
            action=action,
            found="the command has no load function",
            fix="configure a load strategy for this worker",
        )


def require_digest(context: ActionContext, *, action: str) -> None:
    """Refuse to verify what does not say what it should be (PreconditionError)."""
    if not context.facts.get("digest"):
        raise PreconditionError(
            action=action,
            found="the load reported no digest",
            fix="a load strategy must report the digest of what it applied",
        )
