"""The fronts for trainers as they are, one module each; :data:`SURFACES` has them by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wsm.http.surface import Surface

#: Every surface by its name.
SURFACES: Final[Mapping[str, Surface]] = {}
