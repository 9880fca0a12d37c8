"""The run as one picture: the reward, what every rank held over time, and every action of one step.

Draws a report and spans with matplotlib's Agg backend, which needs no screen. Knows no group and no trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.demo.report import Report
from wsm.journal.spans import TimelineSpan, extent, track_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colours that colour-blind readers can tell apart (after Okabe and Ito).
STATE_COLOURS = {
    "NORMAL": "#009e73",
    "CLEARING": "#e69f00",
    "CLEARED": "#bbbbbb",
    "UPDATING": "#56b4e9",
    "PREPARED": "#cc79a7",
    "FAULTED": "#d55e00",
}
_RANK_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")
#: Of the rows: reward, states, the actions of one step; in units of two inches.
_HEIGHTS = (1.8, 0.7, 2.0)


def tracks(spans: Iterable[TimelineSpan]) -> list[str]:
    """Return every track once: controller, trainer, then the ranks in numerical order."""
    return sorted({span.track for span in spans}, key=track_order)


def within(spans: Iterable[TimelineSpan], start_ns: int, end_ns: int) -> list[TimelineSpan]:
    """Return the spans that overlap an interval."""
    return [span for span in spans if span.end_ns > start_ns and span.start_ns < end_ns]


def draw(path: Path, report: Report, spans: Sequence[TimelineSpan], *, chance: float) -> None:
    """Write the picture as PNG.

    Parameters
    ----------
    path : Path
        The file to write.
    report : Report
        Rewards and times per step.
    spans : sequence of Span
        Lanes ``weights`` (states) and ``actions`` of the ranks, and the work of controller and trainer,
        which carries its ``step`` among its facts.
    chance : float
        Reward of a policy that guesses, as a line to compare with.
    """
    # Not pyplot: it keeps global state and picks a backend by what screen there is.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - the demo extra is optional
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    # Without updates there is no command whose actions could be shown.
    heights = _HEIGHTS if report.totals()["versions_served"] else _HEIGHTS[:-1]
    figure = Figure(figsize=(12, 2.0 * sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
    _reward(figure.add_subplot(grid[0, :]), report, chance)
    _states(figure.add_subplot(grid[1, :]), spans)
    step = _typical_step(report)
    if len(heights) == len(_HEIGHTS):
        for column, (title, interval) in enumerate(_near(spans, step).items()):
            _actions(figure.add_subplot(grid[-1, column]), spans, interval, title)
    figure.savefig(path, dpi=100)


def _reward(axes: Axes, report: Report, chance: float) -> None:
    totals = report.totals()
    numbers = [step.step for step in report.steps]
    axes.plot(
        numbers, [step.reward for step in report.steps], marker="o", markersize=3.5, color=_RANK_COLOURS[0]
    )
    axes.axhline(chance, linestyle="--", linewidth=1, color="#777777")
    axes.annotate("chance", (numbers[-1], chance), textcoords="offset points", xytext=(0, 4), ha="right")
    axes.set(xlabel="step", ylabel="mean reward per token", ylim=(0, 1.05))
    first, last = totals["reward_first_five"], totals["reward_last_five"]
    _title(
        axes,
        f"reward {first:.2f} → {last:.2f} in {totals['steps']} steps ({totals['seconds']:.0f} s): "
        f"{totals['versions_served']} versions, {totals['mixed_version_steps']} steps of mixed versions",
    )
    axes.grid(alpha=0.25)


def _states(axes: Axes, spans: Sequence[TimelineSpan]) -> None:
    from matplotlib.patches import Patch  # noqa: PLC0415 - the demo extra is optional

    chosen = [span for span in spans if span.lane == "weights"]
    origin, _ = extent(spans)
    rows = tracks(chosen)
    for span in chosen:
        colour = STATE_COLOURS[span.name]
        _bar(axes, rows.index(span.track), span, origin_ns=origin, unit_ns=1e9, colour=colour)
    _rows(axes, rows)
    axes.set_xlabel("seconds since the start")
    _title(axes, "the weights of every rank")
    seen = {span.name for span in chosen}
    handles: list[Any] = [Patch(color=c, label=name) for name, c in STATE_COLOURS.items() if name in seen]
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=6, frameon=False)


def _near(spans: Sequence[TimelineSpan], step: int) -> dict[str, tuple[int, int]]:
    """Return what the last row shows of a step: its two commands, or a hot update and its flip."""
    commands = {
        span.name: (span.start_ns, span.end_ns)
        for span in _work_of(spans, step)
        if span.name in ("clear", "hold", "update")
    }
    if {"clear", "hold"} & set(commands) or "update" not in commands:
        return {f"{name}: every action": interval for name, interval in commands.items()}
    switching = [
        span
        for span in within(spans, *commands["update"])
        if span.lane == "weights" and span.name in ("UPDATING", "PREPARED")
    ]
    found = {"hot update: every action": commands["update"]}
    if switching:
        start, end = extent(switching)
        found[f"the same from near: {(end - start) / 1e6:.2f} ms to switch"] = (start, end)
    return found


def _actions(axes: Axes, spans: Sequence[TimelineSpan], interval: tuple[int, int], title: str) -> None:
    """Draw one row per action and one bar per rank: the plan of one command, as it really ran."""
    start, end = interval
    actions = [span for span in within(spans, start, end) if span.lane == "actions"]
    actions.sort(key=lambda span: span.start_ns)
    rows, ranks = list(dict.fromkeys(span.name for span in actions)), tracks(actions)
    height = 0.8 / max(len(ranks), 1)
    for span in actions:
        rank = ranks.index(span.track)
        axes.broken_barh(
            [((span.start_ns - start) / 1e6, span.duration_ns / 1e6)],
            (rows.index(span.name) - 0.4 + rank * height, height),
            facecolors=_RANK_COLOURS[rank % len(_RANK_COLOURS)],
            label=span.track if span.name == rows[0] else None,
        )
    _rows(axes, rows)
    axes.set(xlabel="milliseconds", xlim=(0, (end - start) / 1e6))
    _title(axes, title)
    if actions:
        named = sorted(zip(*axes.get_legend_handles_labels(), strict=True), key=itemgetter(1))
        axes.legend(*zip(*named, strict=True), loc="upper right", fontsize=8)


def _work_of(spans: Sequence[TimelineSpan], step: int) -> list[TimelineSpan]:
    return [span for span in spans if span.facts.get("step") == step]


def _typical_step(report: Report) -> int:
    """Return the step whose pause is the median one; the last step where none paused."""
    paused = sorted(
        (step for step in report.steps if step.version is not None), key=lambda step: step.pause_ms
    )
    return paused[len(paused) // 2].step if paused else report.steps[-1].step


def _bar(axes: Axes, row: int, span: TimelineSpan, *, origin_ns: int, unit_ns: float, colour: str) -> None:
    start, length = (span.start_ns - origin_ns) / unit_ns, span.duration_ns / unit_ns
    axes.broken_barh([(start, length)], (row - 0.4, 0.8), facecolors=colour)


def _rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=11)
