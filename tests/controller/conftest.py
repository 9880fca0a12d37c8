"""What the tests of the controller share: living groups that are ended afterwards."""

from __future__ import annotations

import sys
from pathlib import Path

# The rank program is both run as a process and read by tests, and pytest finds neither by itself.
sys.path.insert(0, str(Path(__file__).parent.parent / "worker"))
from living_fixtures import group, make_group

__all__ = ["group", "make_group"]
