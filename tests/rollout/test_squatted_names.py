"""Names of a group: another user can take none, and is heard where the configuration names that user."""

from __future__ import annotations

import secrets

import pytest

from examples.rollout.client import RolloutClient
from tests.another_user import ANOTHER_USER, acting, as_another_user, shared_place
from tests.leftovers import group_name
from wsm.shared_directory import SHARED_MEMORY, ForeignPathError, bind_socket, private_directory
from wsm.signals.errors import SegmentAccessError
from wsm.signals.fastdeploy import EngineWord, EngineWordKind


@pytest.fixture
def name():
    made = group_name("taken")
    yield made
    left = sorted(path.name for path in private_directory().glob(f"wsm.{made}*"))
    for path in private_directory().glob(f"wsm.{made}*"):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    assert len(left) <= 1, "more than what was there before"


@pytest.mark.needs("root")
def test_another_user_can_take_no_name_of_a_group_nor_see_one(name):
    place = private_directory()

    def take():
        for use in (place.iterdir, (place / f"wsm.{name}").touch, (place / f"wsm.{name}.run").mkdir):
            with pytest.raises(PermissionError):
                list(use())

    as_another_user(take)


@pytest.mark.needs("root")
def test_a_word_of_another_user_commands_a_group_only_if_the_configuration_names_that_user():
    suffix = secrets.token_hex(4)
    path = SHARED_MEMORY / f"model_weights_status.{suffix}"
    as_another_user(lambda: EngineWord.create(EngineWordKind.WEIGHTS, suffix).close())
    try:
        with pytest.raises(SegmentAccessError, match=f"belongs to user {ANOTHER_USER}.*engine_words: user"):
            EngineWord(EngineWordKind.WEIGHTS, suffix)
        with EngineWord(EngineWordKind.WEIGHTS, suffix, user=ANOTHER_USER) as word:
            assert word.compare_exchange(0, -1)
    finally:
        path.unlink()


@pytest.mark.needs("root")
def test_a_client_does_not_talk_to_a_socket_of_another_user_in_a_directory_of_all(name):
    with shared_place() as place:
        path = place / f"wsm.{name}.requests"

        def listen():
            squatter = bind_socket(path)
            path.chmod(0o777)
            squatter.listen()
            return squatter

        with acting(listen), pytest.raises(ForeignPathError, match=f"user {ANOTHER_USER}"):
            RolloutClient(name, directory=place)
