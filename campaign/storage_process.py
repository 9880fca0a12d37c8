"""One case of full storage, in a process with mounts of its own.

``python -m campaign.storage_process CASE`` prints the result as one line of JSON.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from campaign.case import Case
from campaign.group import GroupUnderFault
from campaign.played_config import publish_version
from campaign.rank_faults import finish, good_update
from campaign.result import Result
from examples.rollout.model.sharding import shard_specs
from wsm import log
from wsm.errors import WsmError
from wsm.shared_directory import SHARED_MEMORY
from wsm.strategies import SnapshotSource, load
from wsm.strategies.applier.memory_target import MemoryTarget
from wsm.strategies.errors import StorageError
from wsm.strategies.files.version_file import read_version

_KIB = 1024
_CYCLES = 5


def main() -> None:
    """Play one case."""
    case = Case.parse(sys.argv[1])
    log.configure(level="critical")
    result = Result(str(case))
    with GroupUnderFault(case.kind, case.ranks) as group:
        _CASES[case.what](group, result)
        result.leftovers += group.stop()
    sys.stdout.write(result.to_line() + "\n")


def _disk_publish(group: GroupUnderFault, result: Result) -> None:
    with tempfile.TemporaryDirectory(prefix="wsm-campaign-disk-") as name:
        place = Path(name)
        _mount(place, 256 * _KIB)
        try:
            publish_version(place, group.config, 1)
            filler = _fill(place, leave=16 * _KIB)
            _must_fail(place, group, result)
            filler.unlink()
            publish_version(place, group.config, 2)
            _must_load(place, group, result, 2)
        finally:
            _unmount(place)
    result.outcome = "old version"


def _limit_publish(group: GroupUnderFault, result: Result) -> None:
    with tempfile.TemporaryDirectory(prefix="wsm-campaign-disk-") as name:
        place = Path(name)
        publish_version(place, group.config, 1)
        with _file_size_limit(8 * _KIB):
            _must_fail(place, group, result)
        publish_version(place, group.config, 2)
        _must_load(place, group, result, 2)
    result.outcome = "old version"


def _must_fail(place: Path, group: GroupUnderFault, result: Result) -> None:
    """Publish where there is no room; nothing of it may be seen, and the version before must be whole."""
    try:
        publish_version(place, group.config, 2)
    except StorageError as error:
        result.error, result.said = type(error).__name__, str(error)
    else:
        result.problems.append("a version was published where there was no room for it")
    result.require(read_version(place) == "1", "another version is announced")
    seen = sorted(
        path.name for path in (place / "versions").iterdir() if not path.name.startswith(".publisher")
    )
    result.require(seen == ["1"], f"the directory of versions holds {seen}")
    _must_load(place, group, result, 1)


def _must_load(place: Path, group: GroupUnderFault, result: Result, version: int) -> None:
    for rank in range(group.ranks):
        target = MemoryTarget(shard_specs(group.config.engine.shape, rank, group.ranks).values())
        report = load(
            SnapshotSource(place, rank, device_id=rank, world_size=group.ranks), target, version=version
        )
        result.require(report.verified == report.tensors, f"rank {rank} loaded version {version} unverified")


def _disk_journals(group: GroupUnderFault, result: Result) -> None:
    place = group.directory / "journals"
    place.mkdir()
    _mount(place, 64 * _KIB)
    try:
        group.start()
        _fill(place, leave=0)
        for _ in range(_CYCLES):
            if group.running:
                good_update(group, result)
        result.outcome = "new version"
        result.leftovers += group.stop()
    finally:
        _unmount(place)


def _shared_memory_start(group: GroupUnderFault, result: Result) -> None:
    _mount(SHARED_MEMORY, 64 * _KIB)
    _must_not_start(group, result)
    _resize(SHARED_MEMORY, 64 * _KIB * _KIB)
    group.start()
    finish(group, result)
    result.outcome = "not started"


def _limit_start(group: GroupUnderFault, result: Result) -> None:
    group.publish()
    with _file_size_limit(32 * _KIB):
        _must_not_start(group, result)
    group.start()
    finish(group, result)
    result.outcome = "not started"


def _must_not_start(group: GroupUnderFault, result: Result) -> None:
    try:
        group.start()
    except WsmError as error:
        result.error, result.said = type(error).__name__, str(error)
    else:
        result.problems.append("a group started where there is no room for it")
    result.leftovers += group.stop()


def _shared_memory_serving(group: GroupUnderFault, result: Result) -> None:
    """Fill shared memory under a serving group: what it needs to go on lies there already."""
    _mount(SHARED_MEMORY, 64 * _KIB * _KIB)
    group.start()
    version = group.published
    filler = _fill(SHARED_MEMORY, leave=0)
    answer = group.command("update", group.publish())
    result.said = answer.said
    group.until(lambda: group.status().over, "the command is over")
    status = group.status()
    served: dict[str | None, str] = {str(version): "old version", str(group.published): "new version"}
    result.outcome = served.get(status.version, "another version") if status.serving else status.state
    result.require(answer.receipt or isinstance(answer.error, WsmError), "the failure has no type")
    filler.unlink()
    finish(group, result)


def _mount(place: Path, size: int) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)  # noqa: S603, S607 - a fixed tool


def _resize(place: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], check=True)  # noqa: S603, S607 - a fixed tool


def _unmount(place: Path) -> None:
    subprocess.run(["umount", "--lazy", str(place)], check=True)  # noqa: S603, S607 - a fixed tool


def _fill(place: Path, *, leave: int) -> Path:
    """Fill a small file system but for `leave` bytes; return what fills it."""
    path = place / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4 * _KIB))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        file.truncate(max(file.tell() - leave, 0))
    return path


@contextlib.contextmanager
def _file_size_limit(size: int) -> Iterator[None]:
    """Bound every file that this process writes; what would be longer fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


_CASES: dict[str, Callable[[GroupUnderFault, Result], None]] = {
    "disk:publish": _disk_publish,
    "disk:journals": _disk_journals,
    "limit:publish": _limit_publish,
    "limit:start": _limit_start,
    "shared_memory:start": _shared_memory_start,
    "shared_memory:serving": _shared_memory_serving,
}


if __name__ == "__main__":
    main()
