"""Directories for versions and their deltas."""

from __future__ import annotations

from pathlib import Path

import pytest
from delta_directory import A, B, Directory


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "versions")


@pytest.fixture
def deltas(directory: Directory) -> Directory:
    """One with version 1 whole, and version 2 as a change of it."""
    directory.whole(1, A)
    directory.delta(2, 1, B)
    return directory
