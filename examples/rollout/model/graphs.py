"""Captured execution: what a CUDA graph is to a GPU, on a CPU.

A capture fixes the storage address of every parameter and every input tensor that a function uses, and
from then on the function runs on exactly that memory: no look-ups by name, no new input tensors. If a
parameter has moved or lost its memory since, it refuses to run, where a CUDA graph would read whatever
lies there now. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from examples.rollout import errors
from examples.rollout._plan_channel import StepPlan
from examples.rollout.model.attention import StepInputs
from examples.rollout.model.parameters import Parameters, Permit


class CapturedExecution:
    """One function over the parameters, bound to memory; a :class:`wsm.actions.surfaces.GraphSurface`.

    Capturing is local: it allocates and looks up, but runs no collective.

    Parameters
    ----------
    name : str
        What errors call it.
    parameters : Parameters
        The rank's weights.
    function : callable
        ``function(weights, *arguments)``.
    sizes : sequence of (int, int)
        Rows and blocks per row for which input tensors are kept, ascending; empty for a function that
        gets its tensors from another one.
    block_size : int
        Tokens per KV block.
    """

    def __init__(
        self,
        name: str,
        parameters: Parameters,
        function: Callable[..., Any],
        sizes: Sequence[tuple[int, int]] = (),
        block_size: int = 1,
    ) -> None:
        self.name = name
        self._parameters = parameters
        self._function = function
        self._sizes = sizes
        self._block_size = block_size
        self._addresses: dict[str, int] | None = None
        self._inputs: list[StepInputs] = []

    def capture(self) -> None:
        """Capture for the parameters' present addresses.

        Raises
        ------
        RefusedError
            If a parameter holds no memory.
        """
        self.drop()
        addresses = {name: tensor.data_ptr() for name, tensor in self._parameters.state_dict().items()}
        for name, address in addresses.items():
            if not address:
                raise errors.stale_graph(graph=self.name, name=name, reason="holds no memory")
        self._inputs = [StepInputs(rows, 1, blocks, self._block_size) for rows, blocks in self._sizes]
        self._addresses = addresses

    def drop(self) -> None:
        """Forget the capture. Idempotent."""
        self._addresses = None
        self._inputs = []

    def captured(self) -> bool:
        """Whether a capture is held."""
        return self._addresses is not None

    def place(self, plan: StepPlan) -> StepInputs | None:
        """Write a decode step into the smallest captured inputs that hold it; None if there are none."""
        if plan.is_decode:
            for inputs in self._inputs:
                if inputs.rows >= plan.rows and inputs.blocks >= plan.tables.shape[1]:
                    inputs.fill(plan)
                    return inputs
        return None

    def reset_inputs(self) -> None:
        """Turn all captured inputs into padding. Idempotent."""
        for inputs in self._inputs:
            inputs.reset()

    def run(self, permit: Permit | None, *arguments: Any) -> Any:
        """Run the function on the captured memory.

        Raises
        ------
        RefusedError
            Without a permit.
        wsm.errors.WsmError
            Whatever the permit raises once its step is over.
        RefusedError
            If nothing is captured, or a parameter is not where it was.
        """
        if permit is None:
            raise errors.step_permit_missing()
        permit.check()
        if self._addresses is None:
            raise errors.stale_graph(graph=self.name, name="everything", reason="was dropped")
        for name, tensor in self._parameters.state_dict().items():
            if tensor.data_ptr() != self._addresses[name]:
                held = tensor._is_initialized()
                reason = "lies elsewhere than when it was captured" if held else "was released"
                raise errors.stale_graph(graph=self.name, name=name, reason=reason)
        return self._function(self._parameters.state_dict(), *arguments)


def powers_of_two(limit: int) -> list[int]:
    """Return 1, 2, 4, … and `limit` itself as the last."""
    sizes = [1 << exponent for exponent in range(limit.bit_length()) if 1 << exponent < limit]
    return [*sizes, limit]
