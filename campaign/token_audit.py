"""Recomputes greedy tokens in one process, without any cache, from the weights that the answer names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from campaign.load import Answered, shape_problem
from examples.rollout.model.shape import ModelShape
from examples.rollout.model.sharding import initial_state
from wsm.states.vocabulary import KVPolicy


class TokenAudit:
    """What each version says after each sequence; computed once.

    Parameters
    ----------
    shape : ModelShape
        The model; the weights of a version are those whose seed is its number.
    policies : mapping
        By which KV policy each version came; those that are not in it, by DROP. A token that was chosen from
        blocks of several versions belongs to none of them: it must be marked, and its policy must allow it.
    """

    def __init__(self, shape: ModelShape, policies: Mapping[int, KVPolicy] = MappingProxyType({})) -> None:
        self._shape = shape
        self._policies = policies
        self.last_version: int | None = None
        self._next: dict[tuple[int, tuple[int, ...]], int] = {}
        self._weights = lru_cache(maxsize=4)(self._load)

    def check(self, answers: Iterable[Answered]) -> tuple[int, list[str]]:
        """Check every token; return how many there were and what is wrong with them."""
        checked = 0
        problems: list[str] = []
        for answer in answers:
            found = answer.generation
            problem = shape_problem(answer)
            if problem is not None:
                problems.append(f"request {answer.prompt}: {problem}")
                continue
            for index, (token, label) in enumerate(zip(found.tokens, found.versions, strict=True)):
                checked, version = checked + 1, int(label)
                self.last_version = version
                if index in found.mixed:
                    if self._policies.get(version, KVPolicy.DROP) is KVPolicy.DROP:
                        problems.append(f"request {answer.prompt}: token {index} is mixed, {version} drops")
                    continue
                expected = self._token(version, (*answer.prompt, *found.tokens[:index]))
                if token != expected:
                    problems.append(
                        f"request {answer.prompt}: token {index} is {token}; "
                        f"version {version}, which it names, says {expected}"
                    )
                    break
        return checked, problems[:5]

    def _token(self, version: int, sequence: tuple[int, ...]) -> int:
        key = (version, sequence)
        if key not in self._next:
            import paddle  # noqa: PLC0415 - a second, and a memory group needs none of it

            from examples.rollout.model.moe import local_mixture  # noqa: PLC0415 - the same
            from examples.rollout.model.transformer import full_logits  # noqa: PLC0415 - the same

            with paddle.no_grad():
                tokens = paddle.to_tensor([list(sequence)])
                odds = full_logits(self._shape, self._weights(version), tokens, local_mixture(self._shape))
            self._next[key] = int(odds[0, -1].argmax())
        return self._next[key]

    def _load(self, version: int) -> dict[str, Any]:
        import paddle  # noqa: PLC0415 - as above

        return {name: paddle.to_tensor(array) for name, array in initial_state(self._shape, version).items()}
