"""One rank in a process of its own, whose steps compute tokens of its weights' bytes.

``python text_rank.py CONFIG RANK PORT``

Says ``attached`` and runs a real worker's loop until standard input ends. Rank 0 answers requests for text
at the port of loopback: three tokens each, one in a step, each the byte that all weights consist of, or -1.
"""

from __future__ import annotations

import contextlib
import json
import queue
import select
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from wsm import HOLD, Worker, load_config
from wsm.testing import InMemoryRunner

# The model is that of the command line's groups.
sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))
from small_model import SPECS

TOKENS = 3


@dataclass
class Text:
    """A request for text, and what was computed of it."""

    tokens: list[int] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)


def serve(port: int, waiting: queue.SimpleQueue[Text]) -> None:
    """Answer requests in threads of their own."""

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            text = Text()
            waiting.put(text)
            text.done.wait()
            content = json.dumps({"tokens": text.tokens}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Answering)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def token(runner: InMemoryRunner) -> int:
    found = {byte for spec in SPECS for byte in bytes(runner.weights.readable(spec.name))}
    return found.pop() if len(found) == 1 else -1


def main(config_file: str, rank: int, port: int) -> None:
    runner = InMemoryRunner(SPECS)
    waiting: queue.SimpleQueue[Text] = queue.SimpleQueue()
    texts: list[Text] = []
    if rank == 0:
        serve(port, waiting)
    ended = select.poll()
    ended.register(sys.stdin, select.POLLIN | select.POLLHUP)
    with Worker(load_config(config_file), runner, rank=rank) as worker:
        sys.stdout.write("attached\n")
        sys.stdout.flush()
        while not ended.poll(0):
            if worker.poll() is HOLD:
                continue
            with contextlib.suppress(queue.Empty):
                while True:
                    texts.append(waiting.get_nowait())
            with worker.step():
                said = token(runner) if texts else 0
                for text in texts:
                    text.tokens.append(said)
            for text in texts:
                if len(text.tokens) == TOKENS:
                    text.done.set()
            texts = [text for text in texts if not text.done.is_set()]
            worker.wait(0.01)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
