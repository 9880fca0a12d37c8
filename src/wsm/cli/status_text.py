"""``wsm status`` for people: a sentence, and a table of ranks that fits 80 columns. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from wsm.cli.verdict import verdict
from wsm.controller.status import GroupStatus, RankStatus

COLUMNS = 80

_HEADINGS = ("rank", "pid", "life", "weights", "KV", "step", "code/sequence")
_RIGHT = (True, True, False, False, False, False, False)


def group_text(status: GroupStatus) -> str:
    """Return the whole picture of one group, several lines."""
    command = [f"epoch {status.epoch}", f"sequence {status.sequence} ({status.operation})"]
    if status.version is not None:
        command.append(f"committed version {status.version}")
    roles = {"owner": status.owner_pid, "controller": status.controller_pid}
    processes = [f"{role} pid {pid}" for role, pid in roles.items() if pid is not None]
    return "\n".join(
        (
            *textwrap.wrap(f"{status.name}: {verdict(status)}.", COLUMNS),
            "",
            *_table(status),
            "",
            ", ".join(command),
            *([", ".join(processes)] if processes else []),
        )
    )


def group_line(status: GroupStatus) -> str:
    """Return one group in one line, for a list of several."""
    return textwrap.shorten(f"{status.name}: {verdict(status)}", COLUMNS, placeholder=" ...")


def _table(status: GroupStatus) -> list[str]:
    rows = [_HEADINGS, *(_row(rank) for rank in status.ranks)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    # The widest words that there are leave room for one space between columns.
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= COLUMNS else " "
    return [gap.join(_aligned(row, widths)).rstrip() for row in rows]


def _row(rank: RankStatus) -> tuple[str, ...]:
    if rank.life == "never":
        return (str(rank.rank), "-", rank.life, "-", "-", "-", "-")
    step = "KV cache" if rank.step_kind == "none" else f"{rank.step_kind} {rank.step}"
    code = f"{rank.code}({rank.action})" if rank.code == "RUNNING" else rank.code
    return (
        str(rank.rank),
        str(rank.pid or "-"),
        rank.life,
        rank.weights,
        rank.kv,
        step,
        f"{code}/{rank.sequence}",
    )


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(row, widths, _RIGHT, strict=True)
    ]
