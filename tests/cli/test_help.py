from __future__ import annotations

import json
import subprocess
import sys

import pytest
from command_line import Run

COMMANDS = (
    "try",
    "doctor",
    "rollout",
    "status",
    "explain",
    "clear",
    "update",
    "prepare",
    "commit",
    "abort",
    "hold",
    "release",
    "serve",
    "fleet",
    "vllm",
    "demo",
    "inspect",
    "memory",
    "convert",
    "delta",
    "adopt",
    "digest",
    "diff",
    "verify",
    "journal",
    "trace",
    "metrics",
    "diagrams",
)
HEAVY = ("paddle", "matplotlib", "numpy", "rich.live", "rich.progress")


EXAMPLES = (("examples",), ("examples", "rollout"), ("examples", "demo"))


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS), *EXAMPLES], ids=" ".join)
def test_help_fits_a_terminal_and_says_how_a_command_can_end(
    wsm: Run, example: Run, command: tuple[str, ...]
) -> None:
    ended = example(*command[1:], "--help") if command in EXAMPLES else wsm(*command, "--help")
    assert ended.code == 0
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "Exit codes:" in ended.out
    if command not in ((), *EXAMPLES):
        assert f"wsm {command[0]}" in ended.out.partition("Examples:")[2]


def test_the_list_of_commands_is_complete(wsm: Run) -> None:
    listed = wsm("--help").out.partition("Commands:")[2].partition("Exit codes:")[0]
    assert tuple(line.split()[0] for line in listed.splitlines() if line.strip()) == COMMANDS


def test_no_command_at_all_shows_the_help_and_is_wrong_usage(wsm: Run) -> None:
    ended = wsm()
    assert ended.code == 2
    assert "Commands:" in ended.out


def test_the_version_is_told(wsm: Run) -> None:
    assert wsm("--version").out.startswith("wsm 0.")


def test_nothing_heavy_is_imported_for_a_quick_question() -> None:
    asked = [["--help"], ["status"], ["status", "nosuch"], ["update", "nosuch"], ["journal", "--help"]]
    program = (
        "import json, sys\nfrom wsm.cli.main import run\n"
        f"for arguments in {asked!r}: run(arguments)\n"
        f"print(json.dumps(sorted(set({HEAVY!r}) & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_help_imports_no_command() -> None:
    program = (
        "import sys\nfrom wsm.cli.main import run\nrun(['--help'])\n"
        "print(*(name for name in sys.modules if name in ('wsm.cli.status', 'wsm.cli.commanding')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


def test_the_package_is_the_command_where_no_script_is_on_the_path() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "wsm", "--help"], capture_output=True, text=True, check=True
    )
    assert "Usage: wsm" in ended.stdout
