"""Drawings of states as Mermaid text, which code hosts render in place.

A pure renderer: a drawing in, text out, always the same. No state is marked as the active one.
"""

from __future__ import annotations

from wsm.states.diagram.model import Drawing, Node, NodeKind, side_by_side

_STYLES = {
    NodeKind.RESTING: "fill:#eef1f4,stroke:#5b6770,color:#1d2329",
    NodeKind.WORKING: "fill:#fff3d6,stroke:#b7791f,color:#1d2329",
    NodeKind.DECIDING: "fill:#e6e4fb,stroke:#5a4fcf,color:#1d2329",
    NodeKind.SERVING: "fill:#dff3e3,stroke:#2f855a,color:#1d2329",
    NodeKind.FAULTED: "fill:#fbe0de,stroke:#c53030,color:#1d2329",
}


def state_diagram(drawing: Drawing) -> str:
    """Return a ``stateDiagram-v2``."""
    lines = ["---", f"title: {drawing.title}", "---", "stateDiagram-v2", "    direction TB"]
    if drawing.remark:
        lines.append(f"    %% {drawing.remark}")
    for node in drawing.nodes:
        lines += _state(node)
    lines += [f"    [*] --> {node.key}" for node in drawing.nodes if node.initial]
    lines += [
        f"    {source} --> {dest} : {'<br/>'.join(labels)}"
        for (source, dest), labels in side_by_side(drawing.arrows).items()
    ]
    lines += [f"    {node.key} --> [*]" for node in drawing.nodes if node.final]
    for node in drawing.nodes:
        lines += _note(node)
    lines += _classes(drawing)
    return "\n".join(lines) + "\n"


def _state(node: Node) -> list[str]:
    text = node.title if not node.meaning else f"{node.title}<br/>{node.meaning}"
    return [f'    state "{text}" as {node.key}']


def _note(node: Node) -> list[str]:
    if not node.note:
        return []
    return [f"    note right of {node.key}", *(f"        {line}" for line in node.note), "    end note"]


def _classes(drawing: Drawing) -> list[str]:
    lines = []
    for kind, style in _STYLES.items():
        keys = [node.key for node in drawing.nodes if node.kind is kind]
        if keys:
            lines += [f"    classDef {kind.value} {style}", f"    class {','.join(keys)} {kind.value}"]
    return lines
