"""The committed files: every text of ``diagrams/``, to be written, or compared with what is there.

The only module of this package that touches files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from drawing import sequences
from drawing.dialogues import sequence_diagram
from drawing.engine import engine_with_everything
from drawing.group_page import group_page, group_picture
from drawing.pages import command_page, index_page, transitions_page
from wsm.actions.plan import derive_plans
from wsm.cli.diagrams import drawn

#: Endings of files that belong to this package; others in the directory are none of its business.
OWN_SUFFIXES = frozenset({".mmd", ".md"})


@dataclass(frozen=True)
class Difference:
    """One file that is not what the code draws.

    Parameters
    ----------
    name : str
        The file.
    problem : str
        What is different, with the first line in which it is.
    """

    name: str
    problem: str

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}"


def every_text() -> dict[str, str]:
    """Return the text of every committed file by its name; the plans are those of :mod:`drawing.engine`."""
    plans = derive_plans(engine_with_everything())
    texts = drawn(plans, of="an engine that has everything")
    for dialogue_of in (
        sequences.clear_dialogue,
        sequences.update_dialogue,
        sequences.hot_update_dialogue,
        sequences.rank_loss_dialogue,
        sequences.restore_dialogue,
    ):
        dialogue = dialogue_of(plans)
        texts[f"{dialogue.name}.mmd"] = sequence_diagram(dialogue)
    texts |= {"transitions.md": transitions_page(), "command.md": command_page()}
    texts |= {"group.mmd": group_picture(), "group.md": group_page()}
    return {**texts, "README.md": index_page(texts)}


def compare(directory: Path, rendered: Mapping[str, str]) -> list[Difference]:
    """Return how the files of a directory differ from the rendered ones; an empty list if not at all.

    Reads the directory and changes nothing. A directory that is missing lacks every file.
    """
    differences = []
    for name, wanted in sorted(rendered.items()):
        path = directory / name
        if not path.is_file():
            differences.append(Difference(name, "missing"))
            continue
        # Line ends are compared as well, and a file that is not UTF-8 is different, not an error.
        found = path.read_bytes().decode("utf-8", errors="replace")
        if found != wanted:
            differences.append(Difference(name, _first_difference(found, wanted)))
    return differences + [
        Difference(path.name, "nothing draws it any more")
        for path in sorted(directory.glob("*"))
        if path.suffix in OWN_SUFFIXES and path.name not in rendered
    ]


def write(directory: Path, rendered: Mapping[str, str]) -> list[str]:
    """Write the rendered files into a directory, which is created if need be; return the names that changed.

    Files that nothing draws any more are left there: :func:`compare` names them.
    """
    directory.mkdir(parents=True, exist_ok=True)
    changed = [difference.name for difference in compare(directory, rendered) if difference.name in rendered]
    for name in changed:
        (directory / name).write_bytes(rendered[name].encode("utf-8"))
    return changed


def _first_difference(found: str, wanted: str) -> str:
    pairs = zip_longest(found.splitlines(keepends=True), wanted.splitlines(keepends=True))
    for number, (has, should) in enumerate(pairs, start=1):
        if has != should:
            return f"line {number} is {_shown(has)}, the code draws {_shown(should)}"
    return "differs"


def _shown(line: str | None) -> str:
    return "missing" if line is None else repr(line.strip() if len(line) < 100 else f"{line.strip()[:97]}...")
