"""``python -m fuzz --seconds 60``: fuzz every format, one process each, and say what came of it.

The processes are forked from one that has imported all they need: with atheris, which instruments each module
as it is imported, that takes 12 s.

Exit status: 0 if no format broke its promise, 1 if one did, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import secrets
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path

from fuzz.apart import search_apart
from fuzz.formats import all_formats
from fuzz.http_requests import HTTP_REQUEST
from fuzz.invariant import BrokenInvariantError, check

#: On top of the search: imports, instrumentation, and what is being drawn when the time is over.
_GRACE_S = 120

#: How much of the time a format gets, where it is not one share: a request to a server takes 0.3 s.
_SHARES = {HTTP_REQUEST: 10}


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz what was asked for; return the exit status."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    formats = all_formats()
    unknown = [name for name in asked.only if name not in formats]
    if unknown:
        parser.error(f"no format is called {unknown[0]!r}; they are {', '.join(formats)}")
    if asked.replay is not None:
        return _replay(asked.only, asked.replay)
    names = asked.only or list(formats)
    how = "guided by coverage (atheris)" if _guided() else "drawn by Hypothesis (atheris is not installed)"
    sys.stdout.write(f"{len(names)} formats, {asked.seconds:g} s in all, seed {asked.seed}, {how}\n")
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["fuzz.guided" if _guided() else "fuzz.searching"])
    shares = {name: _SHARES.get(name, 1) for name in names}
    seconds = {name: asked.seconds * share / sum(shares.values()) for name, share in shares.items()}
    broken = [name for name in names if not _search(processes, name, seconds[name], asked.seed, asked.out)]
    sys.stdout.write(f"{len(names) - len(broken)} of {len(names)} formats keep their promise\n")
    return 1 if broken else 0


def _guided() -> bool:
    return importlib.util.find_spec("atheris") is not None


def _search(processes: ForkServerContext, name: str, seconds: float, seed: int, out: Path) -> bool:
    found = out / name.replace(" ", "-").replace(",", "")
    # A server is read by another thread than the one whose coverage is followed.
    guided = _guided() and name != HTTP_REQUEST
    found.mkdir(parents=True, exist_ok=True)
    told = found / "output"
    told.write_bytes(b"")
    process = processes.Process(target=search_apart, args=(name, seconds, seed, found, guided))
    process.start()
    process.join(seconds + _GRACE_S)
    if process.exitcode is None:
        process.kill()
        process.join()
        sys.stdout.write(f"{name}: BROKEN, it does not come to an end\n")
        return False
    output = told.read_text(errors="replace")
    if process.exitcode == 0:
        sys.stdout.write(f"{name}: {_count(output)}\n")
        return True
    sys.stdout.write(f"{name}: BROKEN\n{output[-4000:]}\n")
    return False


def _count(output: str) -> str:
    """Return how much was tried, in the words of the generator that drew it."""
    for line in output.splitlines():
        if line.startswith("stat::number_of_executed_units:"):
            return f"{line.split()[-1]} inputs"
    return output.strip().rpartition("\n")[2]


def _replay(names: Sequence[str], file: Path) -> int:
    if len(names) != 1:
        sys.stderr.write("say with --only which format the input is for\n")
        return 2
    try:
        value = check(all_formats()[names[0]], file.read_bytes())
    except BrokenInvariantError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    sys.stdout.write("it is a value\n" if value else "it is refused with a typed error\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all formats together")
    parser.add_argument("--only", action="append", default=[], metavar="FORMAT", help="this format alone")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31), help="where drawing begins")
    parser.add_argument(
        "--out", type=Path, default=Path("fuzz-out"), help="where atheris keeps what it finds"
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="read one input again")
    return parser


if __name__ == "__main__":
    sys.exit(main())
