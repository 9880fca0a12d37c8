"""Lets the tests import the models' runner, which belongs to no package that is installed."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
