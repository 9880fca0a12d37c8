"""The groups of this host: what to say where one is not, and reading their configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from wsm.cli import errors
from wsm.cli._base import wrong_usage
from wsm.config import WsmConfig, config_from_mapping, read_mapping
from wsm.signals.errors import SegmentMissingError
from wsm.signals.names import check_name, segment_path
from wsm.signals.segment import existing_groups

if TYPE_CHECKING:
    from wsm.rollout.config import RolloutConfig


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
        with wrong_usage():
            raise errors.no_such_group(group=name, existing=existing_groups()) from error


#: What only a file of ``wsm rollout`` has on its top level.
_ROLLOUT_SECTIONS = {"group", "model", "engine", "load", "seed"}


def read_group_config(file: Path, group: str) -> WsmConfig:
    """Read the configuration of `group`.

    Parameters
    ----------
    file : Path
        As :func:`wsm.config.load_config` reads it; or as ``wsm rollout --config``, with a section ``group``
        in which the name may be absent.
    group : str
        The group that is to be commanded.

    Raises
    ------
    BadInputError
        If it is for another group.
    wsm.errors.BadInputError
        If it cannot be used.
    """
    config = read_config(file, group)
    if config.name != group:
        raise errors.foreign_configuration(file=str(file), found=config.name, group=group)
    return config


def read_config(file: Path, group: str = "group") -> WsmConfig:
    """Read a configuration of either kind; `group` is the group's name where the file has none.

    Raises
    ------
    wsm.errors.BadInputError
        If it cannot be used.
    """
    config = _read_either(file, group)
    return config if isinstance(config, WsmConfig) else config.group


def configuration_of(group: str | None, file: Path | None) -> WsmConfig | RolloutConfig:
    """Return the configuration of a group: that in the file, or that of the running group of ``wsm rollout``.

    Raises
    ------
    BadInputError
        If neither is given or there, or the file is for another group.
    wsm.errors.BadInputError
        If it cannot be used.
    """
    if file is None:
        from wsm.rollout.run_directory import CONFIG_FILE, run_directory_path  # noqa: PLC0415 - see above

        if group is None:
            raise errors.group_unnamed()
        check_name(group)
        file = run_directory_path(group) / CONFIG_FILE
        if not file.exists():
            raise errors.configuration_unknown(group=group, existing=existing_groups())
    config = _read_either(file, group or "group")
    found = config.name if isinstance(config, WsmConfig) else config.group.name
    if group not in (None, found):
        raise errors.foreign_configuration(file=str(file), found=found, group=str(group))
    return config


def _read_either(file: Path, group: str) -> WsmConfig | RolloutConfig:
    content = read_mapping(file)  # once: it may be a pipe
    if not _ROLLOUT_SECTIONS & content.keys():
        return config_from_mapping(content, where=str(file))
    from wsm.rollout.config import rollout_config_from_mapping  # noqa: PLC0415 - only where such a file is given

    section = content.get("group")
    has_name = isinstance(section, dict) and "name" in section
    return rollout_config_from_mapping(content, source=str(file), name=None if has_name else group)
