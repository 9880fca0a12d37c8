"""Hooks of the documentation site: what a page links to outside of docs/ is named there, by its path.

The pages are read as files of the repository, too, where such a link leads to source or tests. What it names
must be there: else the build fails, as for any page. Roles of docstrings (``:class:``) are what they mark up.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"\[([^]]*)\]\((\.\./[^)#\s]*)(?:#[^)\s]*)?\)")
_ROLE = re.compile(r":(?:class|meth|func|mod|attr|data|exc):<code>(?:~[\w.]*\.)?")


def on_page_content(html: str, **_: Any) -> str:
    """Return a page without the roles of its docstrings, and with keywords as methods take them."""
    return _ROLE.sub("<code>", html).replace(
        '<span class="n">keywords</span>', '<span class="n">**keywords</span>'
    )


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page with its links to files outside of docs/ as their text and the path."""
    here = (_ROOT / "docs" / page.file.src_uri).parent

    def outside(found: re.Match[str]) -> str:
        target = (here / found[2]).resolve()
        if target.is_relative_to(_ROOT / "docs"):
            return found[0]
        if not target.exists():
            logging.getLogger("mkdocs.hooks").warning("%s links to %s", page.file.src_uri, found[2])
        path, text = str(target.relative_to(_ROOT)), found[1]
        return text if path in text else f"{text} (`{path}`)"

    return _LINK.sub(outside, markdown)
