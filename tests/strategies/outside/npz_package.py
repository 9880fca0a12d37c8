"""The package that the documentation writes, put into a folder as an installed one."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).parents[3] / "docs" / "writing_a_strategy.md"


def block(language: str) -> str:
    """The one block of code in that language on how a strategy is written."""
    (code,) = re.findall(rf"^ *```{language}\n(.*?)^ *```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return textwrap.dedent(code)


def install(site: Path, package: str, code: str, entry_points: str) -> None:
    """Write what an installer would: the module, and what its distribution says of itself."""
    site.mkdir(parents=True, exist_ok=True)
    (site / f"{package}.py").write_text(code)
    information = site / f"{package}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[wsm.strategies]\n{entry_points}\n")


def install_documented(site: Path) -> None:
    """Write the documentation's package, with its entry point as the page has it."""
    name, _, value = block("toml").splitlines()[-1].partition(" = ")
    install(site, "npz_weights", block("python"), f"{name} = {value.strip(chr(34))}")


def publish(directory: Path, version: int, arrays: dict[str, Any], *, ranks: int = 2) -> None:
    directory.mkdir(exist_ok=True)
    for rank in range(ranks):
        np.savez(directory / f"rank{rank}.npz", version=version, **arrays)
