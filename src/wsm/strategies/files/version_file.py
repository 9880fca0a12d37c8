"""``version.yaml``: which version of a directory is the newest. FastDeploy's file, read and written.

It holds one mapping with one field, ``step``, the label of a version, plain or in quotes. What stands there
in quotes is the label; what stands there plain is what FastDeploy reads of it by YAML's rules (``0100`` is
64, ``1_000`` is 1000, ``true`` is True, ``null`` names none), and a warning names both. Knows nothing about
snapshots.
"""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import yaml

from wsm import log
from wsm.config_reading import YamlReadingError, compose, plain_values
from wsm.errors import BadInputError
from wsm.labels import checked_version
from wsm.strategies import errors
from wsm.strategies.errors import storing, version_file_missing
from wsm.strategies.files.atomic_file import replace_file
from wsm.strategies.files.snapshot_directory import SnapshotDirectory
from wsm.strategies.files.snapshot_names import VERSION_FILE
from wsm.typed import typed

_MAX_BYTES = 1 << 14

#: YAML's name for a text, and a number that every reader of YAML takes for the same.
_TEXT, _NUMBER = "tag:yaml.org,2002:str", re.compile(r"0|[1-9][0-9]*")

_log = log.logger("strategies")


@typed
def read_version(directory: Path | str) -> str:
    """Return the version that the ``version.yaml`` of `directory` announces. Blocks (one small file).

    Raises
    ------
    BadInputError (``version-file-missing``)
        If there is no such file.
    wsm.strategies.errors.BadInputError
        If it is no regular file, leads out of the directory, or cannot be read.
    BadInputError
        If it is no mapping with one ``step`` that is a label.
    """
    version = announced_version(directory)
    if version is None:
        raise version_file_missing(file=f"{directory}/{VERSION_FILE}")
    return version


def announced_version(directory: Path | str) -> str | None:
    """Return the same; None where there is no such file."""
    path = f"{directory}/{VERSION_FILE}"
    try:
        with closing(SnapshotDirectory(str(directory))) as opened:
            data = opened.read(VERSION_FILE, _MAX_BYTES)
    except FileNotFoundError:
        return None
    except BadInputError as error:
        if error.context.get("expected") == "directory":
            return None
        raise
    if data is None:
        raise errors.bad_version_file(file=path, problem=f"is larger than {_MAX_BYTES} bytes")
    return parse_version(data, file=path)


def parse_version(data: bytes, *, file: str) -> str:
    """Return the version in the bytes of a ``version.yaml``.

    Raises
    ------
    BadInputError
        If they hold none. Any bytes give this or a version.
    """
    if len(data) > _MAX_BYTES:
        raise errors.bad_version_file(file=file, problem=f"is larger than {_MAX_BYTES} bytes")
    try:
        root = compose(data)
    except YamlReadingError as error:
        raise errors.bad_version_file(file=file, problem=f"is not YAML ({error})") from error
    if not isinstance(root, yaml.MappingNode):
        raise errors.bad_version_file(file=file, problem="is not a mapping")
    steps = [value for key, value in root.value if isinstance(key, yaml.ScalarNode) and key.value == "step"]
    if len(steps) != 1:
        raise errors.bad_version_file(
            file=file, problem=f"has {len(steps)} fields called step instead of one"
        )
    try:
        return checked_version(_as_fastdeploy_reads(steps[0], data, file=file))
    except (BadInputError, YamlReadingError) as error:
        raise errors.bad_version_file(file=file, problem=f"has a step that is no version: {error}") from error


def _as_fastdeploy_reads(step: yaml.Node, data: bytes, *, file: str) -> str | None:
    """Return the text of what YAML makes of a step; None of one that is no scalar, or is null."""
    if not isinstance(step, yaml.ScalarNode):
        return None
    text = str(step.value)
    if step.tag == _TEXT or _NUMBER.fullmatch(text):
        return text
    value = plain_values(data).get("step")
    if value is not None and str(value) != text:
        fix = "write a label in quotes"
        _log.warning("version_file.read_otherwise", file=file, says=text, read_as=str(value), fix=fix)
    return None if value is None else str(value)


@typed
def write_version(
    directory: Path | str, version: str | int, *, durable: bool = True, alone: bool = False
) -> None:
    """Let the ``version.yaml`` of `directory` announce `version`, atomically for readers. Blocks.

    A publisher that holds the lock is `alone`: it removes what killed ones left beside the file.

    Raises
    ------
    BadInputError
        If `version` is none.
    StorageError
        If the file cannot be written; the old one stands.
    """
    path = Path(directory) / VERSION_FILE
    data = version_bytes(version)
    with storing(path):
        replace_file(path, data, durable=durable, alone=alone)


def version_bytes(version: str | int) -> bytes:
    """Return the bytes of a ``version.yaml`` that announces `version`.

    Raises
    ------
    BadInputError
        If `version` is none.
    """
    label = checked_version(version)
    # Digits stand there as FastDeploy writes them; the quotes keep all else a text for every reader of YAML.
    return f"step: {label if _NUMBER.fullmatch(label) else chr(34) + label + chr(34)}\n".encode("ascii")
