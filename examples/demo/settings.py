"""What a run of the demo is asked to do, checked before anything starts, and the group that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.rollout.config import RolloutConfig, rollout_config_from_mapping
from examples.rollout.model.shape import ModelShape
from wsm.errors import BadInputError, coded

Tokens = npt.NDArray[np.int64]
Rewards = npt.NDArray[np.float32]


@dataclass(frozen=True)
class CopyTask:
    """Repeat the prompt.

    Parameters
    ----------
    symbols : int
        Size of the alphabet; tokens are ``0..symbols-1``.
    length : int
        Tokens per prompt, and per answer.
    """

    symbols: int = 8
    length: int = 4

    @property
    def chance(self) -> float:
        """Mean reward of a policy that guesses uniformly among the symbols."""
        return 1.0 / self.symbols

    def prompts(self, count: int, *, seed: int) -> Tokens:
        """Draw `count` prompts; the same for the same seed.

        Returns
        -------
        ndarray of int64, shape (count, length)
        """
        return np.random.default_rng(seed).integers(0, self.symbols, (count, self.length), dtype=np.int64)

    def rewards(self, prompts: Tokens, answers: Sequence[Sequence[int]] | Tokens) -> Rewards:
        """Judge answers token by token.

        Parameters
        ----------
        prompts : ndarray of int64, shape (count, length)
            What was asked.
        answers : sequence of sequences of int
            What was generated, one per prompt; one that ended early has no points for what it lacks,
            and tokens after `length` are not judged.

        Returns
        -------
        ndarray of float32, shape (count, length)
            1 where the token is the prompt's, else 0.

        Raises
        ------
        ValueError
            If there is not one answer per prompt.
        """
        if len(answers) != len(prompts):
            raise ValueError(f"{len(answers)} answers to {len(prompts)} prompts: judge each prompt once")
        given = np.full((len(prompts), self.length), -1, np.int64)
        for row, answer in zip(given, answers, strict=True):
            judged = np.asarray(answer[: self.length], np.int64)
            row[: len(judged)] = judged
        points: Rewards = (given == prompts).astype(np.float32)
        return points


#: Where the ranks write their journals, in the output directory.
JOURNAL_DIRECTORY = "journals"

#: Requests that others keep open all the time where updates are hot, so that there are requests to serve.
OTHERS = 4


@dataclass(frozen=True)
class DemoSettings:
    """What a run is asked to do.

    Parameters
    ----------
    out : Path
        Where results go.
    steps : int
        Turns of the loop.
    ranks : int
        Tensor-parallel ranks of the group.
    batch : int
        Prompts per step.
    update : bool
        Whether the group gets the trainer's weights; without, the reward stays where it is.
    hot : bool
        Whether it gets them while it serves: nothing is cleared, and others ask it all the time.
    hold : bool
        Whether the group is held while the trainer works, keeps its memory, and is updated in place.
    seed : int
        Of initial weights, prompts and answers.
    task : CopyTask
        What is learned.
    """

    out: Path
    steps: int = 40
    ranks: int = 2
    batch: int = 128
    update: bool = True
    hot: bool = False
    hold: bool = False
    seed: int = 0
    task: CopyTask = field(default_factory=CopyTask)

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises
        ------
        BadInputError
            If one of them is too small, or hot updates are asked for and none at all.
        BadInputError
            If the model cannot be split over that many ranks.
        """
        for name, least in (("steps", 1), ("ranks", 1), ("batch", 2), ("seed", 0)):
            value = getattr(self, name)
            if value < least:
                raise bad_demo_settings(setting=name, value=value, remedy=f"give at least {least}")
        if self.hold and (self.hot or not self.update):
            raise bad_demo_settings(
                setting="hold", value=True, remedy="leave out --no-update and --hot, or --hold"
            )
        if self.hot and not self.update:
            raise bad_demo_settings(setting="hot", value=True, remedy="leave out --no-update, or --hot")
        self.shape.check_ranks(self.ranks)

    @property
    def shape(self) -> ModelShape:
        """The model that learns; its vocabulary is the task's alphabet."""
        return ModelShape(vocabulary=self.task.symbols)

    def as_mapping(self) -> dict[str, Any]:
        """Return plain values for the report."""
        said = asdict(self)
        del said["out"]
        return {**said, **said.pop("task"), "chance": self.task.chance}


def group_config(settings: DemoSettings, name: str) -> RolloutConfig:
    """Return the configuration of the demo's group."""
    return rollout_config_from_mapping(
        {
            "group": {
                "name": name,
                "ranks": settings.ranks,
                "journal_directory": str((settings.out / JOURNAL_DIRECTORY).resolve()),
            },
            "model": asdict(settings.shape),
            "engine": {"max_batch": settings.batch},
            "seed": settings.seed,
            **({"load": {"concurrency": OTHERS, "seed": settings.seed}} if settings.hot else {}),
        },
        source="demo",
    )


@coded("bad-demo-settings")
def bad_demo_settings(*, setting: str, value: object, remedy: str) -> BadInputError:
    """A setting of the demo is not what it must be."""
    return BadInputError(f"demo: {setting} is {value!r}; {remedy}")
