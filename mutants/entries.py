"""The fixed list of faults, ``list.tsv``: one a line, with its room and what became of it.

It was drawn by seed, the same number from each room. A fault is known by its key (:func:`.operators.faults`);
where its text has changed it is gone, and :func:`draw` puts another in its place.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mutants.operators import Fault, faults, is_fault
from mutants.seeded import SEEDED

SOURCES = Path(__file__).parent.parent / "src" / "wsm"
LIST = Path(__file__).parent / "list.tsv"

SEED = 30
OF_EACH_ROOM = 60
#: In a room, so that what is most often possible is not all there is.
OF_EACH_OPERATOR = 10

#: What is drawn from: files below ``src/wsm/``; and the tests that are played where nobody knows which ones
#: run a fault.
ROOMS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "states": (
        (
            *(f"states/{name}.py" for name in ("decide", "epochs", "group", "holding", "joint", "machine")),
            *(f"states/{name}.py" for name in ("phases", "rank", "table", "view", "words", "plan_key")),
        ),
        ("tests/states", "tests/protocol", "tests/tags"),
    ),
    "drive": (
        tuple(
            f"controller/{name}.py"
            for name in ("_drive", "_transaction", "_execution", "outcome", "group_view")
        ),
        ("tests/controller",),
    ),
    "loop": (
        tuple(f"worker/{name}.py" for name in ("_loop", "_run", "_command", "_hot_run", "_group_words")),
        ("tests/worker",),
    ),
    "slots": (
        tuple(
            f"signals/{name}.py"
            for name in (
                "slot",
                "segment",
                "layout",
                "ownership",
                "lock_file",
                "presence",
                "liveness",
                "waiting",
            )
        ),
        ("tests/signals", "tests/controller"),
    ),
    "rings": (
        tuple(f"journal/{name}.py" for name in ("lines", "entry", "inputs", "replay", "spans")),
        ("tests/journal", "tests/signals/test_ring.py"),
    ),
    "load": (
        tuple(f"strategies/{name}.py" for name in ("load", "offer", "promise", "tensor", "strategy")),
        ("tests/strategies",),
    ),
    "applier": (
        tuple(
            f"strategies/applier/{name}.py"
            for name in (
                "admission",
                "apply",
                "coverage",
                "feeding",
                "memory_target",
                "tensor_copy",
                "tensor_ledger",
            )
        ),
        ("tests/strategies/applier", "tests/strategies/contract"),
    ),
    "store": (
        (
            *(f"strategies/snapshot/{name}.py" for name in ("store", "placement", "manifest")),
            *(f"strategies/files/{name}.py" for name in ("snapshot_directory", "part_file", "version_file")),
        ),
        ("tests/strategies/snapshot", "tests/strategies/files", "tests/strategies/contract"),
    ),
    "hold table": (
        ("http/hold_table.py", "http/closed_holds.py", "http/kept.py"),
        ("tests/http",),
    ),
    "engine words": (
        ("states/engine_words.py", "controller/_engine_words.py", "signals/fastdeploy.py"),
        ("tests/states", "tests/fastdeploy", "tests/controller/test_engine_words.py", "tests/signals"),
    ),
}
#: The room of what somebody wrote down (:mod:`.seeded`), which is not in the file.
BY_HAND = "by hand"


class Entry(NamedTuple):
    """One fault of the list.

    Attributes
    ----------
    room : str
        Where it was drawn from.
    key : str
        Which fault it is.
    verdict : str
        ``killed``, ``survives``, ``equivalent`` (no test can find it), or ``unplayed``.
    tier : str
        What kills it: a test in one ``thread``, one of ``processes``, a ``slow`` one, a ``hang``; empty
        if it lives.
    seconds : float
        What that took, pytest's start not counted.
    told : str
        The test; of what lives the reason, or the proof.
    """

    room: str
    key: str
    verdict: str = "unplayed"
    tier: str = ""
    seconds: float = 0.0
    told: str = ""

    @property
    def module(self) -> str:
        """The file, below ``src/wsm/``."""
        return self.key.partition(":")[0]

    @property
    def place(self) -> str:
        """The function that it is in."""
        return self.key.split(":")[1]


def listed() -> list[Entry]:
    """Return the entries of the list, and those that were written by hand."""
    lines = LIST.read_text().splitlines() if LIST.exists() else []
    entries = []
    for line in lines:
        room, key, verdict, tier, seconds, told = line.split("\t")
        entries.append(Entry(room, key, verdict, tier, float(seconds), told))
    by_hand = [
        Entry(
            BY_HAND,
            f"{each.module}::{each.name}",
            "equivalent" if each.proof else "killed",
            told=each.proof or each.test,
        )
        for each in SEEDED
    ]
    return [*by_hand, *entries]


def write(entries: Iterable[Entry]) -> None:
    """Write the list; what was written by hand stands elsewhere."""
    kept = [entry for entry in entries if entry.room != BY_HAND]
    kept.sort(key=lambda entry: (list(ROOMS).index(entry.room), entry.key))
    LIST.write_text("".join("\t".join(map(str, entry)) + "\n" for entry in kept))


def applied(entry: Entry, sources: Path = SOURCES) -> bytes | None:
    """Return the module of an entry with its fault; None: it is gone."""
    path = sources / entry.module
    if entry.room == BY_HAND:
        (seeded,) = (each for each in SEEDED if entry.key == f"{each.module}::{each.name}")
        text = path.read_text() if path.exists() else ""
        return text.replace(seeded.was, seeded.becomes).encode() if text.count(seeded.was) == 1 else None
    fault = _faults(sources, entry.module).get(entry.key)
    return None if fault is None else fault.applied(path.read_bytes())


@cache
def _faults(sources: Path, module: str) -> dict[str, Fault]:
    path = sources / module
    return faults(module, path.read_bytes()) if path.exists() else {}


def draw(entries: Iterable[Entry]) -> list[Entry]:
    """Return the list without what is gone, filled up to the same number of each room."""
    kept = [entry for entry in entries if entry.room != BY_HAND and applied(entry) is not None]
    for room, (modules, _) in ROOMS.items():
        here = [entry for entry in kept if entry.room == room]
        kept += _drawn(room, modules, here)
    return kept


def _drawn(room: str, modules: Iterable[str], here: list[Entry]) -> list[Entry]:
    if missing := [module for module in modules if not (SOURCES / module).exists()]:
        raise FileNotFoundError(
            f"{room}: {', '.join(missing)} is gone: say in ROOMS what is drawn from instead"
        )
    known = {entry.key for entry in here}
    left = [key for module in modules for key in _faults(SOURCES, module) if key not in known]
    left.sort(key=lambda key: hashlib.sha256(f"{SEED}:{room}:{key}".encode()).digest())
    of_operator = Counter(_operator(key) for key in known)
    new: list[Entry] = []
    for key in left:
        if len(here) + len(new) == OF_EACH_ROOM:
            break
        entry = Entry(room, key)
        fault, source = _faults(SOURCES, entry.module)[key], (SOURCES / entry.module).read_bytes()
        if of_operator[_operator(key)] < OF_EACH_OPERATOR and is_fault(fault, source):
            of_operator[_operator(key)] += 1
            new.append(entry)
    return new


def _operator(key: str) -> str:
    """Return what was done, without which row or which keyword it was done to."""
    return key.split(":")[2].rstrip("0123456789").partition("without-")[0].rstrip("-")
