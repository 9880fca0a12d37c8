"""What a run of the demo is asked to do, checked before anything starts, and the group that follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wsm.demo import errors
from wsm.demo.task import CopyTask
from wsm.rollout.config import RolloutConfig, rollout_config_from_mapping
from wsm.rollout.model.shape import ModelShape

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
                raise errors.bad_demo_settings(setting=name, value=value, remedy=f"give at least {least}")
        if self.hold and (self.hot or not self.update):
            raise errors.bad_demo_settings(
                setting="hold", value=True, remedy="leave out --no-update and --hot, or --hold"
            )
        if self.hot and not self.update:
            raise errors.bad_demo_settings(
                setting="hot", value=True, remedy="leave out --no-update, or --hot"
            )
        self.shape.check_ranks(self.ranks)

    @property
    def shape(self) -> ModelShape:
        """The model that learns; its vocabulary is the task's alphabet."""
        return ModelShape(vocabulary=self.task.symbols)

    def as_mapping(self) -> dict[str, Any]:
        """Return plain values for the report."""
        return {
            "steps": self.steps,
            "ranks": self.ranks,
            "batch": self.batch,
            "update": self.update,
            "hot": self.hot,
            "hold": self.hold,
            "seed": self.seed,
            "symbols": self.task.symbols,
            "length": self.task.length,
            "chance": self.task.chance,
        }


def group_config(settings: DemoSettings, name: str) -> RolloutConfig:
    """Return the configuration of the demo's group."""
    return rollout_config_from_mapping(
        {
            "group": {
                "name": name,
                "ranks": settings.ranks,
                "journal_directory": str((settings.out / JOURNAL_DIRECTORY).resolve()),
            },
            "model": settings.shape.as_mapping(),
            "engine": {"max_batch": settings.batch},
            "seed": settings.seed,
            **({"load": {"concurrency": OTHERS, "seed": settings.seed}} if settings.hot else {}),
        },
        source="demo",
    )
