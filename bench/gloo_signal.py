"""FastDeploy's way of agreeing on the signal: a Gloo broadcast from rank 0 in every iteration, on real ranks.

Every iteration makes an int32 tensor, broadcasts it and reads it back, which is all that the rank does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.environment import quiet_environment


def measure_iterations(iterations: int, *, ranks: int = 2) -> float:
    """Return the median nanoseconds of one iteration, over batches of iterations, as rank 0 sees them."""
    with tempfile.TemporaryDirectory(prefix="wsm-bench-") as directory:
        processes = [
            subprocess.Popen(  # noqa: S603 - our own module under our own interpreter
                [
                    sys.executable,
                    "-m",
                    "bench.gloo_signal",
                    directory,
                    str(rank),
                    str(ranks),
                    str(iterations),
                ],
                stdout=subprocess.PIPE,
                env=quiet_environment(),
            )
            for rank in range(ranks)
        ]
        try:
            outputs = [process.communicate(timeout=120)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return float(json.loads(outputs[0]))


def _rank(directory: Path, rank: int, ranks: int, iterations: int) -> float:
    import paddle  # noqa: PLC0415 - in the rank's process only
    from paddle import distributed  # noqa: PLC0415 - as above

    from wsm.actions.backends.paddle_groups import PaddleGlooGroups  # noqa: PLC0415 - as above
    from wsm.actions.backends.rendezvous import FileRendezvous  # noqa: PLC0415 - as above
    from wsm.actions.surfaces import GroupKind  # noqa: PLC0415 - as above

    groups = PaddleGlooGroups(rank, {GroupKind.WORLD: range(ranks)}, FileRendezvous(directory))
    groups.restart(GroupKind.WORLD, incarnation="bench")
    group = groups.group(GroupKind.WORLD)
    batch = 100
    nanoseconds = []
    for _ in range(max(1, iterations // batch)):
        began = time.perf_counter_ns()
        for _ in range(batch):
            signal = paddle.full([1], 0, dtype="int32")
            distributed.broadcast(signal, src=0, group=group)
            if int(signal.numpy()[0]) != 0:
                raise SystemExit("the broadcast changed the signal")
        nanoseconds.append((time.perf_counter_ns() - began) / batch)
    return sorted(nanoseconds)[len(nanoseconds) // 2]


if __name__ == "__main__":
    median = _rank(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
    sys.stdout.write(json.dumps(median))
