"""The groups of this host: which there are, what to say where one is not, and reading their configuration."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from wsm.cli import errors
from wsm.cli._base import wrong_usage
from wsm.config import WsmConfig, config_from_mapping, read_mapping
from wsm.shared_directory import EVERY_USER, ForeignPathError, open_ours
from wsm.signals.errors import SegmentMissingError
from wsm.signals.layout import MAGIC
from wsm.signals.names import SHARED_MEMORY_DIRECTORY, check_name, segment_path

if TYPE_CHECKING:
    from wsm.rollout.config import RolloutConfig

_PREFIX = "wsm."


def existing_groups(directory: Path = SHARED_MEMORY_DIRECTORY) -> list[str]:
    """Return the names of all groups that have a segment, living or dead, in order."""
    return sorted(
        path.name.removeprefix(_PREFIX) for path in directory.glob(f"{_PREFIX}*") if _is_segment(path)
    )


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


def _is_segment(path: Path) -> bool:
    """Whether a file begins as segments do; what lies beside a segment under its name does not."""
    try:
        descriptor = open_ours(path, os.O_RDONLY, also=EVERY_USER)
    except (OSError, ForeignPathError):  # gone meanwhile, another user's, or no file at all
        return False
    try:
        return os.pread(descriptor, len(MAGIC), 0) == MAGIC
    finally:
        os.close(descriptor)


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
