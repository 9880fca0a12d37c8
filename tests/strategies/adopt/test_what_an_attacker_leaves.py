"""What others may put where a trainer writes: none is followed, waited for, or taken as a trainer's."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from small_state import make_state
from written_checkpoint import write_checkpoint, write_file

from tests.another_user import as_another_user, shared_place
from tests.raising import raising
from wsm.errors import BadInputError, ForeignPathError
from wsm.strategies import AdoptSettings, adopt
from wsm.strategies.adopt import checkpoint
from wsm.strategies.adopt.checkpoint import open_below


@pytest.fixture
def exchange(tmp_path: Path) -> Path:
    (tmp_path / "exchange").mkdir()
    return tmp_path / "exchange"


@pytest.fixture
def settings(tmp_path: Path, exchange: Path) -> AdoptSettings:
    return AdoptSettings(tmp_path / "models", [exchange], durable=False)


def test_a_directory_elsewhere_is_refused_whatever_leads_there(settings, exchange, tmp_path):
    elsewhere = write_checkpoint(tmp_path / "exchange-of-another" / "step_7", make_state())
    (exchange / "step_7").symlink_to(elsewhere)
    for path in (elsewhere, exchange / "step_7", exchange / ".." / "exchange-of-another" / "step_7"):
        with raising("outside-roots"):
            adopt(path, settings)
    assert not Path(settings.into).exists()


def test_a_file_that_leads_elsewhere_is_refused_and_one_below_a_root_is_followed(
    settings, exchange, tmp_path
):
    secret = write_checkpoint(tmp_path / "secret", make_state(), files=1, index=False)
    blobs = write_checkpoint(exchange / "blobs", make_state(), files=1, index=False)
    (file,) = blobs.glob("*.safetensors")
    (exchange / "step_7").mkdir()
    link = exchange / "step_7" / "model.safetensors"
    link.symlink_to(secret / file.name)
    with raising("outside-roots"):
        adopt(link.parent, settings)
    link.unlink()
    link.symlink_to(Path("..", "blobs", file.name))
    assert adopt(link.parent, settings).label == "7"
    (part,) = Path(settings.into).glob("versions/7/*.part*")
    assert part.samefile(file)
    assert not part.is_symlink()


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path)],
)
def test_what_is_no_file_is_refused_without_waiting_for_it(settings, exchange, make):
    written = write_checkpoint(exchange / "step_7", make_state(), index=False)
    make(written / "model.safetensors")
    with raising((ForeignPathError, BadInputError)):
        adopt(written, settings)
    assert not Path(settings.into).exists()


@pytest.mark.parametrize("path", ["step_7\0", "x" * 300, "", "."])
def test_a_path_that_no_file_can_have_is_bad_input(settings, exchange, path):
    with pytest.raises(BadInputError):
        adopt(f"{exchange}/{path}", settings)


def test_a_directory_that_is_exchanged_between_look_and_use_is_not_opened(exchange, tmp_path, monkeypatch):
    """Whatever moment an enemy takes: what is opened was found from the root down, and follows no link."""
    elsewhere = write_checkpoint(tmp_path / "elsewhere", make_state())
    write_checkpoint(exchange / "run" / "step_7", make_state())
    found = checkpoint.path_of

    def exchanged(descriptor: int) -> str:
        leads_to = found(descriptor)
        if (exchange / "run" / "step_7").exists() and not (exchange / "run" / "step_7").is_symlink():
            (exchange / "run" / "step_7").rename(exchange / "run" / "old")
            enemies[-1](exchange / "run" / "step_7")
        return leads_to

    monkeypatch.setattr(checkpoint, "path_of", exchanged)
    enemies: list[Callable[[Path], None]] = [
        lambda path: path.symlink_to(elsewhere),
        Path.mkdir,
        lambda _: None,
    ]
    while enemies:
        with pytest.raises((ForeignPathError, OSError)):
            open_below(exchange / "run" / "step_7", [exchange], kind=stat.S_IFDIR)
        enemies.pop()
        place = exchange / "run" / "step_7"
        if place.is_symlink():
            place.unlink()
        elif place.exists():
            place.rmdir()
        (exchange / "run" / "old").rename(place)


def test_a_directory_that_its_trainer_replaces_while_it_is_opened_has_changed_and_is_nobody_elses(
    settings, exchange, monkeypatch
):
    written = write_checkpoint(exchange / "step_7", make_state())
    found = checkpoint.path_of

    def replaced(descriptor: int) -> str:
        leads_to = found(descriptor)
        monkeypatch.undo()
        written.rename(exchange / "old")
        write_checkpoint(written, make_state(2))
        return leads_to

    monkeypatch.setattr(checkpoint, "path_of", replaced)
    with raising(checkpoint.checkpoint_changed, match="exchanged while it was opened"):
        adopt(written, settings)
    assert adopt(written, settings).label == "7"


@pytest.mark.needs("root")
def test_what_another_user_makes_where_all_may_is_not_the_trainers():
    with shared_place() as place:
        settings = AdoptSettings(place / "models", [place], durable=False)
        as_another_user(lambda: write_checkpoint(place / "step_7", make_state()))
        with pytest.raises(ForeignPathError, match="belongs to user"):
            adopt(place / "step_7", settings)
        ours = write_checkpoint(place / "step_8", make_state(), index=False)
        ours.chmod(0o1777)
        as_another_user(lambda: write_file(ours / "model-of-an-enemy.safetensors", make_state(seed=6)))
        with pytest.raises(ForeignPathError, match="belongs to user"):
            adopt(ours, settings)
        # Who could make a name before we declared it has no part in what was declared.
        theirs = place / "theirs"
        as_another_user(lambda: write_checkpoint(theirs / "step_9", make_state()))
        with pytest.raises(ForeignPathError, match="belongs to user"):
            adopt(theirs / "step_9", AdoptSettings(place / "models", [theirs], durable=False))
        assert not (place / "models").exists()


@pytest.mark.needs("root")
def test_a_trainer_of_another_user_is_trusted_where_only_trusted_ones_can_write(tmp_path):
    with shared_place() as place:
        place.chmod(0o755)
        (place / "exchange").mkdir()
        os.chown(place / "exchange", 65534, 65534)
        as_another_user(lambda: write_checkpoint(place / "exchange" / "step_7", make_state()))
        settings = AdoptSettings(tmp_path / "models", [place / "exchange"], durable=False)
        assert adopt(place / "exchange" / "step_7", settings).label == "7"


def test_no_root_declared_means_that_nothing_is_opened(settings, exchange):
    written = write_checkpoint(exchange / "step_7", make_state())
    with raising("outside-roots", match="no directory at all"):
        adopt(written, AdoptSettings(settings.into, []))
    with raising("checkpoint-missing"):
        adopt(exchange / "step_8", settings)
