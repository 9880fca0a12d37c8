"""A hook of the build: the README as the page of the package shows it.

Files of the repository are not beside that page, so that a relative link would lead nowhere: each becomes its
text and the path that it has in the repository, and so does each picture.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE_LINK = re.compile(r"!?\[([^]]*)\]\((?!https?:|#)([^)]*)\)")


class PackagePage(MetadataHookInterface):
    """Put the README into the package's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field that ``dynamic`` names."""
        text = (Path(self.root) / "README.md").read_text()
        metadata["readme"] = {"content-type": "text/markdown", "text": _RELATIVE_LINK.sub(_as_path, text)}


def _as_path(link: re.Match[str]) -> str:
    text, path = link[1], f"`{link[2]}`"
    return path if text.strip("`") == link[2] else f"{text} ({path})"
