"""``python -m drawing``: write the drawings of the tables, or compare them with the code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from drawing.files import compare, every_text, write
from wsm.states.check import check_everything

#: Where this repository has them.
COMMITTED = Path(__file__).resolve().parent.parent / "diagrams"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or compare; return 1 if the tables are faulty or something differs."""
    parser = argparse.ArgumentParser(prog="python -m drawing", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; check the tables, and compare")
    parser.add_argument("--write", action="store_true", help="write what differs; so does no option at all")
    parser.add_argument("--directory", type=Path, default=COMMITTED, help="where the files are")
    chosen = parser.parse_args(arguments)
    if chosen.check and chosen.write:
        parser.error("--check writes nothing: give one of them")
    directory: Path = chosen.directory
    for finding in (findings := check_everything()):
        sys.stderr.write(f"{finding}\n")
    if findings:
        return 1
    texts = every_text()
    for name in [] if chosen.check else write(directory, texts):
        sys.stdout.write(f"{directory / name}: written\n")
    differences = compare(directory, texts)
    for difference in differences:
        sys.stdout.write(f"{directory / difference.name}: {difference.problem}\n")
    if not differences:
        sys.stdout.write(f"{directory}: {len(texts)} files, all as the code draws them\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
