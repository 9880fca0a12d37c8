"""Options that several commands have, and the types of their values. Knows no command."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from wsm.command import RequestIdError, TagsError, checked_request_id, parse_tags
from wsm.states.vocabulary import Tag
from wsm.states.words import MAX_VERSION


class Seconds(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on only
    """A finite number of seconds.

    Parameters
    ----------
    zero : bool
        Whether 0 is allowed.
    """

    name = "seconds"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail as wrong usage."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not self._zero):
            least = "of 0 or more" if self._zero else "greater than 0"
            self.fail(f"{value!r} is no number of seconds {least}", param, ctx)
        return seconds


class Version(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on only
    """A version that the group's words can carry."""

    name = "version"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, or fail as wrong usage."""
        text = str(value)
        if not (text.isascii() and text.isdigit()) or int(text) > MAX_VERSION:
            self.fail(f"{text!r} is no version; versions are integers from 0 to {MAX_VERSION}", param, ctx)
        return int(text)


class RequestId(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on only
    """A name that a request may have."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name, or fail as wrong usage."""
        try:
            return checked_request_id(str(value))
        except RequestIdError as error:
            self.fail(str(error), param, ctx)


class Tags(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on only
    """What a command is about, by whole names separated by commas."""

    name = "tags"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[Tag]:
        """Return the tags, or fail as wrong usage."""
        if isinstance(value, frozenset):
            return value
        try:
            return parse_tags(str(value))
        except TagsError as error:
            self.fail(str(error), param, ctx)


def json_option(help_text: str) -> Callable[[Any], Any]:
    """Return ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help=help_text)


def config_option(help_text: str) -> Callable[[Any], Any]:
    """Return ``--config FILE``; the command is given a path or None."""
    return click.option(
        "--config",
        "config_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help=help_text,
    )
