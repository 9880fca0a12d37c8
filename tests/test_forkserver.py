"""What the tests of groups rely on: a forked program is to them what one started anew would be."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.forkserver import WITHOUT_PADDLE, Forked, ForkServer

pytestmark = pytest.mark.processes


@pytest.fixture
def run(tmp_path: Path):
    started: list[Forked] = []

    def start(text: str, *arguments: str, **options: bool) -> Forked:
        program = tmp_path / f"program{len(started)}.py"
        program.write_text(text)
        started.append(WITHOUT_PADDLE.start(program, *arguments, **options))
        return started[-1]

    yield start
    for program in started:
        program.close()


def test_it_is_a_child_of_ours_with_its_own_arguments_environment_and_exit_code(run, monkeypatch):
    monkeypatch.setenv("ASKED", "for this")
    program = run(
        "import os, sys\nprint(sys.argv[1:], os.environ['ASKED'], os.getppid())\nsys.exit(7)", "a", "b c"
    )
    assert program.stdout.read().decode() == f"['a', 'b c'] for this {os.getpid()}\n"
    assert program.wait(60) == 7


def test_what_it_does_to_its_memory_and_dies_of_concerns_no_other(run):
    first = run("import wsm, os, signal\nwsm.poisoned = True\nos.kill(os.getpid(), signal.SIGKILL)")
    assert first.wait(60) == -signal.SIGKILL
    second = run("import wsm\nprint(hasattr(wsm, 'poisoned'))")
    assert second.stdout.read() == b"False\n"


def test_an_exception_is_in_its_output_and_ends_it(run):
    program = run("raise RuntimeError('it is said')")
    assert b"RuntimeError: it is said" in program.stdout.read()
    assert program.wait(60) == 1


def test_its_errors_are_apart_where_that_is_asked_for(run):
    program = run("import sys\nprint('said')\nsys.exit('why')", stderr=subprocess.PIPE)
    assert (program.stdout.read(), program.stderr.read()) == (b"said\n", b"why\n")


def test_it_hears_what_it_is_told_and_the_end_of_it(run):
    program = run("import sys\nprint(sys.stdin.read())")
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0)
    program.stdin.write(b"told")
    program.stdin.close()
    assert program.stdout.read() == b"told\n"


def test_a_module_that_starts_a_thread_is_left_to_the_programs(tmp_path, monkeypatch):
    threaded = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    (tmp_path / "threaded.py").write_text(threaded)
    (tmp_path / "program.py").write_text("import sys\nprint([name in sys.modules for name in sys.argv[1:]])")
    monkeypatch.syspath_prepend(tmp_path)
    server = ForkServer("wsm", "threaded", "colorsys")
    program = server.start(tmp_path / "program.py", "wsm", "threaded", "colorsys")
    try:
        assert program.stdout.read() == b"[True, False, True]\n"
    finally:
        program.close()
        server._end()


def test_no_descriptor_of_another_program_keeps_its_input_open(run):
    first, second = run("import sys\nsys.stdin.read()"), run("import sys\nsys.stdin.read()")
    assert [len(psutil.Process(each.pid).net_connections()) for each in (first, second)] == [0, 0]
    first.stdin.close()
    assert first.wait(60) == 0
