"""The directory of this user's shared memory: made private, seen to be ours, refused with a way out."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.another_user import ANOTHER_USER, as_another_user, makers, shared_place
from tests.leftovers import group_name
from tests.needs import OWN_MOUNTS
from wsm.shared_directory import SHARED_MEMORY, VARIABLE, ForeignPathError, private_directory
from wsm.signals.fastdeploy import EngineWordKind, engine_word_path
from wsm.signals.layout import segment_path
from wsm.signals.segment import Segment, existing_groups

OWN_USERS = ("unshare", "--map-user=1000", "--map-group=1000")


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the directory would be, among names that every user can make."""
    with shared_place() as place:
        monkeypatch.setenv(VARIABLE, str(place / "wsm"))
        yield place / "wsm"


def test_it_is_named_after_its_user_unless_the_environment_names_another(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "own"))
    assert private_directory() == tmp_path / "own"
    monkeypatch.delenv(VARIABLE)
    here = private_directory()
    assert here == SHARED_MEMORY / f"wsm-{os.geteuid()}"
    assert segment_path("policy") == here / "wsm.policy"
    if not any(here.iterdir()):
        here.rmdir()


def test_fastdeploys_words_stay_where_fastdeploy_makes_them(path):
    assert engine_word_path(EngineWordKind.WEIGHTS, 8001) == SHARED_MEMORY / "model_weights_status.8001"
    assert not path.exists()


@pytest.mark.parametrize("umask", [0, 0o777])
def test_it_is_made_for_this_user_alone_whatever_the_umask_says(path, umask):
    before = os.umask(umask)
    try:
        assert private_directory() == path
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert private_directory() == path


@pytest.mark.parametrize("kind", ["a file", "a pipe", "a link", "a dangling link"])
def test_what_is_no_directory_is_refused_and_never_followed(path, kind):
    makers(path)[kind]()
    before = path.lstat()
    with pytest.raises(ForeignPathError, match=f"it is a .*, not a directory; .*{VARIABLE}"):
        Segment.create_or_adopt("group", world_size=1, run_id="run", configuration_digest=0)
    assert path.lstat() == before


def test_a_link_to_a_directory_of_ours_is_not_followed_either(path):
    path.with_name("ours").mkdir(0o700)
    path.symlink_to(path.with_name("ours"))
    with pytest.raises(ForeignPathError, match="it is a symbolic link, not a directory"):
        private_directory()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o750, 0o701])
def test_one_that_is_open_to_others_is_refused_with_its_mode_and_left(path, mode):
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(ForeignPathError, match=f"its mode is 0{mode & 0o777:o}.*chmod 700"):
        private_directory()
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.needs("root")
@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_another_users_is_refused_by_root_with_its_owner_and_a_way_out(path, mode):
    as_another_user(lambda: (path.mkdir(), path.chmod(mode)))
    with pytest.raises(ForeignPathError, match=f"belongs to user {ANOTHER_USER}.*{VARIABLE}") as caught:
        Segment.create_or_adopt("group", world_size=1, run_id="run", configuration_digest=0)
    assert caught.value.owner == ANOTHER_USER
    assert list(path.iterdir()) == []


@pytest.mark.needs("root")
def test_roots_is_refused_by_another_user_with_its_owner(path):
    private_directory()

    def use():
        with pytest.raises(ForeignPathError, match="it belongs to user 0"):
            existing_groups()

    as_another_user(use)


def test_where_it_cannot_be_made_the_error_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere" / "wsm"))
    with pytest.raises(ForeignPathError, match=f"cannot be made .No such file.*{VARIABLE}"):
        private_directory()


def test_one_that_was_removed_is_made_anew(path):
    private_directory().rmdir()
    assert private_directory().is_dir()


def in_container(users: Sequence[str], program: str, *arguments: str) -> str:
    """Run a program of ours with users of its own, in this place's shared memory."""
    command = [*users, sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


ATTACH = """
import os, sys
from wsm.signals.segment import Segment, existing_groups
segment = Segment.attach(sys.argv[1])
segment.words[segment.layout.committed] += 1
print(os.geteuid(), segment.run_id, *existing_groups())
segment.close()
"""


@pytest.mark.slow_but
@pytest.mark.needs("mounts")
@pytest.mark.processes
@pytest.mark.parametrize("users", [OWN_MOUNTS, OWN_USERS], ids=["the same number", "another number"])
def test_two_containers_of_one_user_share_it(path, users):
    """The owner counts, not the number that a container calls it by."""
    name = group_name("containers")
    segment = Segment.create_or_adopt(name, world_size=1, run_id="run", configuration_digest=0)
    try:
        for count in (1, 2):
            uid = "0" if users is OWN_MOUNTS else "1000"
            assert in_container(users, ATTACH, name) == f"{uid} run {name}\n"
            assert segment.words[segment.layout.committed] == count
    finally:
        segment.unlink()
        segment.close()
    assert list(path.iterdir()) == []
