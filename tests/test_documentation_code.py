"""What pages print runs: code of testing.md, extending.md and start.md, and every command line of wsm."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from wsm.cli.main import wsm
from wsm.strategies import read_version

REPOSITORY = Path(__file__).parent.parent
DOCUMENTS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted(DOCUMENTS.glob("*.md"))]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["testing", "extending"])
def test_the_code_of_a_page_runs_as_it_is_printed(tmp_path, page) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", (DOCUMENTS / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert blocks
    (tmp_path / "test_page.py").write_text("\n\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-W", "error", "test_page.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_the_pieces_for_tests_are_imported_without_hypothesis_and_pytest() -> None:
    program = (
        "import sys; sys.modules['hypothesis'] = sys.modules['pytest'] = None\n"
        "import wsm.testing; wsm.testing.RunnerContract, wsm.testing.LocalGroup"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_trainer_of_the_first_update_publishes_a_version(tmp_path) -> None:
    (program,) = re.findall(
        r"^```python\n(.*?)^```", (DOCUMENTS / "start.md").read_text(), re.MULTILINE | re.DOTALL
    )
    exec(re.sub('"/dev/shm/[^"]*"', repr(str(tmp_path)), program), {})  # noqa: S102 - the page's own code
    assert read_version(tmp_path) == "2"


def commands(page: Path) -> list[str]:
    """Return the command lines of wsm that a page prints, without their comments."""
    text = re.sub(r"\\\n\s*", "", page.read_text())
    blocks = re.findall(r"^```(?:console|sh)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("wsm ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_command_line_of_a_page_is_understood(page: Path) -> None:
    for line in commands(page):
        with contextlib.suppress(click.exceptions.Exit):  # --help
            context = wsm.make_context("wsm", shlex.split(line, comments=True)[1:])
            name, command, rest = wsm.resolve_command(context, [*context._protected_args, *context.args])
            try:
                command.make_context(name, rest, parent=context)
            except click.BadParameter as error:
                if "does not exist" not in error.message:  # the reader's own file
                    raise
