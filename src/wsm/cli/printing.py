"""The one door to the terminal: what commands print passes here, so that no name of others reaches it raw."""

from __future__ import annotations

import json
from typing import Any

import click

from wsm.printable import printable, printable_json, printable_lines


def show(line: str, *, err: bool = False) -> None:
    """Print one line; a line feed within it is of others, and shown as such."""
    click.echo(printable(line), err=err)


def show_text(text: str, *, err: bool = False) -> None:
    """Print lines that were put together here; names in them went through :func:`wsm.printable.printable`."""
    click.echo(printable_lines(text), err=err)


def show_json(content: Any, *, indent: int | None = 2) -> None:
    """Print plain values as JSON."""
    click.echo(json_text(content, indent=indent))


def json_text(content: Any, *, indent: int | None = None) -> str:
    """Return JSON that a terminal may show; what JSON does not know becomes text."""
    return printable_json(json.dumps(content, indent=indent, default=str))
