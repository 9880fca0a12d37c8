"""Explanations of real groups, living, hanging and dead, and of what somebody saved of them."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil

import pytest
from living_group import eventually, shard_of

import wsm
from wsm.journal.entry import LineRing
from wsm.metrics.families import families
from wsm.metrics.history import JournalCounts
from wsm.signals.layout import LAYOUT_VERSION, segment_path
from wsm.signals.segment import Segment, SegmentImage
from wsm.status import explain, facts_of_file, read_facts
from wsm.strategies import publish_snapshot
from wsm.testing import InMemoryRunner, LocalGroup


@pytest.fixture
def local(tmp_path):
    """One rank in this thread, not loaded."""
    with LocalGroup(lambda _: InMemoryRunner([]), tmp_path, ranks=1) as group:
        yield group


def path_of(group):
    return segment_path(group.name, group.directory)


def explained(group, name="policy"):
    return explain(facts_of_file(name, path_of(group)))


@pytest.mark.processes
def test_a_group_is_explained_while_it_serves_hangs_and_lies_dead_and_so_is_a_copy(make_group, tmp_path):
    group = make_group(2)
    group.publish(2)
    with group.boot() as controller:
        assert explained(group).headline == "serves version 1"
        assert explained(group).serving
        group.order(1, "write", "hold")
        pending = controller.begin_update(2, request_id="nightly")
        group.await_held(1, "write")
        eventually(lambda: group.codes()[0] == "PREPARED")
        hanging = explained(group)
        assert any("Rank 1 has been inside load_weights for" in told for told in hanging.sentences)
        assert any("for rank 1 to be prepared" in told for told in hanging.sentences)
        assert hanging.facts.request_id == "nightly"
        assert hanging.waits[0].ranks == (1,)
        group.programs[1].freeze()
        assert explained(group).headline == (
            "waits for rank 1, whose process is stopped: the update to version 2 is under way; "
            "version 1 served before"
        )
        group.programs[1].kill()
        with pytest.raises(wsm.WsmError):
            pending.result(60)
        assert explained(group).headline.startswith("has lost rank 1, and needs every rank")
        group.programs[0].kill()
    dead = explained(group)
    assert dead.headline == "is dead: none of its processes lives; version 1 served before"
    assert "When it died, rank 1 was inside load_weights." in dead.sentences
    assert len(dead.transitions) > 5
    before = path_of(group).read_bytes()
    saved = shutil.copy(path_of(group), tmp_path / "saved")
    copy = explain(facts_of_file("policy", saved))
    assert copy.text().splitlines()[:3] == dead.text().splitlines()[:3]
    assert copy.transitions == dead.transitions
    json.dumps(copy.to_mapping())
    assert path_of(group).read_bytes() == before  # it was only looked at


def test_a_status_that_is_asked_often_looks_for_what_served_once_for_each_command(local, monkeypatch):
    looks, entries = [], LineRing.entries

    def counted(ring):
        looks.append(ring)
        return entries(ring)

    # No version was committed yet: only the rings could say what served.
    monkeypatch.setattr(LineRing, "entries", counted)
    for command in (lambda: None, local.clear):
        command()
        looks.clear()
        assert {local.controller.status().state for _ in range(50)} == {"CLEARED"}
        assert len(looks) <= 2  # of the one rank, and of the controllers
    local.update(1)
    local.clear()
    assert local.controller.status().sentence() == "the group holds no weights; version 1 served before"


@pytest.mark.processes
def test_what_a_version_was_put_on_is_read_of_the_group_and_of_its_copy(make_group):
    group = make_group(2)
    with group.boot() as controller:
        shards = {rank: {"layer.bias": shard_of(2, rank)["layer.bias"]} for rank in range(2)}
        publish_snapshot(group.snapshots, 2, shards, durable=False)
        controller.update(2, partial=True)
        assert explained(group).facts.served_bases == ("1",)
        controller.clear()
        for told in (explained(group).text(), " ".join(controller.status().advice)):
            assert "Version 2 is a part, put on version 1," in " ".join(told.split())
        group.programs[1].kill()
        eventually(lambda: "has lost rank 1" in explained(group).headline)
        assert "--version 2" not in explained(group).text()
        assert "publish a whole version V" in " ".join(explained(group).text().split())


def test_a_worker_explains_its_own_group_and_never_raises(tmp_path):
    worker = wsm.Worker(wsm.WsmConfig("own", 2), InMemoryRunner([]), rank=0, directory=tmp_path)
    assert worker.explain().headline == "is starting: rank 1 has not attached yet"
    worker.close()
    assert "cannot be read" in worker.explain().headline


def test_a_file_that_is_no_segment_of_this_build_is_explained_by_that(local, tmp_path):
    content = bytearray(local.segment.path.read_bytes())
    other = tmp_path / "other"
    other.write_bytes(content[:8] + bytes([LAYOUT_VERSION + 1]) + content[9:])
    assert f"{LAYOUT_VERSION + 1}" in explain(facts_of_file("policy", other)).headline
    other.write_bytes(content[:5000])
    assert "cannot be read" in explain(facts_of_file("policy", other)).headline
    other.write_bytes(b"")
    assert "cannot be read" in explain(facts_of_file("policy", other)).headline
    assert "cannot be read" in explain(facts_of_file("policy", tmp_path / "nothing")).headline


@pytest.mark.slow
def test_whatever_is_flipped_in_a_segment_is_explained_without_an_error(tmp_path):
    with LocalGroup(lambda _: InMemoryRunner([]), tmp_path) as group:
        group.update(1)
        content = group.segment.path.read_bytes()
    flips = random.Random(7)  # noqa: S311 - it damages a file, nothing secret
    flipped = tmp_path / "flipped"
    damaged = 0
    for _ in range(150):
        damage = bytearray(content)
        for _ in range(flips.choice((1, 8, 200))):
            # Words first: most of the file is rings and slots.
            place = flips.randrange(256, 1400) if flips.random() < 0.7 else flips.randrange(len(damage))
            damage[place] ^= 1 << flips.randrange(8)
        flipped.write_bytes(damage)
        explanation = explain(facts_of_file("policy", flipped))
        assert explanation.text()
        json.dumps(explanation.to_mapping(), default=str)
        damaged += bool(explanation.facts.damaged)
    assert damaged > 10


#: Where rank 1 is when it goes on no longer, how, and of which update that is. These are a sample of real
#: processes; a thousand hangs are told in test_culprits.py.
HANGS = [
    ("write", "hangs", {}),
    ("before_step", "stopped", {}),
    ("step", "dead", {}),
    ("flip", "hangs", {"hot": True}),
]


@pytest.mark.slow_but("step-dead-options2")
@pytest.mark.processes
@pytest.mark.parametrize(("point", "how", "options"), HANGS)
def test_error_explanation_and_metrics_name_the_rank_that_hangs(make_group, point, how, options):
    deadlines = {"action_s": {"load_weights": 3.0}}
    group = make_group(3, load=0.5, config={"deadlines": deadlines})
    group.publish(2)
    with group.boot() as controller:
        group.await_steps(3)
        group.order(1, point, "hold")
        if point in ("before_step", "step"):
            group.await_held(1, point)
        pending = controller.begin_update(2, deadline_s=6, settle_s=0.5, **options)
        pending.written()  # one that dies before that is found dead, and nothing waits for it
        group.await_held(1, point)
        {"hangs": lambda: None, "stopped": group.programs[1].freeze, "dead": group.programs[1].kill}[how]()
        with pytest.raises(wsm.WsmError) as caught:
            pending.result(60)
        assert whom(caught.value) == [1], f"{caught.value}"
        with contextlib.closing(Segment.attach(group.name, directory=group.directory)) as segment:
            facts = read_facts(group.name, SegmentImage.of(segment), lock_file=segment.lock_file)
        told = families([(facts, JournalCounts())], now_ns=0, started_s=0.0)
        (named,) = (one for one in told if one.name == "wsm_finding_rank")
        assert [sample.labels["rank"] for sample in named.samples] == ["1"]
        assert "rank 1" in explain(facts).headline
        assert "rank 0" not in explain(facts).headline


def whom(error: wsm.WsmError) -> list[int]:
    """Whom an error names as the one that all wait for."""
    if "rank" in error.context:
        return [error.context["rank"]]
    return list(error.context.get("ranks", ())) or list(
        map(int, re.findall(r"waiting for rank (\d) \(", f"{error}"))
    )
