"""Strategies from outside: packages in temporary folders, and a registry that forgets them afterwards."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wsm.strategies import registry

sys.path.insert(0, str(Path(__file__).parent))
from npz_package import install, install_documented


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages, for this process and those that it starts."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(registry, "_from_outside", {})
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.getenv("PYTHONPATH")])))
    yield folder
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def announce(site: Path) -> Callable[[str, str, str], None]:
    """`announce(package, code, entry_points)`: install a package of one module."""

    def announce_package(package: str, code: str, entry_points: str) -> None:
        install(site, package, code, entry_points)
        importlib.invalidate_caches()

    return announce_package


@pytest.fixture
def npz(site: Path) -> None:
    """The documentation's package is installed."""
    install_documented(site)
    importlib.invalidate_caches()
