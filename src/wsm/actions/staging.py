"""A second version beside the one that serves: loaded, verified, and made ready to take its place.

All of it runs while the rank serves, and may fail without anybody noticing but the caller. What follows the
decision is in :mod:`.flipping`. It must not touch what is served.
"""

from __future__ import annotations

from wsm.actions import names
from wsm.actions.base import Action, ActionContext
from wsm.actions.errors import PostconditionError, PreconditionError, StagingUnsupportedError
from wsm.actions.flipping import captured_names
from wsm.actions.preconditions import require_digest, require_load
from wsm.actions.staging_surface import StageableWeights, StagedWeights
from wsm.actions.verify import ResidentDigest
from wsm.actions.weights import AddressContract


def staged_weights(context: ActionContext, action: str) -> StagedWeights:
    """Return what was staged for the command.

    Raises
    ------
    PreconditionError
        If nothing was.
    """
    if context.staged is None:
        raise PreconditionError(action=action, found="nothing was staged", fix="run stage_weights first")
    return context.staged


class StageWeights(Action):
    """Run the configured strategy into memory of its own, with every check of an ordinary load."""

    name = names.STAGE_WEIGHTS
    purpose = "load the version beside the one that serves"
    deadline_s = 600.0

    def precondition(self, context: ActionContext) -> None:
        """Refuse a command that brings nothing to load (PreconditionError)."""
        require_load(context, action=self.name)

    def run(self, context: ActionContext) -> None:
        """Stage. Local; blocks as long as the strategy does. Its facts become the command's facts."""
        weights = context.runner.weights
        if not isinstance(weights, StageableWeights):
            raise StagingUnsupportedError(weights=type(weights).__name__)
        context.staged = weights.stage()
        if context.load is not None:  # the precondition refused this already; it narrows the type here
            context.facts.update(context.load(context, context.staged))

    def undo(self, context: ActionContext) -> None:
        """Let go of what was staged. Local."""
        if context.staged is not None:
            context.staged.give_back()


class VerifyStaged(Action):
    """The staged bytes, read again, are the bytes that the source declared.

    Parameters
    ----------
    digest : callable
        Gives what is comparable with the load's ``digest`` fact.
    """

    name = names.VERIFY_STAGED
    purpose = "compare the staged bytes with the manifest"
    deadline_s = 300.0

    def __init__(self, digest: ResidentDigest) -> None:
        self._digest = digest

    def precondition(self, context: ActionContext) -> None:
        """Refuse to verify what does not say what it should be (PreconditionError)."""
        require_digest(context, action=self.name)

    def run(self, context: ActionContext) -> None:
        """Verify. Local; reads every byte once, at the speed of the memory bus.

        Raises
        ------
        PostconditionError
            If the digest of the staged bytes differs.
        wsm.errors.WsmError
            Whatever staged weights raise for a tensor that was not loaded.
        """
        digest = self._digest(staged_weights(context, self.name), context.progress)
        if digest != context.facts["digest"]:
            raise PostconditionError(
                action=self.name, expected=f"digest {context.facts['digest']}", found=digest
            )


class MakeFlipReady(Action):
    """See that nothing can keep the staged version from taking the served one's place.

    Parameters
    ----------
    contract : AddressContract or None
        Captured addresses that must not change.
    """

    name = names.MAKE_FLIP_READY
    purpose = "check addresses, and prepare the flip of every tensor"

    def __init__(self, contract: AddressContract | None = None) -> None:
        self._contract = contract

    def run(self, context: ActionContext) -> None:
        """Check and prepare. Local, changes nothing that serves. Reports ``tensors_copied_in_place``.

        Raises
        ------
        StorageMovedError
            If a captured tensor lies elsewhere than where it was captured.
        wsm.errors.WsmError
            Whatever staged weights raise that cannot be flipped.
        """
        weights = context.runner.weights
        if self._contract is not None:
            self._contract.check(weights)
        captured = captured_names(context.runner, self._contract)
        context.facts["tensors_copied_in_place"] = len(captured)
        staged_weights(context, self.name).make_ready(captured)

    def probe(self, context: ActionContext) -> None:
        """See that a flip would flip, while the old version can still be kept.

        Raises
        ------
        PostconditionError
            If it would not.
        """
        if not staged_weights(context, self.name).is_ready():
            raise PostconditionError(action=self.name, expected="a flip that is prepared", found="none")
