from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.incident import incident
from tests.raising import raising
from wsm.signals import ownership
from wsm.signals.errors import SegmentMissingError, SegmentOwnedError, SegmentReplacedError
from wsm.signals.liveness import ControllerRole, Life, Liveness, register
from wsm.signals.lock_file import create_lock_file
from wsm.signals.ownership import FIRST_PARTICIPANT_BYTE
from wsm.signals.segment import Segment

pytestmark = pytest.mark.processes

OWNER = """
segment = Segment.create_or_adopt(sys.argv[1], world_size=2, run_id="first", configuration_digest=7)
segment.words[segment.layout.command] = 4711
say(segment.adopted)
while (what := heard()):
    if what == "unlink":
        segment.unlink()
    if what == "close":
        segment.close()
    say("done")
"""

PARTICIPANT = """
segment = Segment.attach(sys.argv[1])
registration = register(segment, int(sys.argv[2]))
say("registered")
heard()
"""


def start_over(name, *, world_size=2, configuration_digest=7):
    return Segment.create_or_adopt(
        name, world_size=world_size, run_id="second", configuration_digest=configuration_digest
    )


@incident("4.8-8")
def test_a_second_owner_is_refused_while_the_first_lives(name, launch):
    owner = launch(OWNER, name)
    assert owner.says() == "False"
    for start in (
        start_over,
        lambda name: Segment.create_or_adopt(name, world_size=2, run_id="", configuration_digest=7),
    ):
        with pytest.raises(SegmentOwnedError) as caught:
            start(name)
        assert caught.value.pid == owner.pid
    with Segment.attach(name) as segment:
        assert segment.words[segment.layout.command] == 4711
        assert segment.owner.pid == owner.pid


def test_a_stopped_owner_is_still_the_owner(name, launch):
    owner = launch(OWNER, name)
    owner.says()
    owner.freeze()
    with pytest.raises(SegmentOwnedError) as caught:
        start_over(name)
    assert caught.value.pid == owner.pid


def test_a_second_owner_within_one_process_is_refused_too(segment, name):
    with pytest.raises(SegmentOwnedError) as caught:
        start_over(name)
    assert caught.value.pid == os.getpid()


def test_a_killed_owners_segment_is_adopted_with_all_its_words_while_a_participant_lives(name, launch):
    owner = launch(OWNER, name)
    owner.says()
    participant = launch(PARTICIPANT, name, "1")
    participant.says()
    owner.kill()
    with start_over(name) as segment:
        assert segment.adopted
        assert segment.is_owner
        assert segment.owner.pid == os.getpid()
        assert segment.run_id == "first"
        assert segment.words[segment.layout.command] == 4711
        liveness = Liveness(segment)
        assert liveness.look(1) is Life.ALIVE
        liveness.close()


def test_a_stopped_participant_keeps_its_segment_from_being_reclaimed(name, launch):
    owner = launch(OWNER, name)
    owner.says()
    participant = launch(PARTICIPANT, name, "0")
    participant.says()
    participant.freeze()
    owner.kill()
    with start_over(name) as segment:
        assert segment.adopted
        assert not ownership.remove_abandoned(segment.path), "its owner lives"
    assert not ownership.remove_abandoned(segment.path), "a participant lives"
    participant.kill()
    assert ownership.remove_abandoned(segment.path)
    assert not segment.path.exists()


def test_an_owner_that_is_a_zombie_is_dead(name, launch):
    owner = launch(OWNER, name)
    owner.says()
    owner.leave_zombie()
    with start_over(name) as segment:
        assert not segment.adopted


def test_a_segment_in_which_nobody_lives_is_made_anew_and_its_old_users_can_tell(name, launch):
    owner = launch(OWNER, name)
    owner.says()
    participant = launch(PARTICIPANT, name, "1")
    participant.says()
    onlooker = Segment.attach(name)
    assert not onlooker.inode_changed()
    participant.kill()
    owner.kill()
    with start_over(name) as segment:
        assert not segment.adopted
        assert segment.run_id == "second"
        assert segment.words[segment.layout.command] == 0
        assert onlooker.inode_changed()
        assert not segment.inode_changed()
        with pytest.raises(SegmentReplacedError, match="attach again"):
            ControllerRole(onlooker).acquire(0)
        with pytest.raises(SegmentReplacedError):
            register(onlooker, 0)
        onlooker.close()


def test_whatever_lies_there_is_replaced_if_nobody_lives(tmp_path):
    for rubbish in (b"", b"x" * 5000, b"WSMGROUP" + b"\xff" * 5000):
        (tmp_path / "wsm.x").write_bytes(rubbish)
        with Segment.create_or_adopt(
            "x", world_size=1, run_id="", configuration_digest=0, directory=tmp_path
        ) as segment:
            assert not segment.adopted
            segment.unlink()


def test_a_live_group_of_another_shape_or_configuration_is_left_alone(name, path, launch):
    owner = launch(OWNER, name)
    owner.says()
    participant = launch(PARTICIPANT, name, "0")
    participant.says()
    owner.kill()
    with raising("world-size-mismatch") as another_shape:
        start_over(name, world_size=3)
    with raising("configuration-mismatch", match="stop that group"):
        start_over(name, configuration_digest=8)
    assert str(path) not in Path("/proc/self/maps").read_text(), another_shape  # though the errors are kept
    with path.open("r+b") as file:
        file.seek(20)
        file.write(b"\xff")
    with raising("header-damaged"):
        start_over(name)
    assert path.exists()


def test_of_many_starters_at_once_exactly_one_owns_the_segment(name, launch):
    starter = """
    heard()
    try:
        segment = Segment.create_or_adopt(sys.argv[1], world_size=2, run_id="r", configuration_digest=7)
    except SegmentOwnedError as error:
        say("refused", error.pid)
    else:
        say("owner", os.getpid())
    heard()
    """
    starters = [launch(starter, name) for _ in range(4)]
    for child in starters:
        child.tell()
    answers = [child.says().split() for child in starters]
    owners = [pid for what, pid in answers if what == "owner"]
    assert len(owners) == 1
    assert {pid for _, pid in answers} == set(owners)


def test_only_the_owner_may_remove_the_segment(segment, name, path):
    with Segment.attach(name) as other:
        with raising("not-owner"):
            other.unlink()
        assert path.exists()
        segment.unlink()
        assert not path.exists()
        assert other.inode_changed()
    assert not list(path.parent.glob(f"*{name}*"))
    with pytest.raises(SegmentMissingError):
        Segment.attach(name)


def test_a_successors_segment_is_not_removed_by_a_late_predecessor(segment, name, path):
    path.unlink()
    path.write_bytes(b"a successor's")
    segment.unlink()
    assert path.read_bytes() == b"a successor's"


def test_a_segment_that_its_owner_closed_without_removing_waits_for_the_next(name, launch):
    owner = launch(OWNER, name)
    owner.says()
    participant = launch(PARTICIPANT, name, "1")
    participant.says()
    owner.tell("close")
    assert owner.says() == "done"
    with Segment.attach(name) as onlooker:
        assert onlooker.owner is None
    with start_over(name) as segment:
        assert segment.adopted


def test_a_lock_file_that_a_hand_removed_does_not_hide_a_live_group(name, path, launch):
    owner = launch(OWNER, name)
    owner.says()
    participant = launch(PARTICIPANT, name, "1")
    participant.says()
    with Segment.attach(name) as before:
        path.with_name(path.name + ".lock").unlink()
        with pytest.raises(SegmentReplacedError):  # or two processes would command at the same time
            ControllerRole(before).acquire(0)
    with pytest.raises(SegmentOwnedError):
        start_over(name)
    owner.kill()
    with start_over(name) as segment:
        assert segment.adopted


def test_a_starter_that_opened_the_lock_file_of_a_leaving_owner_opens_the_next(name, path, monkeypatch):
    """The old owner removes the file between the starter's open and its lock."""
    opened = []

    def open_just_before_it_goes(path):
        opened.append(create_lock_file(path))
        if len(opened) == 1:
            path.unlink()
        return opened[-1]

    monkeypatch.setattr(ownership, "create_lock_file", open_just_before_it_goes)
    with start_over(name) as segment:
        assert len(opened) == 2
        assert segment.lock_file.is_current()
        segment.unlink()


def test_what_a_starter_left_half_made_when_it_was_killed_is_cleaned_up_by_the_next(name, path):
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_bytes(b"half")
    with start_over(name) as segment:
        assert not unfinished.exists()
        segment.unlink()


def test_ownership_stays_with_the_parent_when_a_process_forks(name, launch):
    child = launch(
        """
        segment = Segment.create_or_adopt(sys.argv[1], world_size=2, run_id="", configuration_digest=7)
        registration = register(segment, 0)
        role = ControllerRole(segment).acquire(0)
        pid = os.fork()
        if pid == 0:
            say(segment.is_owner, registration.is_held, role.is_held)
            for refused in (
                segment.unlink,
                lambda: ControllerRole(segment).acquire(0),
                lambda: register(segment, 0, timeout_s=0),
            ):
                try:
                    refused()
                    say("not refused")
                except RefusedError as error:
                    say(type(error).__name__, getattr(error, "pid", os.getppid()) == os.getppid())
            with register(segment, 1):
                say(Liveness(segment).look(1))
            registration.release()
            role.release()
            segment.close()
            say("closed")
            os._exit(0)
        os.waitpid(pid, 0)
        say(segment.is_owner, registration.is_held, role.is_held)
        heard()
        """,
        name,
    )
    assert child.says() == "False False False"
    assert child.says() == "RefusedError True"
    assert child.says() == "RoleBusyError True"
    assert child.says() == "SlotTakenError True"
    assert child.says() == "Life.ALIVE"
    assert child.says() == "closed"
    assert child.says() == "True True True"
    # What the child closed and released was its own: the kernel still holds the parent's locks.
    with Segment.attach(name) as segment:
        assert segment.lock_file.holder(0) == segment.lock_file.holder(1) == child.pid
        assert segment.lock_file.holder(FIRST_PARTICIPANT_BYTE) == child.pid
        assert segment.lock_file.holder(FIRST_PARTICIPANT_BYTE + 1) is None
