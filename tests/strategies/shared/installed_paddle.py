"""What the installed build of paddle can hold; told without importing it, which takes seconds per process.

That it tells the truth is tested beside the table of what builds lack, in ``tests/gpu_wheel``.
"""

from __future__ import annotations

from importlib.metadata import distributions


def has_float8() -> bool:
    """Whether a tensor of paddle's can be of float8; builds of 2.x have no such dtype."""
    builds = ("paddlepaddle", "paddlepaddle-gpu")
    return not any(found.version.startswith("2.") for name in builds for found in distributions(name=name))
