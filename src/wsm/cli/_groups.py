"""The groups of this host: what to say where one is not, and reading their configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wsm.cli._base import WRONG_USAGE, CommandEndedError, wrong_usage
from wsm.config import WsmConfig, config_from_mapping, read_mapping
from wsm.controller.group_view import GroupView
from wsm.errors import BadInputError, WsmError
from wsm.signals.errors import SegmentMissingError
from wsm.signals.layout import check_name, segment_path
from wsm.signals.owner_settings import settings_in
from wsm.signals.segment import Segment, SegmentImage, existing_groups


@contextlib.contextmanager
def known_group(name: str) -> Iterator[None]:
    """Inside, a group that does not exist is wrong usage, with the names of those that do.

    Raises
    ------
    CommandEndedError
        With the exit code of wrong usage.
    """
    with wrong_usage():
        check_name(name)
    try:
        yield
    except SegmentMissingError as error:
        if segment_path(name).exists():
            raise
        existing = existing_groups()
        there = f"there is {', '.join(existing)}" if existing else "there is none at all"
        raise CommandEndedError(
            f"no group {name!r} on this host ({there}); check the name, start the group, "
            "run as its user, and in containers share /dev/shm with it",
            exit_code=WRONG_USAGE,
        ) from error


@contextlib.contextmanager
def viewed_group(name: str) -> Iterator[GroupView]:
    """Give the words of a group of this host; raises as :func:`known_group`."""
    with known_group(name), Segment.attach(name) as segment, contextlib.closing(GroupView(segment)) as group:
        yield group


def image_of(name: str) -> SegmentImage:
    """Return a copy of a group's segment; raises as :func:`known_group`."""
    with known_group(name):
        return SegmentImage.read(segment_path(name))


def read_config(file: Path, group: str | None = None) -> WsmConfig:
    """Read a group's configuration, which may stand under ``group`` in the file of an engine.

    An engine may be told name and ranks elsewhere: what its file leaves out is as the running `group` has it.

    Raises
    ------
    wsm.errors.BadInputError
        If it cannot be used.
    """
    content = read_mapping(file)  # once: it may be a pipe
    section = content.get("group")
    if isinstance(section, Mapping):
        content = {**(_left_by(group) if group is not None else {}), **section}
    return config_from_mapping(content, where=str(file))


def _left_by(group: str) -> Mapping[str, Any]:
    """Return the configuration that the owner of a running group left; an empty one where there is none."""
    check_name(group)
    with contextlib.suppress(OSError, WsmError):
        return settings_in(SegmentImage.read(segment_path(group)).settings).configuration
    return {}


def configuration_of(group: str | None, file: Path | None) -> WsmConfig:
    """Return the configuration of a group: that in the file, or what the owner of the running group left.

    Raises
    ------
    BadInputError
        If neither is given or there, the file is for another group, or it cannot be used.
    """
    if file is not None:
        config = read_config(file, group)
        if group not in (None, config.name):
            raise BadInputError(
                f"{file} configures group {config.name!r}, not {group!r}; "
                "give the file of that group, or its name",
                code="foreign-configuration",
                file=str(file),
                group=group,
                found=config.name,
            )
        return config
    if group is None:
        raise BadInputError(
            "for which group? give --group NAME for a running group, or --config FILE",
            code="group-unnamed",
        )
    left = _left_by(group)
    if not left:
        existing = existing_groups()
        there = (
            f"groups of this host: {', '.join(existing)}" if existing else "there is no group on this host"
        )
        raise BadInputError(
            f"no running group {group!r} has left its configuration here ({there}); give it by --config FILE",
            code="configuration-unknown",
            group=group,
            existing=tuple(existing),
        )
    return config_from_mapping(left, where=f"group {group}")


def configured(group: str, file: Path | None) -> dict[str, Any]:
    """Return the keywords that a configuration has for who commands a group; none where there is no file."""
    if file is None:
        return {}
    with wrong_usage():
        config = configuration_of(group, file)
    return {"engine_words": config.engine_words, "journal_directory": config.journal_directory}
