from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from command_line import Run
from small_model import publish_cut

from wsm import WsmError
from wsm.cli.journal import Story
from wsm.config import config_from_mapping
from wsm.group_segment import own_group
from wsm.journal import entry as kinds
from wsm.journal.entry import JournalEntry
from wsm.strategies import TensorSpec
from wsm.testing import InMemoryRunner, LocalGroup

NO_END = "it runs still, was killed, or the file was cut short, as by a full disk"
SECOND = 1_000_000_000


def at(second: float, kind: str, *, rank: int = 0, sequence: int = 1, **facts: object) -> JournalEntry:
    """An entry `second` seconds after the beginning, which was at 1970-01-02 00:00 UTC."""
    nanoseconds = int(second * SECOND)
    return JournalEntry(kind, nanoseconds, 86_400 * SECOND + nanoseconds, rank, 1, sequence, facts)


def moved(second: float, source: str, event: str, dest: str) -> JournalEntry:
    facts = {"machine": "weights", "source": source, "event": event, "dest": dest, "guard": None, "cause": ""}
    return at(second, kinds.TRANSITION, **facts)


def shown(wsm: Run, *arguments: object) -> list[str]:
    """The lines of entries in what the command prints."""
    return [line for line in wsm("journal", *arguments).out.splitlines() if line.startswith(("  ", "! "))]


HISTORY = [
    at(0, kinds.STARTED, sequence=0, pid=4711),
    at(0, kinds.WORD_WRITTEN, sequence=0, word="status", code="ATTACHED", step=0),
    at(1, kinds.COMMAND_SEEN, operation="UPDATE"),
    moved(2, "CLEARED", "update", "UPDATING"),
    at(3, kinds.ACTION_STARTED, name="load_weights"),
    at(3.25, kinds.ACTION_FINISHED, name="load_weights", seconds=0.25),
]


def write(path: Path, entries: list[JournalEntry]) -> Path:
    path.write_text("".join(f"{entry.to_line()}\n" for entry in entries))
    return path


def test_the_name_of_a_group_reads_the_last_lines_in_its_segment_and_says_what_is_missing(
    wsm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WSM_DIRECTORY", str(tmp_path))
    with LocalGroup(lambda _: InMemoryRunner([TensorSpec("weight", "F32", (4,))]), tmp_path) as group:
        group.update(1)
        told = wsm("journal", "tested")
        assert told.code == 0, told.out + told.err
        assert "serves version 1" in told.out
        assert "as the tables allow" not in told.out
        for whose in ("rank0", "rank1", "controllers"):
            assert f"gap: tested/{whose}: a segment keeps some of the last lines, here since" in told.out
        assert "journal_directory keeps all" in told.out
        refused = wsm("journal", "nosuch")
        assert (refused.code, "nosuch" in refused.err) == (2, True)


def test_a_file_that_is_cut_between_two_commands_goes_on_and_is_judged_by_what_is_there(
    wsm: Run, tmp_path: Path
) -> None:
    journals = tmp_path / "journals"
    one = TensorSpec("weight", "F32", (4,))
    with LocalGroup(
        lambda _: InMemoryRunner([one]),
        tmp_path,
        configuration={"journal_directory": str(journals)},
    ) as group:
        group.update(1)
        for file in journals.glob("*.ndjson"):
            os.truncate(file, 0)
        group.update(2)
    for judged in ("--check", "--replay"):
        ended = wsm("journal", journals, judged)
        assert (ended.code, ended.err) == (0, "")
        assert "rank 1 ends in weights NORMAL" in ended.out


def test_a_journal_reads_as_a_story_with_its_end(wsm: Run, tmp_path: Path) -> None:
    ended = wsm("journal", write(tmp_path / "rank0.ndjson", HISTORY))
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "1970-01-02 UTC"
    assert lines[1].endswith("process 4711 begins")
    assert lines[3].split()[:4] == ["00:00:01.000000", "r0", "e1", "s1"]
    assert lines[3].endswith("sees UPDATE")
    assert lines[4].endswith("weights: CLEARED --update--> UPDATING")
    assert lines[6].endswith("load_weights done in 250.000 ms")
    assert lines[7:] == [
        "6 entries, all as the tables allow",
        "rank 0 ends in weights UPDATING, KV cache CLEARED",
        f"no end: rank 0 (process 4711) ends in beginning of command 1, epoch 1; {NO_END}",
    ]


def test_an_impossible_entry_is_marked_and_fails(wsm: Run, tmp_path: Path) -> None:
    file = write(tmp_path / "rank0.ndjson", [*HISTORY, moved(4, "UPDATING", "commit", "NORMAL")])
    ended = wsm("journal", file)
    assert ended.code == 1
    assert [line for line in ended.out.splitlines() if line.startswith("!")] == [
        "! 00:00:04.000000 r0 e1 s1    weights: UPDATING --commit--> NORMAL"
    ]
    assert ended.err.startswith(f"error: {file}: entry 6 (transition, rank 0")
    assert ended.err.count("\n") == 1


def test_ranks_are_merged_by_time(wsm: Run, tmp_path: Path) -> None:
    write(tmp_path / "rank0.ndjson", [at(0, kinds.STARTED, pid=1), at(2, kinds.STARTED, pid=4)])
    write(
        tmp_path / "rank1.ndjson", [at(1, kinds.STARTED, rank=1, pid=2), at(3, kinds.STARTED, rank=1, pid=3)]
    )
    assert [line.split()[1] for line in shown(wsm, tmp_path)] == ["r0", "r1", "r0", "r1"]


def test_a_reader_may_choose_what_is_shown_and_all_is_checked(wsm: Run, tmp_path: Path) -> None:
    file = write(tmp_path / "rank0.ndjson", [*HISTORY, at(4, kinds.STARTED, sequence=2, pid=4712)])
    assert [line.split()[-2] for line in shown(wsm, file, "--last", 1)] == ["4712"]
    assert shown(wsm, file, "--sequence", 2) == shown(wsm, file, "--last", 1)
    assert shown(wsm, file, "--rank", 3) == shown(wsm, file, "--check") == []
    assert wsm("journal", file, "--check").out.startswith("7 entries")


def test_the_torn_last_line_of_a_killed_process_is_no_error(wsm: Run, tmp_path: Path) -> None:
    file = write(tmp_path / "rank0.ndjson", HISTORY)
    file.write_text(file.read_text()[:-20])
    assert wsm("journal", file).code == 0


#: Writes an entry for which there is half the room, one when there is room again, and one of another process.
FULL_DISK = """
import resource, sys
from pathlib import Path
from wsm.controller.group_view import ControllerJournal
from wsm.signals.segment import Segment
from wsm.states.epochs import first_epoch

name, directory, journals = sys.argv[1:]
segment = Segment.attach(name, directory=directory)
first, second = (ControllerJournal(segment.controller_journal, journals) for _ in range(2))
room = (Path(journals) / "controller.ndjson").stat().st_size + 40
resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
first.note("command_over", first_epoch(), outcome="torn")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
first.note("command_over", first_epoch(), outcome="of an ended file")
second.note("command_over", first_epoch(), outcome="of the next controller")
"""


def test_a_full_disk_costs_the_journal_of_controllers_a_line_and_no_reader_the_rest(
    wsm: Run, tmp_path: Path
) -> None:
    journals = tmp_path / "nights"
    config = config_from_mapping({"name": "full", "ranks": 1, "journal_directory": str(journals)})
    segment = own_group(config, directory=tmp_path)
    subprocess.run([sys.executable, "-c", FULL_DISK, "full", tmp_path, journals], check=True)
    segment.unlink()
    segment.close()
    for option in ("--check", "--replay"):
        ended = wsm("journal", journals, option)
        assert ended.code == 0, ended.err
        assert f"gap: {journals / 'controller.ndjson'}: line 2 was cut short" in ended.out
    told = shown(wsm, journals)
    assert len(told) == 2
    assert told[1].endswith("is told: of the next controller")


def test_an_owner_that_follows_another_is_no_gap_and_no_controller_has_states(
    wsm: Run, tmp_path: Path
) -> None:
    """Controllers do not say that they end: they come and go with each command."""
    run = [at(0, kinds.STARTED, rank=-1, sequence=0, pid=1), at(1, kinds.COMMAND_OVER, rank=-1, outcome="")]
    ended = wsm("journal", write(tmp_path / "controller.ndjson", [*run, *run]))
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "4 entries, all as the tables allow")


def test_lines_of_a_controller_that_come_behind_those_of_the_next_one_are_read_where_they_belong(
    wsm: Run, tmp_path: Path
) -> None:
    """The process that ends a command gives the role back before its lines reach a file that hangs."""
    late = [at(1, kinds.DECISION, rank=-1, operation="ABORT"), at(1, kinds.COMMAND_OVER, rank=-1, outcome="")]
    following = [
        at(2, kinds.COMMAND_ISSUED, rank=-1, sequence=2, operation="CLEAR", request_id="2"),
        at(3, kinds.DECISION, rank=-1, sequence=2, operation="COMMIT"),
    ]
    file = tmp_path / "controller.ndjson"
    issued = at(0, kinds.COMMAND_ISSUED, rank=-1, operation="UPDATE", request_id="1")
    ended = wsm("journal", write(file, [issued, *following, *late]))
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "5 entries, all as the tables allow")
    told = [line.split(" s")[1][0] for line in shown(wsm, file)]
    assert told == sorted(told)
    twice = wsm("journal", write(file, [issued, *following, *late[:1], *late[:1]]))
    assert twice.code == 1
    assert "a decision is final" in twice.out


def test_the_clocks_of_a_host_that_was_restarted_make_no_controller_late(wsm: Run, tmp_path: Path) -> None:
    before = at(1000, kinds.COMMAND_OVER, rank=-1, sequence=9, outcome="")
    behind = [
        at(1, kinds.STARTED, rank=-1, sequence=0, pid=1),
        at(2, kinds.COMMAND_OVER, rank=-1, outcome=""),
    ]
    behind = [msgspec.structs.replace(entry, wall_ns=before.wall_ns + entry.at_ns) for entry in behind]
    ended = wsm("journal", write(tmp_path / "controller.ndjson", [before, *behind]))
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "3 entries, all as the tables allow")


@pytest.mark.parametrize("content", [b"no journal\n", b"\xff\xfe\x00\n", b"{}\n", b"[1]\n"])
def test_what_is_no_journal_is_named_with_its_line(wsm: Run, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "rank0.ndjson"
    file.write_bytes(content)
    ended = wsm("journal", file)
    assert ended.code == 1
    assert ended.err.startswith(f"error: {file}: line 1 of the journal is unusable")
    assert ended.err.count("\n") == 1


def test_a_directory_without_journals_is_wrong_usage(wsm: Run, tmp_path: Path) -> None:
    assert wsm("journal", tmp_path).code == 2


def test_a_replay_says_how_much_it_asked_and_that_nothing_was_there(wsm: Run, tmp_path: Path) -> None:
    ended = wsm("journal", write(tmp_path / "rank0.ndjson", HISTORY), "--replay")
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == "0 inputs: no journal here holds any"


@pytest.mark.slow
def test_a_long_journal_is_read_in_little_memory(wsm: Run, tmp_path: Path) -> None:
    file = tmp_path / "rank0.ndjson"
    waited = at(2, kinds.WAIT_EXPIRED, message="for the others").to_line()
    file.write_text(f"{HISTORY[0].to_line()}\n" + f"{waited}\n" * 30_000)
    tracemalloc.start()
    try:
        ended = wsm("journal", file, "--last", 2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert ended.code == 0
    assert peak < file.stat().st_size, "it is told line by line"


def test_long_messages_are_wrapped_to_80_columns_and_lose_nothing() -> None:
    words = [f"word{number}" for number in range(60)]
    text = Story().tell(
        at(0, kinds.ACTION_FAILED, name="load_weights", error="OSError", message=" ".join(words))
    )
    assert max(map(len, text.splitlines())) <= 80
    assert text.split()[-60:] == words


def test_a_message_is_told_once_per_command_and_rank() -> None:
    story = Story()
    failed = {"name": "load_weights", "error": "OSError", "message": "the disk is gone"}
    told = [
        story.tell(at(1, kinds.ACTION_FAILED, **failed)),
        story.tell(at(2, kinds.ACTION_FAILED, rank=1, **failed)),
        story.tell(
            at(3, kinds.COMMAND_FAILED, action="load_weights", error="OSError", message="the disk is gone")
        ),
        story.tell(at(4, kinds.ACTION_FAILED, sequence=2, **failed)),
    ]
    assert ["the disk is gone" in text for text in told] == [True, True, False, True]
    assert told[2].endswith("FAILED in load_weights: OSError: as above")


def test_the_type_of_an_error_is_told_once_where_its_text_begins_with_it() -> None:
    failed = at(1, kinds.COMMAND_FAILED, action="begin", error="OSError", message="OSError: no room")
    assert Story().tell(failed).endswith("FAILED in begin: OSError: no room")


@pytest.mark.parametrize("wall_ns", [10**30, -(10**30)])
def test_a_time_of_no_era_is_shown_as_the_number_that_it_is(wall_ns: int) -> None:
    assert f"{wall_ns} ns" in Story().tell(JournalEntry(kinds.STARTED, 0, wall_ns, 0, 1, 0, {"pid": 1}))


@pytest.mark.parametrize("kind", sorted(kinds.KINDS))
def test_an_entry_without_its_facts_is_shown_all_the_same(kind: str) -> None:
    assert kind in Story().tell(at(0, kind, surprise=1))


def test_what_a_group_writes_is_as_the_tables_allow(wsm: Run, local: LocalGroup, tmp_path: Path) -> None:
    local.update(1)
    publish_cut(tmp_path / "snapshots", 9)
    with pytest.raises(WsmError):
        local.update(9)
    local.clear()
    journals, out = tmp_path / "journals", tmp_path / "night.json"
    ended = wsm("journal", journals)
    assert ended.code == 0, ended.err
    assert "load_weights FAILED: " in " ".join(ended.out.split())
    again = wsm("journal", journals, "--replay")
    assert again.code == 0, again.err
    assert again.out.splitlines()[-1].endswith("inputs: were asked again")
    assert "rank 1 ends in weights CLEARED, KV cache CLEARED" in ended.out.splitlines()
    assert wsm("trace", journals, "--out", out).code == 0
    events = json.loads(out.read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}, "names of tracks, and slices"
    tracks: dict[tuple[int, int], list[float]] = {}
    for event in sorted(
        events, key=lambda one: (one.get("ts", -1), -one.get("dur", 0))
    ):  # as the format wants it: microseconds, and slices of a track one within the other
        assert (type(event["pid"]), type(event["tid"]), type(event["name"])) == (int, int, str), event
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
            ends = tracks.setdefault((event["pid"], event["tid"]), [])
            while ends and ends[-1] <= event["ts"] + 1e-3:
                ends.pop()
            ends.append(event["ts"] + event["dur"])
            assert not ends[:-1] or ends[-1] <= ends[-2] + 1e-3, event
    assert {"load_weights", "CLEARING"} <= {event["name"] for event in events}
