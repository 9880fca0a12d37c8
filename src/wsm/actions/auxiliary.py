"""Auxiliary models such as MTP: their KV caches and cached inputs.

Their weights belong to the weight surface and their graphs to :mod:`wsm.actions.cuda_graphs`; what
is left is here. FastDeploy frees and rebuilds the auxiliary cache before the main one, and so do
the plans. Nothing here knows how many auxiliary models there are.
"""

from __future__ import annotations

from wsm.actions import names
from wsm.actions.base import Action, ActionContext
from wsm.actions.errors import PostconditionError
from wsm.actions.kv_cache import carry_over, keeps_untouched, require_forgotten
from wsm.actions.measuring import measure_before


class ReleaseAuxiliaryCache(Action):
    """Free the KV cache of every auxiliary model. It cannot come back, so it counts as touching."""

    name = names.RELEASE_AUXILIARY_CACHE
    purpose = "free the auxiliary models' KV caches"
    touches_weights = True

    def run(self, context: ActionContext) -> None:
        """Release. Local."""
        measure_before(context)
        context.weights_touched = True
        freed = sum(auxiliary.kv_cache.release() for auxiliary in context.runner.auxiliaries)
        context.facts["auxiliary_kv_released_bytes"] = (
            context.facts.get("auxiliary_kv_released_bytes", 0) + freed
        )

    def probe(self, context: ActionContext) -> None:
        """Ask every cache for the bytes still held; PostconditionError names the model that holds some."""
        for auxiliary in context.runner.auxiliaries:
            left = auxiliary.kv_cache.allocated_bytes()
            if left:
                raise PostconditionError(
                    action=self.name, expected="0 bytes", found=f"{left} bytes held by {auxiliary.name}"
                )

    def bytes_freed(self, context: ActionContext) -> int:
        """Bytes of all auxiliary caches as they are now."""
        return sum(auxiliary.kv_cache.allocated_bytes() for auxiliary in context.runner.auxiliaries)


class RebuildAuxiliaryCache(Action):
    """Allocate an empty KV cache for every auxiliary model."""

    name = names.REBUILD_AUXILIARY_CACHE
    purpose = "allocate the auxiliary models' KV caches"

    def run(self, context: ActionContext) -> None:
        """Rebuild. Local. Reports ``auxiliary_kv_bytes``."""
        context.facts["auxiliary_kv_bytes"] = sum(
            auxiliary.kv_cache.rebuild() for auxiliary in context.runner.auxiliaries
        )

    def probe(self, context: ActionContext) -> None:
        """Ask every cache for its bytes; PostconditionError names the model that has none."""
        for auxiliary in context.runner.auxiliaries:
            if not auxiliary.kv_cache.allocated_bytes():
                raise PostconditionError(
                    action=self.name, expected="an allocated cache", found=f"0 bytes held by {auxiliary.name}"
                )

    def undo(self, context: ActionContext) -> None:
        """Free them again. Local."""
        for auxiliary in context.runner.auxiliaries:
            auxiliary.kv_cache.release()


class ForgetAuxiliaryCache(Action):
    """Drop the content of every auxiliary cache, except for what the command keeps.

    Parameters
    ----------
    weights_go : bool
        Whether the weights are given back, and no others come.
    """

    name = names.FORGET_AUXILIARY_CACHE
    purpose = "forget the auxiliary models' KV blocks, unless kept"

    def __init__(self, *, weights_go: bool = False) -> None:
        self._weights_go = weights_go

    def run(self, context: ActionContext) -> None:
        """Do what the policy says, as for the main cache. Local."""
        if keeps_untouched(context, weights_go=self._weights_go):
            return
        for auxiliary in context.runner.auxiliaries:
            carry_over(auxiliary.kv_cache, context.kv_policy, action=self.name)

    def probe(self, context: ActionContext) -> None:
        """Ask every cache for the blocks that can be found still; PostconditionError if one offers any."""
        for auxiliary in context.runner.auxiliaries:
            cache = auxiliary.kv_cache
            require_forgotten(cache, context, weights_go=self._weights_go, action=self.name)


class ResetAuxiliaryInputs(Action):
    """Forget the input tensors that auxiliary models cached from the last batch."""

    name = names.RESET_AUXILIARY_INPUTS
    purpose = "forget the auxiliary models' cached inputs"

    def run(self, context: ActionContext) -> None:
        """Reset. Local."""
        for auxiliary in context.runner.auxiliaries:
            auxiliary.reset_inputs()
