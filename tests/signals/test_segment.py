from __future__ import annotations

import errno
import os
import stat
import struct
import zlib

import pytest

from tests.another_user import shared_place
from tests.incident import incident
from tests.needs import OWN_MOUNTS
from tests.raising import raising
from wsm.errors import BadInputError
from wsm.signals.errors import (
    SegmentAccessError,
    SegmentMissingError,
    SegmentNameError,
    SegmentTruncatedError,
)
from wsm.signals.layout import LINE_BYTES, RING_BYTES, SLOT_BYTES, WORD_BYTES, Header, Layout
from wsm.signals.segment import Segment


def test_what_one_process_stores_another_reads(segment, name, launch):
    segment.words[segment.layout.status[2]] = 2**63 + 5
    child = launch(
        """
        segment = Segment.attach(sys.argv[1], world_size=2)
        say(segment.run_id, segment.configuration_digest, segment.helpers, segment.owner.pid)
        say(segment.words[segment.layout.status[2]])
        segment.words[segment.layout.heartbeat[1]] = 2**64 - 1
        say("stored")
        """,
        name,
    )
    assert child.says() == f"run 7 1 {os.getpid()}"
    assert child.says() == str(2**63 + 5)
    assert child.says() == "stored"
    assert segment.words[segment.layout.heartbeat[1]] == 2**64 - 1


@incident("FastDeploy C2-24")
def test_a_new_segment_is_private_and_all_words_are_zero(segment, path):
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    layout = segment.layout
    for index in (layout.command, layout.committed, *layout.status, *layout.step, *layout.heartbeat):
        assert segment.words[index] == 0


def test_even_an_open_umask_leaves_the_segment_private_and_a_closed_one_usable(name, path):
    for umask in (0o000, 0o777):
        before = os.umask(umask)
        try:
            with Segment.create_or_adopt(name, world_size=1, run_id="", configuration_digest=0) as segment:
                for file in (path, segment.lock_file.path):
                    assert stat.S_IMODE(file.stat().st_mode) == 0o600
                segment.unlink()
        finally:
            os.umask(before)


@pytest.mark.parametrize(("world_size", "helpers"), [(1, 0), (2, 1), (8, 0), (1024, 64)])
def test_every_word_has_a_line_of_its_own_and_nothing_overlaps(world_size, helpers):
    layout = Layout(world_size, helpers)
    indexes = [
        layout.owner,
        layout.command,
        layout.committed,
        *layout.occupant,
        *layout.status,
        *layout.step,
        *layout.heartbeat,
    ]
    offsets = [index * WORD_BYTES for index in indexes]
    assert len(set(offsets)) == len(indexes) == 3 + 4 * (world_size + helpers)
    assert all(offset % LINE_BYTES == 0 for offset in offsets)
    slots = [*layout.arguments, *layout.report, *layout.error, *layout.at_hand]
    assert len(set(slots)) == 2 + 3 * (world_size + helpers)
    assert min(slots) >= max(offsets) + LINE_BYTES
    assert max(slots) + SLOT_BYTES == min(layout.journal)
    assert len(set(layout.journal)) == world_size + helpers + 1
    assert max(layout.journal) + RING_BYTES == layout.total_bytes


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "../a",
        "-a",
        "a b",
        "a\n",
        "é",
        "a\0",
        "x" * 101,
        "a.lock",
        "a.new",
        "a.run",
        "a.requests",
    ],
)
def test_a_name_that_is_no_plain_file_name_is_refused(name):
    with pytest.raises(SegmentNameError) as caught:
        Segment.attach(name)
    assert caught.value.name == name


@pytest.mark.parametrize(
    "wrong",
    [
        {"world_size": 0},
        {"world_size": 1025},
        {"helpers": -1},
        {"helpers": 65},
        {"run_id": "x" * 129},
        {"configuration_digest": -1},
        {"configuration_digest": 2**64},
    ],
)
def test_a_shape_that_does_not_fit_is_refused_before_anything_is_made(name, path, wrong):
    good = {"world_size": 1, "helpers": 0, "run_id": "", "configuration_digest": 0}
    with raising("segment-shape") as caught:
        Segment.create_or_adopt(name, **{**good, **wrong})
    assert str(caught.value.value) in str(caught.value)
    assert caught.value.limit in str(caught.value)
    assert not list(path.parent.glob(f"*{name}*"))


def test_attaching_to_nothing_says_to_start_the_group(name, path):
    with pytest.raises(SegmentMissingError, match="start the group first") as caught:
        Segment.attach(name)
    assert caught.value.path == str(path)
    assert not list(path.parent.glob(f"*{name}*"))


def test_a_group_of_another_size_is_named_with_both_sizes(segment, name):
    with raising("world-size-mismatch", match="world size 2, this process was configured for 4") as caught:
        Segment.attach(name, world_size=4)
    assert (caught.value.found, caught.value.expected) == (2, 4)


def _damage(path, offset, data):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda path: _damage(path, 0, b"NOTOURS!"), "not-a-segment"),
        (lambda path: path.write_bytes(b"\x00" * 4), "not-a-segment"),
        (lambda path: path.write_bytes(b""), SegmentTruncatedError),
        (lambda path: path.write_bytes(b"WSMG"), SegmentTruncatedError),
        (lambda path: os.truncate(path, 4096), SegmentTruncatedError),
        (lambda path: _damage(path, 8, struct.pack("<I", 99)), "layout-version-mismatch"),
        (lambda path: _damage(path, 12, struct.pack("<I", 3)), "header-damaged"),
        (lambda path: _damage(path, 40, b"\xff"), "header-damaged"),
    ],
)
def test_a_file_that_is_no_whole_segment_of_this_build_is_refused_by_name(tmp_path, damage, error):
    Segment.create_or_adopt("x", world_size=2, run_id="r", configuration_digest=1, directory=tmp_path).close()
    damage(tmp_path / "wsm.x")
    with raising(error) as caught:
        Segment.attach("x", directory=tmp_path)
    assert isinstance(caught.value, BadInputError)
    assert str(tmp_path / "wsm.x") in str(caught.value)


def test_a_header_that_was_damaged_anywhere_is_never_believed():
    whole = Header(2, 1, "run", 7).pack().ljust(256, b"\0")
    constant_bytes = len(Header(2, 1, "run", 7).pack())
    for offset in range(constant_bytes):
        damaged = bytearray(whole)
        damaged[offset] ^= 0x10
        with raising(("not-a-segment", "layout-version-mismatch", "header-damaged")):
            Header.unpack(bytes(damaged), path="x", file_bytes=1 << 30)
    assert zlib.crc32(whole[: constant_bytes - 4]) == struct.unpack_from("<I", whole, constant_bytes - 4)[0]


def test_a_link_or_a_folder_under_our_name_is_not_followed(tmp_path):
    (tmp_path / "target").write_bytes(b"x" * 4096)
    (tmp_path / "wsm.link").symlink_to(tmp_path / "target")
    (tmp_path / "wsm.folder").mkdir()
    os.mkfifo(tmp_path / "wsm.pipe")
    for name in ("link", "folder", "pipe"):
        with pytest.raises(SegmentAccessError):
            Segment.attach(name, directory=tmp_path)


@incident("FastDeploy C2-24")
@pytest.mark.needs("root")
def test_a_segment_of_another_user_is_not_trusted(launch):
    with shared_place() as place:
        Segment.create_or_adopt("x", world_size=1, run_id="", configuration_digest=0, directory=place).close()
        (place / "wsm.x").chmod(0o666)
        (place / "wsm.y.lock").touch(0o666)
        (place / "wsm.y.lock").chmod(0o666)
        child = launch(
            """
            os.setuid(65534)
            for use in (
                lambda: Segment.attach("x", directory=sys.argv[1]),
                lambda: Segment.create_or_adopt(
                    "y", world_size=1, run_id="", configuration_digest=0, directory=sys.argv[1]
                ),
            ):
                try:
                    use()
                except SegmentAccessError as error:
                    say(error.reason)
            """,
            str(place),
        )
        assert child.says() == "it belongs to user 0"
        assert child.says() == "it belongs to user 0"


def _tmpfs(path: str, size: str) -> tuple[str, ...]:
    """A command prefix that runs what follows with a small tmpfs of its own at that path."""
    return (*OWN_MOUNTS, "sh", "-c", f'mount -t tmpfs -o size={size} none "{path}" && exec "$@"', "sh")


_CREATE_IN = """
try:
    Segment.create_or_adopt("x", world_size=2, run_id="", configuration_digest=0, directory=sys.argv[1])
except RefusedError as error:
    say(error.needed_bytes, error.free_bytes, os.listdir(sys.argv[1]))
    say(error)
"""


@pytest.mark.needs("mounts")
def test_a_full_shared_memory_is_reported_at_creation_and_nothing_is_left(launch, tmp_path):
    child = launch(_CREATE_IN, str(tmp_path), prefix=_tmpfs(str(tmp_path), "64k"))
    assert child.says() == f"{Layout(2).total_bytes} {64 * 1024} []"
    assert "No space left on device" in (message := child.says())
    assert "--shm-size" in message


def test_a_limit_on_the_size_of_files_is_reported_like_a_full_disk(launch, tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
    child = launch(limit + _CREATE_IN, str(tmp_path))
    assert child.says().startswith(f"{Layout(2).total_bytes} ")
    assert "File too large" in child.says()


def test_no_room_even_for_the_lock_file_is_reported_as_that(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", refuse)
    with raising("shared-memory-full") as caught:
        Segment.create_or_adopt("x", world_size=1, run_id="", configuration_digest=0, directory=tmp_path)
    assert caught.value.reason == "No space left on device"


def test_a_folder_that_does_not_exist_is_reported_with_its_reason(tmp_path):
    with pytest.raises(SegmentAccessError, match="No such file or directory"):
        Segment.create_or_adopt(
            "x", world_size=1, run_id="", configuration_digest=0, directory=tmp_path / "no"
        )


def test_a_segment_that_is_closed_again_and_again_takes_no_lock_file_from_others(segment, name):
    other = Segment.attach(name)
    for _ in range(4):
        other.close()
    assert segment.lock_file.holder(9) is None


def test_closing_under_a_living_view_is_refused_and_closing_later_works(name):
    segment = Segment.create_or_adopt(name, world_size=1, run_id="", configuration_digest=0)
    view = segment.words[:4]
    with raising("segment-busy", match="drop those first"):
        segment.close()
    segment.words[segment.layout.command] = 3
    segment.arguments(0).write(1, 1, 1, b"still usable")
    assert segment.is_owner
    assert segment.owner.pid == os.getpid()
    view.release()
    segment.unlink()
    segment.close()
    segment.close()
    assert segment.is_closed
