"""``python -m examples.rollout``, or ``python CLONE/examples/rollout`` from anywhere."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.commands import EXAMPLES
from wsm.cli.main import main

if __name__ == "__main__":
    sys.exit(main("rollout", commands=EXAMPLES))
