"""What a contract and a machine must be told of an engine: how to make, load and drive it, and to ask it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from wsm.actions.base import ActionContext, Loaded
from wsm.actions.options import PlanOptions
from wsm.actions.surfaces import BareRunner
from wsm.strategies.tensor import WeightTarget
from wsm.testing._group import LocalGroup, load_bytes
from wsm.worker import Worker

#: The methods without which no request can be put in.
_OF_REQUESTS: Final = ("turn", "submit", "answered")


class EngineUnderTest:
    """An engine, as :class:`RunnerContract` and ``GroupMachine`` use it; all ranks live in one thread.

    :meth:`make_runner` must be written. With :meth:`turn`, :meth:`submit` and :meth:`answered` the tests have
    requests in flight; without any of the three they have none.

    Attributes
    ----------
    ranks : int
        Ranks of the group.
    configuration : mapping
        Other options of :class:`wsm.WsmConfig`.
    """

    ranks: int = 2
    configuration: Mapping[str, Any] = {}

    def make_runner(self, rank: int) -> BareRunner:
        """Return a new engine that holds no weights and no KV cache.

        Raises
        ------
        NotImplementedError
            Unless it is written.
        """
        raise NotImplementedError

    def plan_options(self, runner: BareRunner) -> PlanOptions:
        """Return what plans are derived from; by default, what the runner's surfaces say."""
        return PlanOptions.from_runner(runner)

    def load(self, context: ActionContext, target: WeightTarget) -> Loaded | Mapping[str, Any]:
        """Load a version; by default every byte of version v is v."""
        return load_bytes(context, target)

    def turn(self, worker: Worker, runner: Any) -> None:  # noqa: ARG002 - for those who write their own
        """Go once through the engine's own loop: poll, and make a step where that says so.

        By default a rank only polls. What this raises fails the test.
        """
        worker.poll()

    def submit(self, runner: Any, steps: int) -> None:
        """Put in a request that is answered after `steps` steps of its own, and not before.

        Raises
        ------
        NotImplementedError
            Unless it is written.
        """
        raise NotImplementedError

    def answered(self, runner: Any) -> int:
        """Count the answers of a runner since it was made, those of requests that were ended among them.

        Raises
        ------
        NotImplementedError
            Unless it is written.
        """
        raise NotImplementedError

    def missing_for_requests(self) -> list[str]:
        """Return the names of the methods that are still to be written for tests with requests in flight."""
        return [name for name in _OF_REQUESTS if getattr(type(self), name) is getattr(EngineUnderTest, name)]

    def let_answer(self, group: LocalGroup, submitted: Sequence[int], *, turns: int) -> None:
        """Let the loops of a group that serves go round until each request has its answer.

        Raises
        ------
        AssertionError
            If that is not so after so many turns: a request was lost, or is not admitted.
        """
        answered = [self.answered(runner) for runner in group.runners]
        while answered != list(submitted) and turns > 0:
            group.turn()
            answered = [self.answered(runner) for runner in group.runners]
            turns -= 1
        assert answered == list(submitted), (
            f"the group serves, and of {list(submitted)} requests by rank {answered} have an answer"
        )

    def make_group(self, directory: str | Path) -> LocalGroup:
        """Return a group of these engines."""
        return LocalGroup(
            self.make_runner,
            directory,
            ranks=self.ranks,
            load=self._load,
            plan_options=self.plan_options,
            configuration=self.configuration,
            loop=None if self.missing_for_requests() else self._turn,
        )

    # `load` and `turn` are the engine's. The machine of `wsm.testing.hypothesis` overrides these two around
    # them, to know what was loaded, and to ask once more while requests drain; else nobody sees that.

    def _load(self, context: ActionContext, target: WeightTarget) -> Loaded | Mapping[str, Any]:
        return self.load(context, target)

    def _turn(self, worker: Worker, runner: BareRunner) -> None:
        self.turn(worker, runner)
