"""Drawings of states as DOT text: pictures of them without a browser, by ``dot -Tpng diagrams/weights.dot``.

A pure renderer: a drawing in, text out, always the same. No state is marked as the active one.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence

from wsm.cli.drawings import Arrow, Drawing, Node, NodeKind, side_by_side

_COLOURS = {
    NodeKind.RESTING: ("#eef1f4", "#5b6770"),
    NodeKind.WORKING: ("#fff3d6", "#b7791f"),
    NodeKind.DECIDING: ("#e6e4fb", "#5a4fcf"),
    NodeKind.SERVING: ("#dff3e3", "#2f855a"),
    NodeKind.FAULTED: ("#fbe0de", "#c53030"),
}
_LINE = r"\n"
#: Ends a line that begins at the left, so that no label lies on its own arrow.
_LEFT_LINE = r"  \l"
#: Characters of a line in a node.
_WIDTH = 44
#: Events that lead away from almost everywhere.
_FAINT = frozenset({"ABORT", "HOT_ABORT", "failed / FAILED", "its deadline passed / FAILED"})
_HEADING = (
    '    fontname="Helvetica" fontsize=18 labelloc=t',
    '    node [shape=box style="rounded,filled" fontname="Helvetica" fontsize=12 margin="0.15,0.08"]',
    '    edge [fontname="Helvetica" fontsize=10 color="#4a5560" fontcolor="#1d2329"]',
)


def digraph(drawing: Drawing) -> str:
    """Return a ``digraph``: working states dashed, a dot before the initial one."""
    lines = [f"digraph {drawing.name} {{", f"    label=<{_heading(drawing)}>", *_HEADING]
    for node in drawing.nodes:
        lines += _node(node)
    return "\n".join([*lines, *_arrows(drawing.arrows), "}"]) + "\n"


def _node(node: Node) -> list[str]:
    fill, line = _COLOURS[node.kind]
    text = _LINE.join(
        _escaped(part) for each in (node.key, *node.lines) for part in textwrap.wrap(each, _WIDTH)
    )
    style = "rounded,filled,dashed" if node.kind is NodeKind.WORKING else "rounded,filled"
    lines = [f'    {node.key} [label="{text}" fillcolor="{fill}" color="{line}" style="{style}"]']
    if node.initial:
        lines += [
            f'    start_{node.key} [shape=point width=0.15 label="" color="#1d2329"]',
            f"    start_{node.key} -> {node.key}",
        ]
    return lines


def _arrows(arrows: Sequence[Arrow]) -> list[str]:
    """Draw what runs side by side as one arrow, apart from what looks different."""
    lines = []
    for faint in (False, True):
        alike = [arrow for arrow in arrows if _is_faint(arrow) is faint]
        style = ' color="#b8c0c8" fontcolor="#7b8794"' if faint else ""
        for (source, dest), labels in side_by_side(alike, "\n").items():
            text = "".join(
                f"  {_escaped(part)}{_LEFT_LINE}" for label in labels for part in label.split("\n")
            )
            lines.append(f'    {source} -> {dest} [label="{text}"{style}]')
    return lines


def _is_faint(arrow: Arrow) -> bool:
    return arrow.event in _FAINT and arrow.source != arrow.dest  # loops of two styles would lie on each other


def _heading(drawing: Drawing) -> str:
    remark = f'<br/><font point-size="11">{html.escape(drawing.remark)}</font>' if drawing.remark else ""
    return html.escape(drawing.title) + remark


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"")
