"""Captured CUDA graphs: dropped before anything they point at goes, captured when all of it is back.

The main model comes first, then draft models, which FastDeploy#7522 learnt by a hang.
"""

from __future__ import annotations

from wsm.actions.base import Action, ActionContext
from wsm.actions.measuring import AddressContract
from wsm.actions.surfaces import GraphSurface, NamingGraphs, require


class _Graphs(Action):
    """What dropping and capturing share: the graphs of the main model, or those of all draft models.

    Capturing may run forward passes with collectives in them (FastDeploy's does under TP).
    """

    draft: bool

    def __init__(self, *, capture_is_collective: bool, contract: AddressContract | None = None) -> None:
        self._capture_is_collective = capture_is_collective
        self._contract = contract

    def _surfaces(self, context: ActionContext) -> list[GraphSurface]:
        if not self.draft:
            return [require(context.runner.graphs, name="graphs", action=self.name)]
        found = [auxiliary.graphs for auxiliary in context.runner.auxiliaries]
        return [graphs for graphs in found if graphs is not None]

    def _drop(self, context: ActionContext) -> None:
        for graphs in self._surfaces(context):
            graphs.drop()
        if self._contract is not None:
            self._contract.forget()

    def _capture(self, context: ActionContext) -> None:
        for graphs in self._surfaces(context):
            graphs.capture()
            context.progress()
        if self._contract is not None:
            named = [graphs for graphs in self._surfaces(context) if isinstance(graphs, NamingGraphs)]
            all_say = len(named) == len(self._surfaces(context))
            names_used = {name for graphs in named for name in graphs.captured_tensors()}
            self._contract.record(context.runner.weights, names_used if all_say else None)

    def _expect_all(self, context: ActionContext, *, captured: bool) -> None:
        wrong = sum(bool(graphs.captured()) is not captured for graphs in self._surfaces(context))
        expected = "every graph captured" if captured else "no graph captured"
        self._expect(not wrong, expected, f"{wrong} surface(s) that say otherwise")


class DropMainGraphs(_Graphs):
    """Forget the main model's graphs, while the parameters that they point at still exist."""

    purpose = "drop the main model's CUDA graphs"
    draft = False

    def run(self, context: ActionContext) -> None:
        self._drop(context)

    def probe(self, context: ActionContext) -> None:
        self._expect_all(context, captured=False)

    def undo(self, context: ActionContext) -> None:
        """Capture again if that needs no other rank, else report ``graphs_left_dropped``.

        A rank without graphs serves correctly and slowly, while capturing with some ranks absent hangs.
        """
        if context.done.weights_touched or not context.from_normal:
            return
        if self._capture_is_collective:
            context.facts["graphs_left_dropped"] = True
        else:
            self._capture(context)


class DropDraftGraphs(DropMainGraphs):
    """Forget the draft (MTP) models' graphs, after the main model's and before any weights."""

    purpose = "drop the draft models' CUDA graphs"
    draft = True


class CaptureMainGraphs(_Graphs):
    """Capture the main model's graphs for the new addresses, once weights and KV cache are there."""

    purpose = "capture the main model's CUDA graphs"
    draft = False
    deadline_s = 300.0

    def __init__(self, *, capture_is_collective: bool, contract: AddressContract | None = None) -> None:
        super().__init__(capture_is_collective=capture_is_collective, contract=contract)
        self.collective = capture_is_collective

    def run(self, context: ActionContext) -> None:
        """Capture. Collective if the engine's capture is; blocks for seconds on a GPU."""
        self._capture(context)

    def probe(self, context: ActionContext) -> None:
        self._expect_all(context, captured=True)

    def undo(self, context: ActionContext) -> None:
        self._drop(context)


class CaptureDraftGraphs(CaptureMainGraphs):
    """Capture the draft (MTP) models' graphs, after the main model's."""

    purpose = "capture the draft models' CUDA graphs"
    draft = True
