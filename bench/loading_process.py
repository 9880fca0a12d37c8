"""One process that loads on request: python -m bench.loading_process WAY COUNT BYTES DIRECTORY DIGEST.

Reads a line per request and answers with the seconds: ``load``, ``copy`` (as many bytes, one thread), or
``trim`` (give back what the allocator kept of earlier ones, where it can). So its memory can be measured from
outside while it loads, and the two can take turns.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

from bench.loading_model import Model
from bench.loading_peers import PEERS, memcpy
from bench.loading_ways import WAYS, load_without_digests


def main() -> None:
    """Prepare, say so, and load until the input ends."""
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
