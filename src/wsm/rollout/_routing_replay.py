"""Which experts each token of each request was sent to, for a trainer that replays the routing.

A :class:`wsm.actions.surfaces.RoutingReplaySurface`. Filled by the mixture of experts during a step,
emptied into the answer when a request ends. Bounded by the requests that are running.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class RoutingReplay:
    """The record of one rank.

    Parameters
    ----------
    layers : int
        Blocks with experts.
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._recording = True
        self._step: dict[int, npt.NDArray[np.int64]] = {}
        self._records: dict[str, dict[int, list[list[int]]]] = {}

    def clear_all_requests(self) -> None:
        """Forget the record of every request. Idempotent."""
        self._records.clear()
        self._step.clear()

    def suspend(self) -> None:
        """Record nothing until :meth:`resume`. Idempotent."""
        self._recording = False
        self.clear_all_requests()

    def resume(self) -> None:
        """Go on recording. Idempotent."""
        self._recording = True

    def note(self, layer: int, experts: npt.NDArray[np.int64]) -> None:
        """Take one layer's choices, (tokens, choices), for the step that runs."""
        if self._recording:
            self._step[layer] = experts

    def attribute(self, rows: list[tuple[str, int, int]], length: int) -> None:
        """Book the step's choices.

        Parameters
        ----------
        rows : list of (request id, position of the first token, number of tokens)
            In the order of the step's rows.
        length : int
            Tokens per row in the choices, padding included.
        """
        if len(self._step) == self._layers:
            choices = np.stack([self._step[layer] for layer in range(self._layers)], axis=1)
            for row, (request_id, start, count) in enumerate(rows):
                record = self._records.setdefault(request_id, {})
                for offset in range(count):
                    record[start + offset] = choices[row * length + offset].tolist()
        self._step.clear()

    def take(self, request_id: str, positions: int) -> list[list[list[int]]] | None:
        """Return and forget a request's choices per position; empty where keys and values were reused.

        None if nothing was recorded for it.
        """
        record = self._records.pop(request_id, None)
        return None if record is None else [record.get(position, []) for position in range(positions)]
