"""What a run of the demo leaves as numbers: one record per step, and totals that a reader can recompute.

Plain data, its JSON form (`report.json`) and its lines on a terminal of 80 columns. Knows no group, no
trainer and no clock.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

#: Grows when a key of ``report.json`` changes its meaning or goes away.
SCHEMA = 1
_EDGE = 5


@dataclass(frozen=True)
class StepRecord:
    """One turn of the loop: generate, clear, train, publish, update; nothing is cleared for a hot update.

    Parameters
    ----------
    step : int
        1 for the first.
    version : str or None
        The version that the group served after the step; None where nothing was updated.
    served_version : str
        The version that generated the step's answers, as the receipts say.
    reward : float
        Mean reward per token of the answers.
    tokens : mapping of str to int
        Generated tokens by the version that each token says it was made by.
    mixed_versions : bool
        Whether any token names another version than the receipts do; must be False.
    generate_ms, clear_ms, train_ms, publish_ms, update_ms : float
        Wall time as the loop saw it; 0 for what the step did not do.
    pause_ms : float
        The longest time that a rank could not serve; from the update's receipt.
    staging_ms : float
        How long the ranks staged the version while they served; 0 for an update that was not hot.
    served_meanwhile : int
        Tokens of answers that others got while the trainer worked and the ranks staged and flipped.
    bytes : int
        Weights loaded, all ranks together.
    digests : mapping of str to str
        Per rank, of the bytes that are resident after the update; hexadecimal.
    manifest_digest : str or None
        Of what the version consists of.
    loss, entropy : float
        The trainer's, of this step.
    log_probability_gap : float or None
        Largest difference between the log probability of a token as the group saw it and as the trainer
        computes it from the weights that it published; None where the group does not hold those.
    """

    step: int
    version: str | None
    served_version: str
    reward: float
    tokens: Mapping[str, int]
    mixed_versions: bool
    generate_ms: float = 0.0
    clear_ms: float = 0.0
    train_ms: float = 0.0
    publish_ms: float = 0.0
    update_ms: float = 0.0
    pause_ms: float = 0.0
    staging_ms: float = 0.0
    served_meanwhile: int = 0
    bytes: int = 0
    digests: Mapping[str, str] = field(default_factory=dict)
    manifest_digest: str | None = None
    loss: float = 0.0
    entropy: float = 0.0
    log_probability_gap: float | None = None


@dataclass(frozen=True)
class Report:
    """A whole run.

    Parameters
    ----------
    settings : mapping
        What the run was asked to do, as plain values.
    steps : sequence of StepRecord
        In order.
    seconds : float
        Wall time of the loop, start-up included.
    """

    settings: Mapping[str, Any]
    steps: Sequence[StepRecord]
    seconds: float

    def totals(self) -> dict[str, Any]:
        """Sum up the steps; every value can be recomputed from them."""
        tokens: Counter[str] = Counter()
        for step in self.steps:
            tokens.update(step.tokens)
        rewards = [step.reward for step in self.steps]
        gaps = [step.log_probability_gap for step in self.steps if step.log_probability_gap is not None]
        return {
            "steps": len(self.steps),
            "seconds": round(self.seconds, 3),
            "reward_first_five": _mean(rewards[:_EDGE]),
            "reward_last_five": _mean(rewards[-_EDGE:]),
            "versions_served": sum(step.version is not None for step in self.steps),
            "tokens": sum(tokens.values()),
            "tokens_per_version": {str(version): tokens[version] for version in sorted(tokens)},
            "mixed_version_steps": sum(step.mixed_versions for step in self.steps),
            "served_meanwhile": sum(step.served_meanwhile for step in self.steps),
            "bytes": sum(step.bytes for step in self.steps),
            "log_probability_gap": max(gaps, default=None),
            "median_ms": {
                name: _median([getattr(step, f"{name}_ms") for step in self.steps])
                for name in ("generate", "clear", "train", "publish", "update", "staging", "pause")
            },
        }

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        steps = []
        for step in self.steps:
            record = asdict(step)
            record["tokens"] = {str(version): count for version, count in sorted(step.tokens.items())}
            steps.append(
                {key: round(value, 6) if isinstance(value, float) else value for key, value in record.items()}
            )
        return {"schema": SCHEMA, "settings": dict(self.settings), "totals": self.totals(), "steps": steps}

    def write(self, path: Path) -> None:
        """Write ``report.json``; a reader never sees half of it."""
        temporary = path.with_suffix(".json.partial")
        temporary.write_text(
            json.dumps(self.to_mapping(), indent=2, allow_nan=False) + "\n", encoding="utf-8"
        )
        temporary.replace(path)


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4) if values else 0.0


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 3) if values else 0.0


def step_line(record: StepRecord, steps: int, *, hot: bool) -> str:
    """Return one finished step of `steps` as a line; `hot`: nothing was cleared, and staging is shown."""
    shown = ("train", "update", "staging", "pause") if hot else ("clear", "train", "update", "pause")
    times = [f"{name} {_short(getattr(record, f'{name}_ms'))}" for name in shown]
    version = "-" if record.version is None else record.version
    return f"step {record.step}/{steps}  version {version}  reward {record.reward:.2f}  {'  '.join(times)} ms"


def summary_lines(report: Report, *, hot: bool) -> list[str]:
    """Say how a run ended."""
    totals = report.totals()
    versions = len(totals["tokens_per_version"])
    reward = (
        f"reward {totals['reward_first_five']:.2f} -> {totals['reward_last_five']:.2f} "
        f"(first and last five of {totals['steps']} steps) in {totals['seconds']:.1f} s"
    )
    tokens = (
        f"{totals['tokens']} tokens by {versions} version{'' if versions == 1 else 's'}, "
        f"{totals['mixed_version_steps']} steps of mixed versions, "
        f"median pause {totals['median_ms']['pause']:.{2 if hot else 0}f} ms"
    )
    lines = [reward, tokens]
    if totals["served_meanwhile"]:
        lines.append(
            f"{totals['served_meanwhile']} tokens for others while it trained, staged and switched; "
            f"median staging {totals['median_ms']['staging']:.0f} ms"
        )
    return lines


def _short(milliseconds: float) -> str:
    return f"{milliseconds:.1f}" if 0 < milliseconds < 10 else f"{milliseconds:.0f}"
