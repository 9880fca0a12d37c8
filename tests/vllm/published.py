"""``python -m tests.vllm.published``: trainers' published clients against ``vllm serve`` with wsm.

    python -m tests.vllm.published --areal PATH --prime-rl PATH --python PYTHON

As :mod:`tests.http.published`, on the server with two workers: each client brings its steps while text is
asked for beside it, and then another trainer begins at 1 again, with other weights.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path

from examples.vllm_demo.server import Server, random_model
from tests.http.published.served import Trainer, Wire

FLAGS = (
    "--worker-extension-cls",
    "wsm.vllm.Worker",
    "--dtype",
    "bfloat16",
    "--served-model-name",
    "m",
    "policy",
)
CLIENTS = {"areal-vllm": "areal", "prime-rl": "prime_rl"}


class ServedVllm:
    """The server behind a wire, with a directory into which trainers write."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.exchange = directory, directory / "exchange"
        random_model(1).float().save_pretrained(directory / "A")
        self.base = directory / "A" / "model.safetensors"
        self.exchange.mkdir()
        self._open = ExitStack()
        server = Server(directory, directory / "A", *FLAGS, plugins="wsm", distributions={})
        self.server = self._open.enter_context(server)
        self.wire = Wire(self.server.url)
        self._open.callback(self.wire.close)

    def close(self) -> None:
        self._open.close()


def play(clients: Mapping[str, Path], python: str, steps: int) -> bool:
    """Bring so many steps of each client, and again; whether what serves is always what was brought."""
    with tempfile.TemporaryDirectory(prefix="wsm-published-") as made:
        served, ok = ServedVllm(Path(made)), True
        try:
            for client, source in clients.items():
                trainer = Trainer(python, client, source, served)
                try:
                    lives = [live(served, trainer, client, steps) for _ in range(2)]
                    ok = ok and all(lives)
                finally:
                    trainer.close()
        finally:
            served.close()
            if not ok:
                sys.stdout.write(served.server.said()[-8000:])
    return ok


def live(served: ServedVllm, trainer: Trainer, client: str, steps: int) -> bool:
    """Live one trainer's life, and tell it as a row."""
    begun = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    said = trainer.live(first=1, steps=steps, asks=True, timeout_s=300)
    receipts = served.server.call("GET", "/wsm/v1/receipts")[1]["receipts"]
    of_this_life = [receipt for receipt in receipts if receipt["at"] >= begun]
    brought = {receipt["digest"] for receipt in of_this_life if receipt["outcome"] == "committed"}
    failed = [*filter(None, [said.get("raised"), *said.get("failed", ())])]
    ok = said["ended"] == 0 and not failed and said["answered"] > 0 and len(brought) == steps
    serves: list[str] = []
    if said["ended"] == 0:  # else it may have left a pause
        [choice] = served.server.generate()[1]["choices"]
        serves = [span["version"] for span in choice["weight_versions"]]
    ok = ok and serves == [receipts[-1]["version"]]
    told = f"{len(brought)} committed, tokens of {serves}, {said.get('answered')} texts answered"
    row = [client, f"{steps} steps", "; ".join([told, *failed[:2]]), "ok" if ok else "WRONG"]
    sys.stdout.write(f"| {' | '.join(row)} |\n")
    sys.stdout.flush()
    return ok


def main() -> int:
    """Play what the command line says; 1 if anything ended otherwise than expected."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm.published")
    for option in ("--areal", "--prime-rl"):
        parser.add_argument(option, type=Path, metavar="PATH", help="the trainer's source")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the trainers")
    parser.add_argument("--steps", type=int, default=6)
    asked = parser.parse_args()
    given = {client: getattr(asked, option) for client, option in CLIENTS.items()}
    sources = {client: source for client, source in given.items() if source}
    return 0 if sources and play(sources, asked.python, asked.steps) else 1


if __name__ == "__main__":
    sys.exit(main())
