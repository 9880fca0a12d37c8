"""What an operator is told is true and helps: on real groups, what is advised is done, and then they serve.

Each sentence names the version that served before; each command is run as it is printed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import threading

import pytest
from click.testing import CliRunner
from living_group import LivingGroup, eventually

import wsm
from tests.cli.command_line import SEPARATE
from wsm.cli.main import run
from wsm.config import config_from_mapping
from wsm.group_segment import own_group
from wsm.signals import names
from wsm.signals.errors import RoleBusyError

pytestmark = pytest.mark.processes


class Ranks:
    """The processes of a living group, for a keeper."""

    def __init__(self, group: LivingGroup) -> None:
        self._group = group

    def start(self, participant: int, epoch: int) -> None:
        self._group.launch(participant)

    def ended(self) -> list[int]:
        return [rank for rank, program in self._group.programs.items() if has_ended(program)]

    def end(self, participant: int) -> wsm.ProcessEnd:
        program = self._group.programs[participant]
        program.close()
        return wsm.ProcessEnd(program.pid, -signal.SIGKILL)

    def wait(self, timeout_s: float) -> None:
        threading.Event().wait(timeout_s)


def has_ended(program) -> bool:
    try:
        program._process.wait(0)
    except subprocess.TimeoutExpired:
        return False
    return True


class Told:
    """A group, what the command line says of it, and the commands that it prints."""

    def __init__(self, group: LivingGroup) -> None:
        self.group = group

    def wsm(self, *arguments: str) -> str:
        with CliRunner(**SEPARATE).isolation() as (out, err, *_):
            self.code = run(list(arguments))
            return (out.getvalue() + err.getvalue()).decode()

    def explained(self) -> dict:
        """What `wsm explain` says; `wsm status` says the same."""
        found = json.loads(self.wsm("explain", self.group.name, "--json"))
        self.text = " ".join(self.wsm("explain", self.group.name, "--last", "0").split())
        return found

    def until(self, headline: str) -> list[str]:
        """Wait until the headline holds these words; return the commands that are advised then."""
        found: dict = {}

        def is_said() -> bool:
            found.update(self.explained())
            return headline in found["headline"]

        eventually(is_said, headline)
        return found["commands"]

    def does(self, command: str) -> None:
        """Carry out a command as it is printed."""
        program, *arguments = shlex.split(command)
        if program == "wsm":
            said = self.wsm(*arguments)
            assert self.code == 0, said
            return
        assert program == "kill"
        number = {"-9": signal.SIGKILL, "-CONT": signal.SIGCONT}[arguments[0]]
        for pid in arguments[1:]:
            os.kill(int(pid), number)

    def start_again(self) -> None:
        for program in self.group.programs.values():
            program.close()
        self.group.start()


@pytest.fixture
def alone(make_group, monkeypatch):
    """A group of two ranks that serves version 1, and that no process keeps."""
    group = make_group(load=0.5)
    monkeypatch.setattr(names, "SHARED_MEMORY_DIRECTORY", group.directory)
    group.boot()
    group.publish(2)
    return Told(group)


@pytest.fixture
def kept(make_group, monkeypatch):
    """The same, and this process is its supervisor."""
    group = make_group(load=0.5)
    monkeypatch.setattr(names, "SHARED_MEMORY_DIRECTORY", group.directory)
    config = config_from_mapping(group.config)
    with contextlib.ExitStack() as undo:
        segment = own_group(config, directory=group.directory)
        undo.callback(segment.close)
        undo.callback(segment.unlink)
        group.boot()
        group.publish(2)
        limits = wsm.RecoveryConfig(hung_s=2.0, delay_s=0.01)
        undo.enter_context(wsm.Keeper(config, segment, Ranks(group), limits=limits))
        yield Told(group)


def serves(told: Told, version: int = 1) -> None:
    told.until(f"serves version {version}")
    told.group.await_steps()


def damage(told: Told, version: int = 2) -> None:
    """Let the newest version be one that no rank can load."""
    for path in told.group.shard_files(version, 1):
        if path.suffix != ".pdparams":
            continue
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)


def test_a_killed_rank_is_replaced_by_the_supervisor_that_is_named(kept):
    os.kill(kept.group.programs[1].pid, signal.SIGSTOP)  # so that the keeper does not see it at once
    os.kill(kept.group.programs[1].pid, signal.SIGKILL)
    serves(kept)
    assert kept.group.controller().status().epoch == 2


def test_a_killed_rank_of_a_group_without_a_supervisor_costs_the_group_and_the_commands_start_it_again(alone):
    alone.group.programs[1].kill()
    commands = alone.until("has lost rank 1")
    assert "No process replaces its ranks" in alone.text
    assert "version 1 served before" in alone.text
    with pytest.raises(wsm.RankLostError, match="No process replaces its ranks") as caught:
        alone.group.controller().clear()
    assert "version 1 served before" in caught.value.context["group"]
    alone.does(commands[0])
    alone.start_again()
    alone.does(commands[1])
    serves(alone)


@pytest.mark.parametrize("which", [0, 1])
def test_a_rank_that_is_stopped_between_commands_goes_on_or_is_replaced(kept, which):
    kept.group.programs[1].freeze()
    commands = kept.until("waits for rank 1, whose process is stopped")
    assert "never" not in kept.text
    assert "start" not in kept.text
    assert [command.split()[1] for command in commands] == ["-CONT", "-9"]
    kept.does(commands[which])
    eventually(lambda: kept.group.controller().status().epoch == 1 + which)
    serves(kept)


def test_a_rank_that_is_stopped_inside_an_action_is_named_with_it_and_replaced_once_it_is_ended(kept):
    kept.group.order(1, "write", "hold")
    pending = kept.group.controller().begin_update(2)
    kept.group.await_held(1, "write")
    kept.group.programs[1].freeze()
    commands = kept.until("waits for rank 1, whose process is stopped: the update to version 2 is under way")
    assert "has been inside load_weights for" in kept.text
    kept.group.revoke(1, "write")
    kept.does(commands[1])
    with pytest.raises(wsm.WsmError):
        pending.result(60)
    serves(kept)


def test_a_stopped_rank_without_a_supervisor_is_let_go_on(alone):
    alone.group.programs[1].freeze()
    pending = alone.group.controller().begin_update(2)
    (command,) = alone.until("waits for rank 1, whose process is stopped: the update to version 2")
    assert "No process replaces it" in alone.text
    alone.does(command)
    assert pending.result(60).version == "2"
    serves(alone, 2)


def test_after_an_update_in_place_of_a_damaged_version_the_one_that_served_is_advised_and_not_the_newest(
    alone,
):
    damage(alone)
    with pytest.raises(wsm.RankFailedError) as caught:
        alone.group.controller().update()
    assert "holds no weights; version 1 served before" in caught.value.context["group"]
    (command,) = alone.until("holds no weights: the update to version 2 failed on rank 1 in load_weights")
    assert "version 1 served before" in alone.text
    assert "as it was told" not in alone.text
    assert command == f"wsm update {alone.group.name} --version 1"
    assert command in " ".join(alone.wsm("status", alone.group.name).split())
    alone.does(command)
    serves(alone)
    assert "Earlier:" in alone.text
    assert "! " not in alone.text


def test_a_hot_update_that_failed_left_the_old_version_serving_and_says_so(alone):
    damage(alone)
    with pytest.raises(wsm.RankFailedError) as caught:
        alone.group.controller().update(2, hot=True)
    assert alone.until("serves version 1: the hot update to version 2 failed on rank 1") == []
    assert "changed nothing" in alone.text
    for said in (alone.text, str(caught.value)):
        assert "not whole" not in said
        assert "overwritten" not in said
    serves(alone)


def test_an_update_that_finds_nothing_to_do_is_no_failure_and_no_refusal(alone):
    alone.does(f"wsm update {alone.group.name} --version 2")
    said = alone.wsm("update", alone.group.name)
    assert (alone.code, "already serves version 2" in said) == (0, True)
    assert alone.until("serves version 2: the last update named no version") == []
    journals = alone.wsm("journal", str(alone.group.directory / "journals"))
    for told in (alone.text, journals):
        assert "refused" not in told
        assert "! " not in told
        assert "FAILED" not in told


def test_a_step_that_raised_ends_the_group_where_no_process_keeps_it(alone):
    alone.group.order(1, "step", "raise once")
    commands = alone.until("cannot step: a step raised on rank")
    assert "No process replaces its ranks" in alone.text
    alone.does(commands[0])
    alone.start_again()
    alone.does(commands[1])
    serves(alone)


def test_a_step_that_raised_is_answered_by_the_supervisor(kept):
    kept.group.order(1, "step", "raise once")
    eventually(lambda: kept.group.controller().status().epoch > 1)
    serves(kept)


def test_a_group_that_could_not_release_its_memory_is_cleared_and_loaded_by_the_commands(alone):
    alone.group.order(1, "release", "raise")
    with pytest.raises(wsm.RankFailedError, match="could not release its memory on rank 1"):
        alone.group.controller().clear()
    commands = alone.until("could not release its memory on rank 1")
    alone.group.revoke(1, "release")
    for command in commands:
        alone.does(command)
    serves(alone)


def test_a_clear_says_what_released_the_weights_and_how_the_version_comes_back(alone):
    alone.group.controller().clear(request_id="make room")
    (command,) = alone.until("the last command, a clear (make room), released them; version 1 served before")
    alone.does(command)
    serves(alone)


def test_a_group_that_starts_says_so_and_who_has_the_role_and_how_to_wait(make_group, monkeypatch):
    group = make_group(load=0.5)
    monkeypatch.setattr(names, "SHARED_MEMORY_DIRECTORY", group.directory)
    told, config = Told(group), config_from_mapping(group.config)
    group.publish(1)
    with own_group(config, directory=group.directory) as segment:
        told.until("is starting: no rank has attached yet")
        assert f"Process {os.getpid()} starts the ranks: wait" in " ".join(
            told.wsm("status", group.name).split()
        )
        group.launch(0).says("ready")
        told.until("is starting: rank 1 has not attached yet")
        group.launch(1).says("ready")
        group.order(1, "write", "hold")
        pending = group.controller().begin_update(1)
        group.await_held(1, "write")
        with pytest.raises(RoleBusyError) as caught:
            group.controller().clear()
        assert "carries out the update to version 1" in str(caught.value)
        assert "--wait 30" in str(caught.value)
        group.revoke(1, "write")
        assert pending.result(60).version == "1"
        serves(told)
        segment.unlink()
