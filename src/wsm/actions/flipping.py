"""The flip: the staged version takes the served one's place, between two steps of the whole group.

Runs after the decision, when nothing may fail any more; whatever could was tried by :mod:`.staging`. It must
not know where the bytes came from.
"""

from __future__ import annotations

from wsm.actions import names
from wsm.actions.base import Action, ActionContext
from wsm.actions.errors import PostconditionError, PreconditionError
from wsm.actions.surfaces import NamingGraphs, Runner
from wsm.actions.weights import AddressContract


def captured_names(runner: Runner, contract: AddressContract | None) -> frozenset[str]:
    """Return the tensors whose addresses something has captured: these are copied, not flipped.

    Where graphs are captured and neither they nor anybody else says which tensors they use, they may use any.
    """
    recorded = frozenset() if contract is None else contract.captured
    surfaces = [runner.graphs, *(auxiliary.graphs for auxiliary in runner.auxiliaries)]
    held = [graphs for graphs in surfaces if graphs is not None and graphs.captured()]
    named = [graphs for graphs in held if isinstance(graphs, NamingGraphs)]
    if not recorded and len(named) < len(held):
        return frozenset(runner.weights.specs())
    return recorded.union(*(graphs.captured_tensors() for graphs in named))


class FlipWeights(Action):
    """Give every parameter its new memory, or its new bytes where its address is captured.

    What served before is let go later, by the thread that staged: that takes time, and the pause must not.

    Parameters
    ----------
    contract : AddressContract or None
        Captured addresses that must still hold afterwards.
    """

    name = names.FLIP_WEIGHTS
    purpose = "let the staged version take the served one's place"
    touches_weights = True

    def __init__(self, contract: AddressContract | None = None) -> None:
        self._contract = contract

    def run(self, context: ActionContext) -> None:
        """Flip. Local; the same time for any number of bytes, captured tensors aside.

        Raises
        ------
        PreconditionError
            If nothing was staged; nothing was changed.
        """
        if context.staged is None:
            raise PreconditionError(
                action=self.name, found="nothing was staged", fix="run stage_weights first"
            )
        context.weights_touched = True
        context.staged.flip()

    def probe(self, context: ActionContext) -> None:
        """See that every tensor serves what was staged, and captured ones lie where they did.

        Raises
        ------
        PostconditionError
            If one still serves what it served before.
        wsm.actions.errors.StorageMovedError
            If a captured one has moved.
        """
        left = None if context.staged is None else context.staged.unflipped()
        if left is not None:
            raise PostconditionError(
                action=self.name, expected="the staged version in every tensor", found=f"another in {left}"
            )
        if self._contract is not None:
            self._contract.check(context.runner.weights)
