"""What pages print runs: code of testing.md, extending.md and start.md, command lines of wsm and examples."""

from __future__ import annotations

import ast
import contextlib
import importlib
import multiprocessing
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import wsm as wsm_package
from examples.commands import EXAMPLES
from wsm.cli.main import wsm
from wsm.strategies import IpcSource, MemoryTarget, TensorSpec, load, read_version

REPOSITORY = Path(__file__).parent.parent
DOCUMENTS = REPOSITORY / "docs"
OURS = ("wsm", "examples")
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted(DOCUMENTS.glob("*.md"))]


@pytest.mark.slow_but("extending")
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


def programs(page: Path) -> list[ast.Module]:
    """Return the Python that a page prints, parsed."""
    return [
        ast.parse(block)
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_what_the_code_of_a_page_imports_of_wsm_and_the_examples_is_there(page: Path) -> None:
    for node in [node for program in programs(page) for node in ast.walk(program)]:
        if isinstance(node, ast.ImportFrom) and node.module == "wsm.torch":
            continue  # tests/torch runs that page's loop, where torch is
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.partition(".")[0] in OURS:
                    importlib.import_module(each.name)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OURS:
            module = importlib.import_module(node.module or "")
            for each in node.names:
                assert hasattr(module, each.name), f"{page.name}: {ast.unparse(node)}"
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "wsm":
            assert hasattr(wsm_package, node.attr), f"{page.name}: wsm.{node.attr}"


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
    place = 'run_directory_path("policy") / "snapshots"'
    assert place in program
    exec(program.replace(place, repr(str(tmp_path))), {})  # noqa: S102 - the page's own code
    assert read_version(tmp_path) == "2"


def test_the_processes_of_a_trainer_publish_their_shards_as_the_page_prints_it(tmp_path) -> None:
    published = by_two_processes("files", "SnapshotPublisher", {"directory": tmp_path})
    assert published == read_version(tmp_path) == "step_7"

    done = multiprocessing.get_context("fork").Barrier(2)

    def train(rank: int) -> None:
        source = IpcSource(tmp_path, rank, device_id=rank, world_size=2)
        done.wait(30)
        assert load(source, MemoryTarget([TensorSpec("w", "U8", (8,))]), name="ipc").version == "step_7"
        done.wait(30)

    assert by_two_processes("streams", "SharedTensors", {"directory": tmp_path, "train": train}) == "step_7"


def by_two_processes(page: str, names: str, given: dict[str, object]) -> str:
    """Run the `publish` that a page prints with `names` in two processes; return its label."""
    blocks = re.findall(
        r"^```python\n(.*?)^```", (DOCUMENTS / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL
    )
    [program] = [block for block in blocks if names in block and "def publish(" in block]
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(2)]

    def process(rank: int) -> None:
        def gather(rank: int, digest: str) -> dict[int, str]:
            pipes[rank][1].send((rank, digest))
            return pipes[rank][1].recv()

        namespace = dict(given)
        exec(program, namespace)  # noqa: S102 - the page's own code
        namespace["publish"](rank, {"w": bytearray(8)}, "a1b2", gather)

    processes = [context.Process(target=process, args=(rank,)) for rank in range(2)]
    for each in processes:
        each.start()
    digests = dict(ours.recv() for ours, _ in pipes)
    for ours, _ in pipes:
        ours.send(digests)
    for each in processes:
        each.join()
        assert each.exitcode == 0
    return re.findall(r'\.version\("(.*?)"\)', program)[0]


def commands(page: Path) -> list[list[str]]:
    """Return the command lines of wsm and of the examples that a page prints, as words without comments."""
    text = re.sub(r"\\\n\s*", "", page.read_text())
    blocks = re.findall(r"^```(?:console|sh)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [
        line.replace("python -m examples.", "examples ") for block in blocks for line in block.splitlines()
    ]
    return [shlex.split(line, comments=True) for line in lines if line.startswith(("wsm ", "examples "))]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_command_line_of_a_page_is_understood(page: Path) -> None:
    for program, *words in commands(page):
        group = wsm if program == "wsm" else EXAMPLES
        with contextlib.suppress(click.exceptions.Exit):  # --help
            context = group.make_context(program, words)
            name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
            assert group is not wsm or name not in EXAMPLES.list_commands(context)
            try:
                command.make_context(name, rest, parent=context)
            except click.BadParameter as error:
                if "does not exist" not in error.message:  # the reader's own file
                    raise
