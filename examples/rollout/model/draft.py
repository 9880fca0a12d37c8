"""The auxiliary draft model: multi-token prediction, on the main model's hidden states.

Further blocks read the last hidden states and guess the token after the next one, one step before the
main model chooses it. It shares embedding, head and life cycle of the main weights and has a KV cache
of its own over the same block numbers. The group does not emit its guesses; it counts how often the
main model agrees, which is what a deployment looks at before it trusts a draft.
"""

from __future__ import annotations

from typing import Any

from examples.rollout.model.attention import PagedKVCache, StepInputs, paged_attention
from examples.rollout.model.graphs import CapturedExecution
from examples.rollout.model.sampling import Choices
from examples.rollout.model.transformer import Decoder, Weights, logits
from examples.rollout.request import GenerationRequest


class DraftModel:
    """One rank's part of the draft model; a :class:`wsm.actions.surfaces.AuxiliarySurface`.

    Parameters
    ----------
    decoder : Decoder
        Runs its blocks: tensor-parallel like the main model's, and always dense.
    kv_cache : PagedKVCache
        Its own.

    Attributes
    ----------
    graphs : CapturedExecution or None
        Set by the runner that captures :meth:`hidden`.
    guessed, agreed : int
        Guesses that could be compared, and those that the main model chose.
    """

    name = "mtp"

    def __init__(self, decoder: Decoder, kv_cache: PagedKVCache) -> None:
        self._decoder = decoder
        self.kv_cache = kv_cache
        self.graphs: CapturedExecution | None = None
        self.guessed = 0
        self.agreed = 0
        self._guesses: dict[str, tuple[int, int]] = {}

    def hidden(self, weights: Weights, main_hidden: Any, inputs: StepInputs) -> Any:
        """Run the draft blocks; same extents in and out. Collective over TP."""
        shape = self._decoder.shape
        attend = paged_attention(self.kv_cache, inputs, shape.head_size)
        for layer in range(shape.draft_layers):
            main_hidden = self._decoder.block(weights, f"mtp_block.{layer}", layer, main_hidden, attend)
        return main_hidden

    def guess(self, weights: Weights, last_hidden: Any) -> list[int]:
        """Return the most likely token after the next one for each row of (rows, width)."""
        guesses: list[int] = logits(weights, last_hidden, norm="mtp_norm.weight").argmax(axis=-1).tolist()
        return guesses

    def compare(self, requests: list[GenerationRequest], choices: Choices, guesses: list[int]) -> None:
        """Judge the guesses of the last step by this step's choices, and keep this step's guesses.

        To be called before the choices are appended to the requests.
        """
        for row, request in enumerate(requests):
            index, guess = self._guesses.get(request.request_id, (-1, -1))
            if index == len(request.tokens):
                self.guessed += 1
                self.agreed += int(guess == choices.tokens[row])
        self._guesses = {
            request.request_id: (len(request.tokens) + 1, guesses[row])
            for row, request in enumerate(requests)
        }

    def reset_inputs(self) -> None:
        """Forget guesses made by the weights of before. Idempotent."""
        self._guesses.clear()
