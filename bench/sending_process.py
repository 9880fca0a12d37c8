"""A trainer that streams a version per line read: python -m bench.sending_process ADDRESS TENSORS BYTES."""

from __future__ import annotations

import sys

from bench.loading_model import Model
from wsm.strategies import BucketSender


def main() -> None:
    """Send versions 1, 2, 3 ... of one model, each when a line is read, until the input ends."""
    address, count, nbytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    state = Model(count, nbytes).state()
    with BucketSender(address) as sender:
        sys.stdout.write("listening\n")
        sys.stdout.flush()
        for version, _ in enumerate(sys.stdin, start=1):
            sender.send(version, {0: state})


if __name__ == "__main__":
    main()
