"""A trainer that publishes in registered memory: python -m bench.mooncake_process TENSORS BYTES.

Prints its address and publishes one version after the other, each when a line is read; and an engine without
anything of ours around it, for comparison: its name, and the address and bytes of its memory.
"""

from __future__ import annotations

import sys

import numpy as np

from wsm.strategies import EngineSettings, MooncakePublisher
from wsm.strategies.mooncake.transfer_engine import Engine


def main() -> None:
    """Publish versions 1, 2, 3 ... of one model until the input ends."""
    count, nbytes = int(sys.argv[1]), int(sys.argv[2])
    flat = np.random.default_rng(0).integers(0, 256, (count, nbytes), np.uint8)
    state = {f"layer.{index}.weight": flat[index] for index in range(count)}
    bare = Engine(EngineSettings())
    bare.register(flat.ctypes.data, flat.nbytes)
    with MooncakePublisher("tcp://127.0.0.1:0") as publisher:
        _say(f"{publisher.address} {bare.session} {flat.ctypes.data}")
        for version, _ in enumerate(sys.stdin, start=1):
            publisher.publish(version, {0: state})
            _say(f"{version}")
    bare.close()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
