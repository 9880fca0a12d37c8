"""Lets the tests of explanations share their situations, and living groups of the worker's tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from living_fixtures import make_group

__all__ = ["make_group"]
