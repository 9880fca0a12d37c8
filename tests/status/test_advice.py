"""What an operator is told is true and helps: on real groups, what is advised is done, and then they serve.

Each sentence names the version that served before; each command is run as it is printed.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shlex
import signal
from pathlib import Path
from unittest.mock import patch

import pytest
from click.testing import CliRunner
from kept_group import LivingProcesses
from living_group import LivingGroup, Program, eventually

import wsm
import wsm.metrics
from tests.cli.command_line import SEPARATE
from tests.segment_bytes import damage_records
from wsm.cli.main import run
from wsm.config import config_from_mapping
from wsm.controller.abandoned_commands import AbandonedCommands
from wsm.controller.group_view import GroupView
from wsm.group_segment import own_group
from wsm.signals import presence
from wsm.signals.errors import RoleBusyError
from wsm.signals.owner_settings import owner_awaits
from wsm.signals.segment import Segment
from wsm.states.vocabulary import KVState, WeightState
from wsm.states.words import StatusWord
from wsm.status import reading
from wsm.status.facts import ForeignPid
from wsm.status.rules import find
from wsm.testing import ControllerDied, InMemoryRunner, LocalGroup

pytestmark = pytest.mark.processes


class Told:
    """A group, what the command line says of it, and the commands that it prints."""

    segment: Segment
    closing: contextlib.ExitStack

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
def alone(make_group, monkeypatch, request):
    """A group of two ranks that serves version 1, and that no process keeps."""
    group = make_group(load=0.5, config=getattr(request, "param", None))
    monkeypatch.setenv("WSM_DIRECTORY", str(group.directory))
    group.boot()
    group.publish(2)
    return Told(group)


@pytest.fixture
def kept(make_group, monkeypatch):
    """The same, and this process is its supervisor."""
    group = make_group(load=0.5)
    monkeypatch.setenv("WSM_DIRECTORY", str(group.directory))
    config = config_from_mapping(group.config)
    with contextlib.ExitStack() as undo:
        segment = own_group(config, directory=group.directory)
        undo.callback(segment.close)
        undo.callback(segment.unlink)
        group.boot()
        group.publish(2)
        limits = wsm.RecoveryConfig(hung_s=2.0, delay_s=0.01)
        undo.enter_context(wsm.Keeper(config, segment, LivingProcesses(group), limits=limits))
        told = Told(group)
        told.segment = segment
        yield told


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


def test_of_another_pid_namespace_no_pid_stands_in_a_command_and_lives_are_known_by_locks(kept, monkeypatch):
    for module in (presence, reading):
        monkeypatch.setattr(module, "own_pid_namespace", lambda: 1)
    kept.group.order(1, "write", "hold")
    pending = kept.group.controller().begin_update(2)
    kept.group.await_held(1, "write")
    kept.group.programs[1].freeze()
    found = kept.explained()
    facts = GroupView(kept.segment).facts()
    assert [rank.life for rank in facts.ranks] == ["alive", "alive"]  # whether one is stopped is not known
    assert facts.supervisor_life == "alive"
    assert isinstance(facts.supervisor_pid, ForeignPid)
    assert "another container: whether a process is stopped there is not known here" in kept.text
    assert {rank["pid_namespace"] for rank in found["ranks"]} == {Path("/proc/self/ns/pid").stat().st_ino}
    assert not [command for command in found["commands"] if command.startswith("kill")]
    assert "kill " not in " ".join(found["advice"])
    kept.group.revoke(1, "write")
    kept.group.programs[1].thaw()
    assert pending.result(60).version == "2"


def test_what_was_repaired_is_said_afterwards(kept):
    pid = kept.group.programs[1].pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: kept.group.controller().status().epoch == 2)
    serves(kept)
    (told,) = kept.explained()["repairs"]
    assert f"rank 1 (process {pid}) was killed by SIGKILL, and was replaced; the group served again" in told
    assert f"rank 1 (process {pid}) was killed by SIGKILL" in kept.text


def test_why_a_command_was_aborted_is_said_where_no_rank_failed(alone):
    with contextlib.ExitStack() as alone.closing:
        alone.group.order(1, "write", "hold")
        program = controller(alone, "never")
        alone.group.await_held(1, "write")
        program.kill()
        eventually(lambda: alone.group.controller().status().operation == "ABORT")
        alone.group.revoke(1, "write")
        alone.until("the update to version 2 was aborted, since its controller was gone")


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


def test_an_update_that_finds_nothing_to_do_is_no_failure_and_no_refusal(alone):
    alone.does(f"wsm update {alone.group.name} --version 2")
    said = alone.wsm("update", alone.group.name)
    assert (alone.code, "already serves version 2" in said) == (0, True)
    assert alone.until("serves version 2: the last update named no version") == []
    journals = alone.wsm("journal", str(alone.group.directory / "journals"))
    exporter = wsm.metrics.Exporter(alone.group.name, directory=alone.group.directory)
    (errors,) = [one for one in exporter.collect() if one.name == "wsm_command_errors"]
    assert errors.samples == []  # an alert counts them
    for told in (alone.text, journals):
        assert "refused" not in told
        assert "! " not in told
        assert "FAILED" not in told


def test_a_step_that_raised_is_answered_by_the_supervisor(kept):
    kept.group.order(1, "step", "raise once")
    eventually(lambda: kept.group.controller().status().epoch > 1)
    serves(kept)


def test_a_group_that_starts_says_so_and_who_has_the_role_and_how_to_wait(make_group, monkeypatch):
    group = make_group(load=0.5)
    monkeypatch.setenv("WSM_DIRECTORY", str(group.directory))
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


# -- every finding: its first advice is carried out, until the group serves ----------------------


def freed(told: Told, rank: int, point: str):
    """What lets a rank go on that was ordered to stay at a point."""
    return lambda: told.group.revoke(rank, point)


def flip(told: Told, index: str, change) -> None:
    """Write a word of rank 1 as no process of the group does."""
    with Segment.attach(told.group.name, directory=told.group.directory) as segment:
        place = getattr(segment.layout, index)[1]
        segment.words[place] = change(segment.words[place])


def damaged(told: Told) -> None:
    flip(told, "status", lambda _: 2**64 - 1)


def mixed(told: Told) -> None:
    states = {"weights": WeightState.CLEARED.value, "kv": KVState.CLEARED.value}
    flip(told, "status", lambda word: StatusWord.unpack(word)._replace(**states).pack())


def record_lost(told: Told) -> None:
    with Segment.attach(told.group.name, directory=told.group.directory) as segment:
        damage_records(segment)


def dead(told: Told) -> None:
    for program in told.group.programs.values():
        program.kill()


def rank_lost(told: Told) -> None:
    told.group.programs[1].kill()


def rank_stopped(told: Told) -> None:
    told.group.programs[1].freeze()


def step_broken(told: Told) -> None:
    told.group.order(1, "step", "raise once")


def joining(told: Told):
    told.group.order(0, "release", "hold")
    told.group.programs[1].kill()
    return freed(told, 0, "release")


def under_way(told: Told):
    told.group.order(1, "write", "hold")
    told.begun = told.group.controller().begin_update(2)
    told.group.await_held(1, "write")
    return freed(told, 1, "write")


def action_overdue(told: Told):
    then = under_way(told)
    told.group.seems_inside_since_the_host_began(1)
    return then


def controller(told: Told, point: str) -> Program:
    program = Program(CONTROLLER, told.group.name, str(told.group.directory), "update", "2", point)
    told.closing.callback(program.close)
    return program


def controller_stopped(told: Told) -> None:
    program = controller(told, "hang before decision")
    eventually(lambda: told.group.codes() == ["PREPARED"] * 2)
    program.freeze()
    program.signal(signal.SIGUSR1)  # it goes on once it is continued


def controller_stopped_at_the_end(told: Told) -> None:
    """Its update failed and is over: any command is refused while it has the role."""
    damage(told)
    program = controller(told, "hang at end")
    eventually(lambda: told.group.controller().status().over and told.group.codes() == ["DONE_CLEARED"] * 2)
    program.freeze()
    program.signal(signal.SIGUSR1)


def controller_hung(told: Told) -> None:
    told.closing.enter_context(patch.object(reading, "CONTROLLER_GRACE_S", 0.2))
    controller(told, "hang before decision")


def faulted(told: Told) -> None:
    told.group.order(1, "release", "raise")
    with pytest.raises(wsm.RankFailedError):
        told.group.controller().clear()
    told.group.revoke(1, "release")


def rank_missing(told: Told):
    owner_awaits(told.segment, [1], where="its step")
    return lambda: owner_awaits(told.segment, [], where="")


def wish_open(told: Told):
    """As FastDeploy's word asks for an update whose source is gone, and then is back."""
    controller, engine = told.group.controller(), {"request_id": "engine-update", "force": True}
    with pytest.raises(wsm.WsmError, match="404"):
        controller.update(404, **engine)
    return lambda: controller.update(2, **engine)


STATES = {
    "damaged": damaged,
    "wish-open": wish_open,
    "dead": dead,
    "rank-lost": rank_lost,
    "rank-stopped": rank_stopped,
    "step-broken": step_broken,
    "under-way": under_way,
    "action-overdue": action_overdue,
    "controller-stopped": controller_stopped,
    "controller-stopped at the end": controller_stopped_at_the_end,
    "controller-hung": controller_hung,
    "record-lost": record_lost,
    "decision-held": lambda told: told.group.controller().lease(2) and None,
    "held": lambda told: told.group.controller().hold(owner="the trainer's") and None,
    "faulted": faulted,
    "without-kv-cache": lambda told: told.group.controller().clear(tags={wsm.Tag.KV_CACHE}) and None,
    "without-weights": lambda told: told.group.controller().clear(tags={wsm.Tag.WEIGHTS}) and None,
    "cleared": lambda told: told.group.controller().clear() and None,
    "mixed": mixed,
}
KEPT = {
    "joining": joining,
    "rank-missing": rank_missing,
    "rank-lost": rank_lost,
    "rank-stopped": rank_stopped,
}
LIMITED = {"deadlines": {"action_s": {"load_weights": 60.0}}}  # less than the host has been up
CONTROLLER = Path(__file__).parent.parent / "controller" / "controller_process.py"


def carry_out(told: Told, found: dict) -> bool:
    """Do what the first advice says, of alternatives the first one; false where it only says to wait."""
    done = False
    for part in found["advice"][0].split("After that"):
        commands = [command for command in found["commands"] if f"'{command}'" in part]
        if commands:
            told.does(commands[0])
            done = True
        elif "VERSION --force" in part:
            told.does(f"wsm update {told.group.name} --version 1 --force")
            done = True
        if re.search("[Ss]tart (the (whole )?group|it) again", part):
            told.start_again()
            done = True
    return done


def until(told: Told, wanted) -> dict:
    found: dict = {}

    def is_so() -> bool:
        found.update(told.explained())
        return wanted(found)

    eventually(is_so)
    return found


def first(found: dict) -> tuple[str, str]:
    return found["finding"], found["advice"][0] if found["advice"] else ""


def follow(told: Told, code: str, bring_about) -> None:
    """Bring the state about, and carry out one first advice after the other until the group serves.

    How often a look finds something new to wait for depends on the machine: only what is done is counted.
    """
    with contextlib.ExitStack() as told.closing:
        then = bring_about(told)
        found = until(told, lambda one: one["finding"] == code)
        done = 0
        while done < 6:
            before = first(found)
            done += carry_out(told, found)
            if then is not None:
                then()
                then = None
            found = until(told, lambda one, before=before: first(one) != before)
            if found["finding"] == "serving":
                return
    pytest.fail(f"the chain does not end: {found['headline']}")


@pytest.mark.slow_but
@pytest.mark.parametrize(
    ("alone", "state"),
    [(LIMITED if state == "action-overdue" else None, state) for state in STATES],
    indirect=["alone"],
    ids=STATES,
)
def test_the_first_advice_of_each_finding_ends_it_or_is_the_next_of_a_chain_that_ends(alone, state):
    follow(alone, state.split()[0], STATES[state])


@pytest.mark.slow_but
@pytest.mark.parametrize("state", KEPT)
def test_so_it_does_where_a_supervisor_keeps_the_group(kept, state):
    follow(kept, state, KEPT[state])


def test_so_it_does_of_a_group_that_starts(make_group, monkeypatch):
    group = make_group(load=0.5)
    monkeypatch.setenv("WSM_DIRECTORY", str(group.directory))
    group.publish(1)
    with own_group(config_from_mapping(group.config), directory=group.directory) as segment:
        follow(Told(group), "starting", lambda _: group.start)
        segment.unlink()


@pytest.mark.parametrize(("code", "words"), [("controller-gone", 1), ("uncommitted", 2)])
def test_so_it_does_of_a_command_whose_controller_is_gone(tmp_path, code, words):
    """A rank, or the supervisor, ends it within a second: for that long it is seen."""
    with LocalGroup(lambda _: InMemoryRunner([]), tmp_path) as group:
        view = GroupView(group.segment)
        group.update("1")
        with pytest.raises(ControllerDied):
            group.update("2", dies_after=words)
        for _ in range(50):
            group.turn()
        assert find(view.facts()).code == code
        AbandonedCommands(group.segment, who="the supervisor").look()
        while find(view.facts()).code != "serving":
            group.turn()
        assert group.controller.status().version == "2"
        view.close()


def test_no_finding_is_left_out():
    """What has no advice needs no test of it."""
    told = {state.split()[0] for state in (*STATES, *KEPT)} | {"starting", "controller-gone", "uncommitted"}
    rules = Path(wsm.__file__).parent / "status"
    codes = {
        code.value
        for path in rules.glob("*.py")
        for one in ast.walk(ast.parse(path.read_text()))
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "Finding"
        for code in ast.walk(one.args[0])
        if isinstance(code, ast.Constant)
    }
    assert codes - told == {"unreadable", "unknown", "serving", "engine-has-kv-cache"}
