"""A trainer as a process of its own: ``trainer_process.py STRATEGY DEVICE WHERE VERSION``.

``ipc`` shares tensors of the device through the directory WHERE, and says ``ready DIGEST``. It then obeys a
line each: ``change`` writes to the published tensors and says ``changed``; anything else, or the end of its
input, ends it. ``ipc_async`` says ``ready`` and streams the tensors to whoever asks at the address WHERE.
"""

from __future__ import annotations

import sys
from pathlib import Path

import paddle

from tests.gpu.contents import tensors_of
from tests.gpu.devices import Device, device_named, host_copies
from wsm.strategies import BucketSender


def share(device: Device, directory: Path, version: int) -> None:
    """Share, until told to end."""
    tensors = tensors_of(version)
    sharing = device.sharing(directory)
    say(f"ready {sharing.publish(version, tensors)}")
    while sys.stdin.readline().strip() == "change":
        with paddle.no_grad():
            for tensor in tensors.values():
                tensor.copy_(tensor + tensor, True)
        say("changed")
    sharing.close()


def stream(address: str, version: int) -> None:
    """Send one version to the one rank."""
    tensors = tensors_of(version)
    with BucketSender(address, bucket_bytes=1 << 18) as sender:
        say("ready")
        sender.send(version, {0: host_copies(tensors)})


def say(line: str) -> None:
    """Answer the test."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Do what the command line says."""
    strategy, device, where, version = sys.argv[1], device_named(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    if strategy == "ipc":
        share(device, Path(where), version)
    else:
        stream(where, version)


if __name__ == "__main__":
    main()
