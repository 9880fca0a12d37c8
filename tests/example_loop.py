"""An example's loop around an engine, in a process of its own, beside what a trainer publishes for it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import wsm
from tests.sources import SOURCE


class ExampleLoop:
    """``python -m examples.EXAMPLE MODEL CONFIG LAST``, over versions in ``snapshots``."""

    patience_s = 60.0

    def __init__(self, directory, example, last, **environment):
        self.name, self.snapshots = example.replace("_", "-"), directory / "snapshots"
        config = directory / "wsm.yaml"
        config.write_text(
            f"name: {self.name}\nranks: 1\nsnapshot: {{directory: {self.snapshots}}}\n"
            f"journal_directory: {directory / 'journals'}\n"
        )
        self.said = (directory / "said").open("w+")
        program = [sys.executable, "-m", f"examples.{example}", directory / "model", config, last]
        self.process = subprocess.Popen(
            [*map(str, program)],
            cwd=SOURCE.parents[1],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
        )

    def controller(self):
        late = time.monotonic() + self.patience_s
        while True:
            with contextlib.suppress(wsm.WsmError):  # until there is a group, which its rank joins then
                wsm.Controller(self.name).close()
                return wsm.Controller(self.name, wait_s=self.patience_s)
            self.said.seek(0)
            assert self.process.poll() is None, self.said.read()
            assert time.monotonic() < late
            time.sleep(0.05)

    def ask(self, *prompt):
        self.process.stdin.write(json.dumps(prompt) + "\n")
        self.process.stdin.flush()

    def answer(self):
        while not (line := self.process.stdout.readline()).startswith("{"):
            assert line, "the loop has ended"
        return json.loads(line)

    def damage(self, version):
        """Turn one bit of a version; return its file."""
        [part] = (self.snapshots / "versions" / version).glob("*.pdparams")
        content = bytearray(part.read_bytes())
        content[len(content) // 2] ^= 0x10  # the end may be the copy of a tied tensor, which is not read
        part.write_bytes(content)
        return part

    def close(self):
        self.process.send_signal(signal.SIGINT)  # which the group's segment does not outlive
        self.process.wait(self.patience_s)
        self.process.stdin.close()
        self.process.stdout.close()
        self.said.close()
