"""Publishers and readers as real processes: killed in the middle, reading while it changes, measured."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from wsm.strategies import MemoryTarget, Retention, TensorSpec, load, publish_snapshot, read_version

pytestmark = pytest.mark.processes

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
while last not in seen:
    report = load(SnapshotSource(root, rank, device_id=rank, shared_directory=None), target)
    found = {byte for spec in SPECS for byte in bytes(target.readable(spec.name))}
    mixed += found != {report.version % 256} or report.verified != len(SPECS)
    seen.add(report.version)
print(json.dumps({"seen": sorted(seen), "mixed": mixed}))
"""
)

PUBLISHER = (
    STATE
    + """
import wsm.strategies.snapshot.staged_version as staged_version
import wsm.strategies.trainer.staged_directory as staged_directory

root, stage = sys.argv[1], sys.argv[2]

def stop(*_arguments, **_options):
    print("here", flush=True)
    sys.stdin.readline()

class Stopping(dict):
    def __getitem__(self, name):
        if name == "t5" and self.armed:
            stop()
        return super().__getitem__(name)

tensors = Stopping(state(2))
tensors.armed = False
if stage == "in the middle of a part":
    from wsm.strategies.snapshot import shard_writer

    def specs_first(mapping, original=shard_writer.specs_of):
        specs = original(mapping)
        mapping.armed = True
        return specs

    shard_writer.specs_of = specs_first
elif stage == "before the rename":
    staged_directory.bring_in = stop
elif stage == "before the announcement":
    def announce(directory, *arguments, original=staged_version.write_version, **options):
        if str(directory) == root:
            stop()
        original(directory, *arguments, **options)

    staged_version.write_version = announce
elif stage == "before the removal of old versions":
    staged_version.retire = stop
publish_snapshot(root, 2, {0: tensors}, part_bytes=45_000)
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


def loaded(snapshot, root, version=None):
    """Load and return (version, the one byte that all tensors hold)."""
    target = MemoryTarget(TensorSpec(f"t{index}", "U8", (20_000,)) for index in range(8))
    report = load(snapshot.source(directory=root), target, version=version)
    [byte] = {byte for name in target.specs() for byte in bytes(target.readable(name))}
    return report.version, byte


@pytest.mark.parametrize(
    ("stage", "newest"),
    [
        ("in the middle of a part", 1),
        ("before the rename", 1),
        ("before the announcement", 1),
        ("before the removal of old versions", 2),
    ],
)
def test_a_publisher_killed_anywhere_leaves_a_whole_version_and_room_for_the_next(
    snapshot, tmp_path, stage, newest
):
    first_publication(tmp_path)
    with start(PUBLISHER, tmp_path, stage) as publisher:
        assert publisher.stdout.readline() == "here\n"
        publisher.send_signal(signal.SIGKILL)
    assert publisher.returncode == -signal.SIGKILL
    assert loaded(snapshot, tmp_path) == (newest, newest)
    with start(PUBLISHER, tmp_path, "to the end") as publisher:
        pass
    assert publisher.returncode == 0
    assert loaded(snapshot, tmp_path) == (2, 2)
    assert loaded(snapshot, tmp_path, version=1) == (1, 1)
    names = sorted(path.name for path in (tmp_path / "versions").iterdir())
    assert names == [".publisher.lock", "1", "2"]


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
            assert result["seen"][-1] == last
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
            reader.stdout.close()
            reader.stdin.close()
    assert read_version(tmp_path) == last


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
