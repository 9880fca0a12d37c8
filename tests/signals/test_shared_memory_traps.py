"""Facts about the platform that the design rests on; each with a control that shows the trap itself."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import wsm.signals
from tests.incident import incident
from tests.sources import syntax_of
from wsm.signals.segment import Segment

pytestmark = pytest.mark.processes

ALL_ONES = 2**64 - 1


def test_an_aligned_word_never_tears(segment, name, launch):
    child = launch(
        """
        segment = Segment.attach(sys.argv[1])
        words, index = segment.words, segment.layout.command
        say("flips")
        while True:
            for _ in range(1000):
                words[index] = 0
                words[index] = 2**64 - 1
        """,
        name,
    )
    child.says()
    words, index = segment.words, segment.layout.command
    seen, flips, before = set(), 0, None
    while flips < 20_000:
        value = words[index]
        flips += value != before
        before = value
        seen.add(value)
    assert seen == {0, ALL_ONES}


@pytest.mark.slow_but
@incident("FastDeploy C2-16")
@pytest.mark.parametrize(
    "how",
    [
        "Segment.attach(sys.argv[1]).close()",
        "segment = Segment.attach(sys.argv[1])",
        "segment = Segment.attach(sys.argv[1]); registration = register(segment, 0); os._exit(1)",
        "segment = Segment.attach(sys.argv[1]); raise SystemExit(3)",
    ],
)
def test_a_process_that_attaches_and_exits_in_any_way_leaves_the_segment(segment, name, path, launch, how):
    child = launch(how, name, anew=True)
    child.ends()
    assert child.errors() == ""
    assert path.exists()
    assert not segment.inode_changed()
    Segment.attach(name).close()


def test_attaching_starts_no_resource_tracker(segment, name, launch):
    child = launch(
        """
        from multiprocessing import resource_tracker
        segment = Segment.attach(sys.argv[1])
        say(resource_tracker._resource_tracker._fd)
        """,
        name,
    )
    assert child.says() == "None"


def test_signals_need_nothing_but_msgspec_and_the_standard_library():
    """So that whatever must look at a group at night can, without numpy and without paddle."""
    foreign = set()
    for source in Path(wsm.signals.__file__).parent.glob("*.py"):
        for node in ast.walk(syntax_of(source)):
            if isinstance(node, ast.Import):
                foreign.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                foreign.add(node.module.partition(".")[0])
    assert foreign - sys.stdlib_module_names == {"wsm", "msgspec"}
