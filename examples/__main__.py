"""``python -m examples rollout`` and ``python -m examples demo``, in a clone."""

import sys

from examples.commands import EXAMPLES
from wsm.cli.main import main

if __name__ == "__main__":
    sys.exit(main(commands=EXAMPLES))
