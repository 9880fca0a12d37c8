"""Publishers and readers as real processes: killed in the middle, reading while it changes, measured."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import pytest

from tests.forkserver import WITHOUT_PADDLE
from tests.incident import incident

pytestmark = pytest.mark.processes

STATE = """
import sys
from wsm.strategies import MemoryTarget, SnapshotSource, TensorSpec, load, publish_snapshot, read_version

SPECS = [TensorSpec(f"t{index}", "U8", (20_000,)) for index in range(8)]

def state(version):
    return {spec.name: (spec, bytes([version % 256]) * spec.nbytes) for spec in SPECS}
"""

# Loads until version `last` is announced: what is announced (no version asked for), or one version.
READER = (
    STATE
    + """
root, rank, asked, last = sys.argv[1], int(sys.argv[2]), sys.argv[3] or None, sys.argv[4]
source = SnapshotSource(root, rank, device_id=rank, world_size=1, shared_directory=None)
target, loads, mixed = MemoryTarget(SPECS), 0, 0
print("reading", flush=True)
while read_version(root) != last:
    report = load(source, target, version=asked)
    loads += 1
    found = {byte for spec in SPECS for byte in bytes(target.readable(spec.name))}
    mixed += len(found) != 1 or report.verified != len(SPECS)
    mixed += asked is None and found != {int(report.version)}
print(loads, mixed)
"""
)
#: Sixty contents, each as the next version, or each in the place of version 1.
WRITERS = {
    "": """
for version in range(2, 62):
    publish_snapshot(sys.argv[1], version, {0: state(version)}, part_bytes=45_000, durable=False)
""",
    "1": """
for content in range(2, 62):
    publish_snapshot(sys.argv[1], 1, {0: state(content)}, replace=True, durable=False)
publish_snapshot(sys.argv[1], 61, {0: state(61)}, durable=False)
""",
}


def start(script, *arguments):
    return WITHOUT_PADDLE.start("-c", script, *arguments, stderr=None, text=True)


def first_publication(root):
    WITHOUT_PADDLE.run(
        "-c", STATE + "publish_snapshot(sys.argv[1], 1, {0: state(1)}, part_bytes=45_000)", root
    )


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


@pytest.mark.slow
@pytest.mark.parametrize("way", ["beside", "replaced", "replaced in two renames"])
def test_a_publisher_killed_anywhere_leaves_whole_versions_and_room_for_the_next(tmp_path, way):
    """Where a file system cannot exchange two names, the next publisher puts back what was in between."""
    operations, lost, wrong = json.loads(WITHOUT_PADDLE.run("-c", KILLED_EVERYWHERE, tmp_path, way))
    assert operations > 10
    assert wrong == []
    assert lost == (way == "replaced in two renames")


@pytest.mark.slow
@pytest.mark.parametrize("asked", [pytest.param("", marks=pytest.mark.slow), "1"])
def test_readers_find_whole_versions_at_any_moment_while_they_are_replaced(tmp_path, asked):
    first_publication(tmp_path)
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(start(READER, tmp_path, 0, asked, 61)) for _ in "ab"]
        for reader in readers:
            stack.callback(reader.kill)
            assert reader.stdout.readline() == "reading\n"
        WITHOUT_PADDLE.run("-c", STATE + WRITERS[asked], tmp_path)
        for reader in readers:
            loads, mixed = map(int, reader.stdout.read().split())
            assert loads > 1
            assert mixed == 0


@pytest.mark.slow
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
    assert int(WITHOUT_PADDLE.run("-c", script, tmp_path)) < 8 << 10


def test_strategies_do_not_import_paddle():
    script = "import sys, wsm.strategies; assert 'paddle' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
