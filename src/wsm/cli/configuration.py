"""A group's configuration from either file that has one: ``wsm.yaml``, or the one of ``wsm rollout``."""

from __future__ import annotations

from pathlib import Path

from wsm.cli import errors
from wsm.config import WsmConfig, config_from_mapping, read_mapping

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
    content = read_mapping(file)  # once: it may be a pipe
    if not _ROLLOUT_SECTIONS & content.keys():
        return config_from_mapping(content, where=str(file))
    from wsm.rollout.config import rollout_config_from_mapping  # noqa: PLC0415 - only where such a file is given

    section = content.get("group")
    has_name = isinstance(section, dict) and "name" in section
    return rollout_config_from_mapping(content, source=str(file), name=None if has_name else group).group
