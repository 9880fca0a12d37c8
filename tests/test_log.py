"""The log: what a host sees without asking for anything, and what `configure` adds."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from wsm import log

EVENTS = {
    name: value
    for name, value in vars(log).items()
    if name.isupper() and isinstance(value, str) and "." in value
}


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    root = logging.getLogger(log.ROOT)
    handlers, level, propagate = list(root.handlers), root.level, root.propagate
    yield
    root.handlers[:], root.propagate = handlers, propagate
    root.setLevel(level)


def test_every_event_name_is_layer_dot_past_event_and_unique() -> None:
    assert len(EVENTS) > 10
    assert len(set(EVENTS.values())) == len(EVENTS)
    for constant, name in EVENTS.items():
        assert re.fullmatch(r"[a-z_]+\.[a-z_]+", name)
        assert constant == name.replace(".", "_").upper()


def test_a_host_without_configuration_gets_readable_text_and_the_keys(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        log.logger("worker", rank=1, epoch=2, sequence=7).info(log.ACTION_FAILED, action="load_weights")
    (record,) = caplog.records
    assert record.name == "wsm.worker"
    assert record.getMessage() == "action.failed rank=1 epoch=2 sequence=7 action=load_weights"
    assert vars(record)["wsm_fields"]["action"] == "load_weights"


def test_importing_wsm_prints_nothing_even_for_errors() -> None:
    program = "from wsm import log; log.logger('worker').error(log.ACTION_FAILED)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_nothing_is_imported_to_render_lines_before_one_is_shown() -> None:
    program = (
        "import sys, wsm; from wsm import log\n"
        "log.configure(level='error'); said = log.logger('worker')\n"
        "said.warning(log.ACTION_FAILED)\n"
        "print(*sorted({'structlog', 'rich', 'asyncio'} & set(sys.modules)))\n"
        "said.error(log.ACTION_FAILED)\n"
        "print('structlog' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "True"]
    assert "action.failed" in done.stderr


def test_a_record_names_the_line_that_said_it(caplog: pytest.LogCaptureFixture) -> None:
    log.logger("worker").warning(log.ACTION_FAILED, action="100 %s")
    (record,) = caplog.records
    assert (record.filename, record.funcName) == (
        "test_log.py",
        "test_a_record_names_the_line_that_said_it",
    )
    assert record.getMessage() == "action.failed action=100 %s"


def test_configure_does_not_touch_the_root_logger() -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    log.configure(stream=io.StringIO())
    assert (list(root.handlers), root.level) == before


def test_json_lines_carry_context_time_and_level() -> None:
    stream = io.StringIO()
    log.configure(json=True, stream=stream)
    log.logger("controller", epoch=1, sequence=3).warning(log.DEADLINE_EXPIRED, waited_s=2)
    line = json.loads(stream.getvalue())
    assert line.pop("timestamp").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "wsm.controller",
        "event": "deadline.expired",
        "epoch": 1,
        "sequence": 3,
        "waited_s": 2,
    }


def test_configuring_twice_prints_every_line_once() -> None:
    first, second = io.StringIO(), io.StringIO()
    log.configure(stream=first)
    log.configure(stream=second)
    log.logger("worker").info("group.started", rank=0)
    assert first.getvalue() == ""
    assert second.getvalue().count("group.started") == 1
    assert "\x1b[" not in second.getvalue()


def test_lines_below_the_level_are_not_rendered() -> None:
    stream = io.StringIO()
    log.configure(level="warning", stream=stream)
    log.logger("worker").info("group.started")
    assert stream.getvalue() == ""


def test_a_level_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="LOUD"):
        log.configure(level="loud", stream=io.StringIO())


def test_transitions_speaks_up_only_for_warnings_unless_the_host_chose_otherwise() -> None:
    program = "{before}; import wsm.states.machine; print(logging.getLogger('transitions').level)"
    for before, level in (
        ("import logging", 30),
        ("import logging; logging.getLogger('transitions').setLevel(10)", 10),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program.format(before=before)], capture_output=True, text=True, check=True
        )
        assert int(done.stdout) == level
