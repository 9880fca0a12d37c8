"""Poll, step and commands, measured in turn on this checkout and on another commit, and how they compare.

Each checkout measures itself with its own bench, in processes of its own, under the same interpreter. The two
take turns, so that what else the machine does meets both; a ratio is the median of those of single rounds.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.measure import CannotRunError

_HERE = Path(__file__).parent.parent

#: Prints medians by row. Each name in it is one that the bench of either commit has.
_PROGRAM = """
import json, sys
import wsm
from bench.acceptance import measure_acceptance
from bench.cycle import measure_cycles
from bench.serving import _turns
assert wsm.__file__.startswith(sys.argv[1]), wsm.__file__
commands = int(sys.argv[2])
print(json.dumps({
    "poll() and step(), ns": _turns(follow=True)[1].p50,
    "the same, schedulers decide alike, ns": _turns(follow=False)[1].p50,
    "call to all accepted, 2 idle ranks, us": measure_acceptance(commands, ranks=2, mode="idle").p50,
    "call to all accepted, 2 serving ranks, us": measure_acceptance(commands, ranks=2, mode="serving").p50,
    "clear and update, empty actions, ms": measure_cycles(commands).p50,
}))
"""


@dataclass(frozen=True)
class Compared:
    """One row on both checkouts.

    Parameters
    ----------
    what : str
        The row, with its unit.
    here, there : float
        Medians over the rounds, of this checkout and of the other one.
    ratio : float
        The median of this one over the other one, of each round.
    """

    what: str
    here: float
    there: float
    ratio: float


def compare(commit: str, *, rounds: int, commands: int) -> list[Compared]:
    """Measure both, `rounds` times in turn. Blocks for a minute or more.

    Parameters
    ----------
    commit : str
        What to compare with: anything that git takes for a commit of this repository.
    rounds : int
        How often each is measured.
    commands : int
        Commands of each row in each round.

    Raises
    ------
    CannotRunError
        If this is no checkout with that commit.
    """
    here: dict[str, list[float]] = {}
    there: dict[str, list[float]] = {}
    with _checkout(commit) as other:
        for number in range(rounds):
            pair = [(_HERE, here), (other, there)]
            for tree, found in pair if number % 2 == 0 else reversed(pair):
                for what, value in _measured(tree, commands).items():
                    found.setdefault(what, []).append(value)
    return [
        Compared(
            what,
            statistics.median(values),
            statistics.median(there[what]),
            statistics.median(ours / theirs for ours, theirs in zip(values, there[what], strict=True)),
        )
        for what, values in here.items()
    ]


def _measured(tree: Path, commands: int) -> Mapping[str, float]:
    source = str(tree / "src")
    ended = subprocess.run(  # noqa: S603 - our own program under our own interpreter
        [sys.executable, "-c", _PROGRAM, source, str(commands)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": source},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: Mapping[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """Yield a directory with the files of the commit; it is removed afterwards."""
    packed = subprocess.run(  # noqa: S603 - what the caller of the bench asks git for
        ["git", "archive", "--format=tar", commit, "src", "bench"],  # noqa: S607 - the user's own git
        cwd=_HERE,
        capture_output=True,
        check=False,
    )
    if packed.returncode:
        raise CannotRunError(f"git knows no commit {commit!r} here: {packed.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory(prefix="wsm-against-") as directory:
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(directory, filter="data")
        yield Path(directory)
