"""Names of a group that are taken: refused at once, by name and with a fix, and left as they were."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.another_user import ANOTHER_USER, acting, as_another_user, makers
from wsm.errors import WsmError
from wsm.rollout.client import RolloutClient
from wsm.rollout.config import rollout_config_from_mapping
from wsm.rollout.request_socket import RequestSocket
from wsm.rollout.supervisor import RolloutSupervisor
from wsm.shared_directory import ForeignPathError, bind_socket
from wsm.signals.errors import SegmentAccessError
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.signals.names import SHARED_MEMORY_DIRECTORY

#: A directory of ours under the name of the run directory is what an earlier run leaves.
TAKEN = [
    (suffix, kind)
    for suffix in (".run", ".requests")
    for kind in ("a file", "a directory", "a pipe", "a link", "a dangling link")
    if (suffix, kind) != (".run", "a directory")
]


@pytest.fixture
def name():
    made = f"test-taken-{secrets.token_hex(4)}"
    yield made
    left = sorted(path.name for path in SHARED_MEMORY_DIRECTORY.glob(f"wsm.{made}*"))
    for path in SHARED_MEMORY_DIRECTORY.glob(f"wsm.{made}*"):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    assert len(left) <= 1, "more than what was there before"


@pytest.fixture
def start(name):
    """Start the group; the error that it ends with."""

    def start(**group) -> WsmError:
        config = rollout_config_from_mapping({"group": {"name": name, **group}})
        with pytest.raises(WsmError) as caught, RolloutSupervisor(config):
            pass
        return caught.value

    return start


def status(path: Path) -> tuple[int, int, int]:
    found = path.lstat()
    return found.st_ino, found.st_uid, found.st_mode


@pytest.mark.parametrize(("suffix", "kind"), TAKEN)
def test_what_lies_under_a_name_of_the_group_is_refused_and_left(name, start, suffix, kind):
    path = SHARED_MEMORY_DIRECTORY / f"wsm.{name}{suffix}"
    makers(path)[kind]()
    before = status(path)
    error = start()
    assert isinstance(error, ForeignPathError)
    assert str(path) in str(error)
    assert "remove it" in str(error)
    assert status(path) == before


@pytest.mark.needs("root")
@pytest.mark.parametrize("suffix", ["", ".lock", ".new", ".run", ".requests"])
def test_what_another_user_has_put_there_is_refused_by_root_and_left(name, start, suffix):
    path = SHARED_MEMORY_DIRECTORY / f"wsm.{name}{suffix}"
    kind = "a directory" if suffix == ".run" else "a file"
    as_another_user(lambda: (makers(path)[kind](), path.chmod(0o777)))
    before = status(path)
    error = start()
    assert isinstance(error, SegmentAccessError if suffix in ("", ".lock", ".new") else ForeignPathError)
    assert str(path) in str(error)
    assert status(path) == before
    if suffix != ".requests":  # a file there is no socket, whosever it is
        assert f"it belongs to user {ANOTHER_USER}" in str(error)


@pytest.mark.needs("root")
def test_a_word_of_another_user_commands_a_group_only_if_the_configuration_names_that_user():
    suffix = secrets.token_hex(4)
    path = SHARED_MEMORY_DIRECTORY / f"model_weights_status.{suffix}"
    as_another_user(lambda: EngineWord.create(EngineWordKind.WEIGHTS, suffix).close())
    try:
        with pytest.raises(SegmentAccessError, match=f"belongs to user {ANOTHER_USER}.*engine_words: user"):
            EngineWord(EngineWordKind.WEIGHTS, suffix)
        with EngineWord(EngineWordKind.WEIGHTS, suffix, user=ANOTHER_USER) as word:
            assert word.compare_exchange(0, -1)
    finally:
        path.unlink()


@pytest.mark.processes
def test_a_pipe_under_the_name_of_the_run_directory_ends_the_command_at_once(name):
    path = SHARED_MEMORY_DIRECTORY / f"wsm.{name}.run"
    os.mkfifo(path)
    done = subprocess.run(
        [sys.executable, "-m", "wsm.cli.main", "rollout", "--name", name],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: {path} is not used: it is a pipe")


@pytest.mark.needs("root")
def test_a_client_does_not_talk_to_a_socket_of_another_user(name):
    path = SHARED_MEMORY_DIRECTORY / f"wsm.{name}.requests"

    def listen():
        squatter = bind_socket(path)
        path.chmod(0o777)
        squatter.listen()
        return squatter

    with acting(listen), pytest.raises(ForeignPathError, match=f"user {ANOTHER_USER}"):
        RolloutClient(name)


def test_the_socket_of_a_dead_rank_is_replaced_and_nothing_else(name):
    path = SHARED_MEMORY_DIRECTORY / f"wsm.{name}.requests"
    bind_socket(path).close()
    before = os.umask(0)
    try:
        with closing(RequestSocket(path)):
            assert path.lstat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
    assert not path.exists()
    path.mkdir()
    with pytest.raises(ForeignPathError, match="it is a directory, not a socket"):
        RequestSocket(path)
