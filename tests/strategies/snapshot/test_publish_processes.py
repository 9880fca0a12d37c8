"""Publishers and readers as real processes: killed in the middle, reading while it changes, measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.incident import incident
from wsm.strategies import (
    Retention,
    publish_snapshot,
    read_version,
)

pytestmark = pytest.mark.processes

#: Where a process of its own finds what the tests import.
WITH_SHARED = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "shared")}

STATE = """
import sys
from wsm.strategies import MemoryTarget, SnapshotSource, TensorSpec, load, publish_snapshot, read_version

SPECS = [TensorSpec(f"t{index}", "U8", (20_000,)) for index in range(8)]

def state(version):
    return {spec.name: (spec, bytes([version % 256]) * spec.nbytes) for spec in SPECS}
"""

READER = (
    STATE
    + """
import json
root, rank, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
target, seen, mixed = MemoryTarget(SPECS), set(), 0
print("reading", flush=True)
while str(last) not in seen:
    report = load(SnapshotSource(root, rank, device_id=rank, shared_directory=None), target)
    found = {byte for spec in SPECS for byte in bytes(target.readable(spec.name))}
    mixed += found != {int(report.version) % 256} or report.verified != len(SPECS)
    seen.add(report.version)
print(json.dumps({"seen": sorted(seen, key=int), "mixed": mixed}))
"""
)


def start(script, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def first_publication(root):
    script = STATE + "publish_snapshot(sys.argv[1], 1, {0: state(1)}, part_bytes=45_000)"
    subprocess.run([sys.executable, "-c", script, str(root)], check=True)


@pytest.mark.slow
def test_readers_see_whole_versions_only_while_a_publisher_replaces_them(snapshot, tmp_path):
    first_publication(tmp_path)
    last = 60
    readers = [start(READER, tmp_path, 0, last) for _ in range(2)]
    try:
        for reader in readers:
            assert reader.stdout.readline() == "reading\n"
        script = STATE + (
            "for version in range(2, int(sys.argv[2]) + 1):\n"
            "    publish_snapshot(\n"
            "        sys.argv[1], version, {0: state(version)}, part_bytes=45_000, durable=False\n"
            "    )\n"
        )
        subprocess.run([sys.executable, "-c", script, str(tmp_path), str(last)], check=True)
        for reader in readers:
            output, _ = reader.communicate()
            assert reader.returncode == 0
            result = json.loads(output)
            assert result["mixed"] == 0
            assert result["seen"][-1] == str(last)
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
            reader.stdout.close()
            reader.stdin.close()
    assert read_version(tmp_path) == str(last)


# Kills a publisher before each of its file operations in turn, and looks at what is there: at once, and
# after the next publisher. Version 1 stands; what is published is version 2, or version 1 once more.
KILLED_EVERYWHERE = (
    STATE
    + """
import json
from pathlib import Path
from dying_publisher import deaths
from wsm.strategies.trainer import retention
from wsm.strategies.trainer.retention import Retention

root, way = sys.argv[1], sys.argv[2]
if way == "replaced in two renames":
    retention._exchanged = lambda staged, final: False
version = 2 if way == "beside" else 1

def publish(version, content):
    tensors = {0: state(content)}
    keep = Retention(keep=3)
    publish_snapshot(root, version, tensors, replace=True, retain=keep, part_bytes=90_000, durable=False)

def found(asked):
    target = MemoryTarget(SPECS)
    source = SnapshotSource(root, 0, device_id=0, shared_directory=None)
    loaded = load(source, target, version=asked).version
    [byte] = {byte for spec in SPECS for byte in bytes(target.readable(spec.name))}
    return [int(loaded), byte]

publish(1, 1)
lost, wrong = 0, []
for operations in deaths(lambda: publish(version, 9)):
    try:
        seen = found(None)
        if seen not in ([1, 1], [version, 9]):
            wrong.append([operations, "at once", seen])
    except Exception:
        lost += 1
    publish(3, 3)
    if found(1) not in ([1, 1], [1, 9]):
        wrong.append([operations, "after the next", found(1)])
    publish(1, 1)
    hidden = [path.name for path in (Path(root) / "versions").iterdir() if not path.name.isdecimal()]
    if hidden != [".publisher.lock"]:
        wrong.append([operations, "left behind", hidden])
print(json.dumps([operations, lost, wrong]))
"""
)


@pytest.mark.parametrize("way", ["beside", "replaced", "replaced in two renames"])
def test_a_publisher_killed_anywhere_leaves_whole_versions_and_room_for_the_next(tmp_path, way):
    """Where a file system cannot exchange two names, the next publisher puts back what was in between."""
    command = [sys.executable, "-c", KILLED_EVERYWHERE, str(tmp_path), way]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=WITH_SHARED)
    operations, lost, wrong = json.loads(done.stdout)
    assert operations > 10
    assert wrong == []
    assert lost == (way == "replaced in two renames")


def test_readers_find_a_version_at_any_moment_while_it_is_replaced(tmp_path):
    script = STATE + (
        "root = sys.argv[1]\n"
        "print('reading', flush=True)\n"
        "loads, target, mixed = 0, MemoryTarget(SPECS), 0\n"
        "source = SnapshotSource(root, 0, device_id=0, world_size=1, shared_directory=None)\n"
        "while read_version(root) == '1':\n"
        "    load(source, target, version=1)\n"
        "    loads += 1\n"
        "    mixed += len({bytes(target.readable(spec.name)) for spec in SPECS}) != 1\n"
        "print(loads, mixed)\n"
    )
    replacing = STATE + (
        "for content in range(2, 62):\n"
        "    publish_snapshot(sys.argv[1], 1, {0: state(content)}, replace=True, durable=False)\n"
        "publish_snapshot(sys.argv[1], 2, {0: state(2)}, durable=False)\n"
    )
    first_publication(tmp_path)
    with start(script, tmp_path) as reader:
        try:
            assert reader.stdout.readline() == "reading\n"
            subprocess.run([sys.executable, "-c", replacing, str(tmp_path)], check=True)
            loads, mixed = map(int, reader.stdout.read().split())
        finally:
            reader.kill()
    assert loads > 1
    assert mixed == 0


def test_a_dead_reader_holds_nothing(snapshot, tmp_path):
    first_publication(tmp_path)
    script = STATE + (
        "def stop(*_):\n    print('here', flush=True)\n    sys.stdin.readline()\n"
        "load(SnapshotSource(sys.argv[1], 0, device_id=0), MemoryTarget(SPECS), progress=stop)"
    )
    with start(script, tmp_path) as reader:
        assert reader.stdout.readline() == "here\n"
        reader.kill()
    for version in (2, 3):
        publish_snapshot(tmp_path, version, {0: {"a": b"x"}}, retain=Retention(keep=1))
    assert sorted(path.name for path in (tmp_path / "versions").iterdir()) == [".publisher.lock", "3"]


@incident("FastDeploy#6852")
def test_a_load_holds_no_memory_beside_the_target(tmp_path):
    """Measured by the kernel: the process' peak grows by much less than one part (64 MiB)."""
    script = """
import sys
from pathlib import Path
from wsm.strategies import MemoryTarget, SnapshotSource, TensorSpec, load, publish_snapshot

MIB = 1 << 20
specs = [TensorSpec(f"t{index}", "U8", (16 * MIB,)) for index in range(4)]
target = MemoryTarget(specs)
for spec in specs:
    target.writable(spec.name)[:] = b"\\x01" * spec.nbytes
publish_snapshot(sys.argv[1], 1, {0: {s.name: (s, target.readable(s.name)) for s in specs}}, durable=False)

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

Path("/proc/self/clear_refs").write_text("5")
before = peak()
report = load(SnapshotSource(sys.argv[1], 0, device_id=0), target)
assert len(report.files) == 1 and report.bytes == 64 * MIB
print(peak() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, text=True
    )
    assert int(done.stdout) < 8 << 10


def test_strategies_do_not_import_paddle():
    script = "import sys, wsm.strategies; assert 'paddle' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
