"""``make mutants``: play the list, and say which fault lives that was killed before.

``python -m mutants``               all of the list, but what was played already on these sources
``python -m mutants --part 1/3``    the first third of it
``python -m mutants --today 30``    what was written by hand, and thirty that turn with the date
``python -m mutants --room loop``   of one room; ``--only KEY`` one fault; ``--verdict survives`` what lives
``python -m mutants reach [PATH]``  record which tests run what, so that only those are played on a fault
``python -m mutants draw``          put others in the place of those that are gone
``python -m mutants note``          write into the list what was found
``python -m mutants count``         how many of each room are killed, as the list has it
``python -m mutants show KEY``      print a fault

Exit status: 0; 1 if a fault lives that was killed before; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import difflib
import json
import signal
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from mutants.entries import BY_HAND, ROOMS, SOURCES, Entry, applied, draw, listed, write
from mutants.playing import Played, copy
from mutants.reach import OUT, REPOSITORY, Reach

#: What was found, one line each: a run that was ended goes on.
PLAYED = OUT / "played.ndjson"
#: A test that kills in continuous integration takes no longer.
_QUICK_S = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was asked for; return the exit status."""
    asked = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it has started ends with it
    if asked.what == "draw":
        write(draw(listed()))
    elif asked.what == "count":
        _count((entry.room, entry.verdict) for entry in listed())
    elif asked.what == "reach":
        Reach().record(asked.of or sorted({path for _, paths in ROOMS.values() for path in paths}))
    elif asked.what == "note":
        write(_noted(listed()))
    elif asked.what == "show":
        for entry in listed():
            if entry.key in asked.of:
                _say(_difference(entry))
    else:
        return _play(_chosen(asked))
    return 0


def _chosen(asked: argparse.Namespace) -> list[Entry]:
    entries = listed()
    for of, wanted in (("key", asked.only), ("room", asked.room), ("verdict", asked.verdict)):
        entries = [entry for entry in entries if not wanted or getattr(entry, of) in wanted]
    if asked.part:
        which, parts = map(int, asked.part.split("/"))
        entries = [entry for entry in entries if zlib.crc32(entry.key.encode()) % parts == which - 1]
    if asked.today:
        quick = [entry for entry in entries if entry.tier == "thread" and entry.seconds <= _QUICK_S]
        quick.sort(key=lambda entry: zlib.crc32(entry.key.encode()))
        first = int(time.time() / 86400) * asked.today
        turning = [quick[(first + number) % len(quick)] for number in range(min(asked.today, len(quick)))]
        by_hand = [entry for entry in entries if entry.room == BY_HAND and entry.verdict == "killed"]
        entries = [*by_hand, *turning]
    return entries


def _play(entries: list[Entry]) -> int:
    """Play what was not played yet on these sources and tests, and say what came of all."""
    known, reach, sources = dict(_kept()), Reach(), _sources()
    red = []
    with copy() as sandbox:
        for number, entry in enumerate(entries, start=1):
            found = known.get(entry.key) or sandbox.play(entry, reach)
            if entry.key not in known:
                PLAYED.parent.mkdir(exist_ok=True)
                with PLAYED.open("a") as lines:
                    lines.write(json.dumps([sources, entry.key, *found]) + "\n")
                known[entry.key] = found
            said = f"{found.verdict:8} {entry.key}  {found.tier} {found.seconds:g} s {found.told}"
            _say(f"{number}/{len(entries)} {said}{_news(entry, found)}")
            if entry.verdict == "killed" and found.verdict == "survives":
                red.append(entry)
        for test, why in sandbox.left_out.items():
            _say(f"LEFT OUT, for it {why}: {test}")
    _count((entry.room, known[entry.key].verdict) for entry in entries)
    for entry in red:
        _say(f"\nLIVES, and was killed by {entry.told}:\n{entry.key}\n{_difference(entry)}")
    return 1 if red else 0


def _count(found: Iterable[tuple[str, str]]) -> None:
    """Say how many of each room are killed, and of all; what is equivalent is no fault, and not counted."""
    of_rooms: dict[str, Counter[str]] = {}
    for room, verdict in found:
        of_rooms.setdefault(room, Counter())[verdict] += 1
    of_rooms["all"] = sum(of_rooms.values(), Counter())
    for room, count in of_rooms.items():
        part = count["killed"] / max(1, count.total() - count["equivalent"])
        told = ", ".join(f"{number} {verdict}" for verdict, number in count.most_common())
        _say(f"{room}: {part:.0%} killed ({told})")


def _news(entry: Entry, found: Played) -> str:
    if found.verdict == "killed" and entry.verdict in ("survives", "equivalent"):
        return " - NEWLY KILLED: python -m mutants note"
    if found.verdict == "killed" and entry.verdict == "killed" and found.told != entry.told:
        return f" - no longer by {entry.told}"
    return " - GONE: python -m mutants draw" if found.verdict == "gone" else ""


def _noted(entries: list[Entry]) -> Iterator[Entry]:
    """Iterate over the list with what was found; a reason stays as long as its fault lives."""
    known = dict(_kept())
    for entry in entries:
        found = known.get(entry.key, Played("gone"))
        if found.verdict == "killed":
            yield entry._replace(verdict="killed", tier=found.tier, seconds=found.seconds, told=found.told)
        elif found.verdict == "survives" and entry.verdict in ("killed", "unplayed"):
            yield entry._replace(verdict="survives", tier="", seconds=0.0, told="")
        else:
            yield entry


def _kept() -> Iterator[tuple[str, Played]]:
    """Iterate over what was found before, on the same sources and tests."""
    sources = _sources()
    for line in PLAYED.read_text().splitlines() if PLAYED.exists() else ():
        of, key, *found = json.loads(line)
        if of == sources:
            yield key, Played(*found)


def _sources() -> int:
    """Return a number that is another one behind each change of sources or tests."""
    number = 0
    for path in sorted([*SOURCES.rglob("*.py"), *(REPOSITORY / "tests").rglob("*.py")]):
        number = zlib.crc32(path.read_bytes(), number)
    return number


def _difference(entry: Entry) -> str:
    changed, path = applied(entry), SOURCES / entry.module
    if changed is None:
        return "it is gone"
    name = str(path.relative_to(REPOSITORY))
    was, becomes = (text.decode().splitlines(keepends=True) for text in (path.read_bytes(), changed))
    return "".join(difflib.unified_diff(was, becomes, name, name, n=1))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", nargs="?", default="play", choices=("play", "reach", "draw", "note", "count", "show")
    )
    parser.add_argument("of", nargs="*", help="paths of tests, or keys")
    parser.add_argument("--only", action="append", metavar="KEY")
    parser.add_argument("--room", action="append", choices=(BY_HAND, *ROOMS))
    parser.add_argument(
        "--verdict", action="append", choices=("killed", "survives", "equivalent", "unplayed")
    )
    parser.add_argument("--part", metavar="K/N")
    parser.add_argument("--today", type=int, metavar="NUMBER")
    return parser


if __name__ == "__main__":
    sys.exit(main())
