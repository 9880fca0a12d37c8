"""A group's configuration from either file that has one: ``wsm.yaml``, or the one of ``wsm rollout``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from wsm.cli.errors import ForeignConfigurationError
from wsm.config import WsmConfig, load_config


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
    ForeignConfigurationError
        If it is for another group.
    wsm.errors.BadInputError
        If it cannot be used.
    """
    section = _rollout_section(file)
    if section is None:
        config = load_config(file)
    else:
        from wsm.rollout.config import load_rollout_config  # noqa: PLC0415 - only where such a file is given

        config = load_rollout_config(file, name=None if "name" in section else group).group
    if config.name != group:
        raise ForeignConfigurationError(file=str(file), found=config.name, group=group)
    return config


def _rollout_section(file: Path) -> dict[str, Any] | None:
    """Return the section ``group``; None where there is none. A broken file is for its reader to refuse."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    section = content.get("group") if isinstance(content, dict) else None
    return section if isinstance(section, dict) else None
