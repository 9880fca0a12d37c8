"""One process that loads on request: python -m bench.loading_process WAY COUNT BYTES DIRECTORY DIGEST.

Reads a line per request and answers with the seconds: ``load``, ``copy`` (as many bytes, one thread), or
``trim`` (give back what the allocator kept of earlier ones, where it can). So its memory can be measured from
outside while it loads, and the two can take turns. What it cannot do it answers with ``cannot run``, or
``failed``, and why.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

from bench.loading_model import Model
from bench.loading_peers import PEERS, memcpy
from bench.loading_ways import WAYS, load_without_digests
from bench.measure import Unmeasured


def main() -> None:
    """Prepare, say so, and load until the input ends; or say why not."""
    try:
        _load_on_request()
    except Exception as error:  # noqa: BLE001 - whatever it is becomes a row of the table
        found = Unmeasured.of(error)
        _say(f"{found.verdict}: {found.reason}")


def _load_on_request() -> None:
    way, count, nbytes, directory, digest = sys.argv[1:6]
    model, scratch = Model(int(count), int(nbytes)), Path(directory)
    if digest == "without":
        load_without_digests()
    with {**WAYS, **PEERS}[way](model, scratch) as load, memcpy(model, scratch) as copy:
        answers = {"load": load, "copy": copy, "trim": _trim}
        _say("ready")
        for request in sys.stdin:
            _say(repr(answers[request.strip()]()))


def _trim() -> float:
    begun = time.perf_counter()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
    return time.perf_counter() - begun


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
