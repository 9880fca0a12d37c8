"""What is here needs torch, which `make test` has not; `make test-torch` has it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
sys.path.append(str(Path(__file__).parent))
