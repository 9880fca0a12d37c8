"""Builds the wheel, installs it bare and with each extra, and uses what each of them promises.

``.venv/bin/python .ci/wheel.py``; ``.ci/run`` does. Every extra gets an environment of its own, where nothing
but the wheel and its dependencies is found, and the library is imported from there, never from ``src/``: a
package that is imported and declared nowhere, or a file that the wheel lacks, ends this. In each environment
every module is imported that is not made of another extra's package (``tests/extras.py`` says which are), the
extra's packages are, and the commands are run that a user runs first. The extra ``gpu`` is not installed: its
wheel has 760 MB, and brings the module that ``cpu`` brings. ``make test-gpu-wheel`` has it.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import threading
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.append(str(REPOSITORY))  # for tests.extras alone: wsm is in src/

from tests.extras import MADE_OF, PACKAGES  # noqa: E402 - found by the line above

#: Too large to be downloaded each time; and what is for work on this repository.
NOT_INSTALLED = {"gpu", "torch", "ray", "dev", "fuzz", "site"}

#: What a user runs first, in an empty directory, and what is part of the answer.
COMMANDS = {
    "--help": "Change the weights of running inference workers",
    "status": "",
    "diagrams --check": "the tables are sound",
    "digest snapshots": "rank 0",
    "try": "serves version 2 again",
}


#: All that are tried would name their group alike.
ONE_GROUP = threading.Lock()


def main() -> int:
    """Build, install, and try; return 1 if anything was not as promised."""
    if sys.argv[1:2] == ["--inside"]:
        return inside(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="wsm-wheel-") as directory:
        place = Path(directory)
        run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(place), str(REPOSITORY)])
        [wheel] = place.glob("wsm-*.whl")
        if dead := re.findall(r"\]\((?!https?:)[^)]*\)", metadata_of(wheel)):
            raise SystemExit(f"the package's page has links that lead nowhere: {dead}")
        extras = ["", *sorted(extras_of(wheel) - NOT_INSTALLED)]
        with ThreadPoolExecutor(max_workers=2) as two:  # one downloads while the other one imports
            for said in two.map(lambda extra: try_extra(wheel, extra, place / (extra or "bare")), extras):
                sys.stdout.write(f"{said}\n")
                sys.stdout.flush()
    return 0


def try_extra(wheel: Path, extra: str, environment: Path) -> str:
    """Install the wheel with one extra, use it, and return what was tried."""
    install(wheel, extra, environment)
    run([environment / "bin/python", __file__, "--inside", extra], cwd=environment)
    with ONE_GROUP:
        try_commands(environment)
    return f"{wheel.name}, {extra or 'without extras'}"


def extras_of(wheel: Path) -> set[str]:
    """Return the names of the extras that a wheel offers."""
    lines = metadata_of(wheel).splitlines()
    return {line.partition(": ")[2] for line in lines if line.startswith("Provides-Extra: ")}


def metadata_of(wheel: Path) -> str:
    """Return what a wheel says of itself; its page, which is the README, is at the end."""
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return archive.read(metadata).decode()


def install(wheel: Path, extra: str, place: Path) -> None:
    """Put the wheel with one extra, in the pinned versions, into a new environment."""
    venv.create(place, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", place / "bin/python"]
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    run([*pip, "install", "-q", "-c", REPOSITORY / "constraints.txt", wanted])
    run([*pip, "check"])


def try_commands(place: Path) -> None:
    """Run what a user runs first."""
    for command, told in COMMANDS.items():
        said = run([place / "bin/wsm", *command.split()], cwd=place)
        if told not in said:
            raise SystemExit(f"'wsm {command}' did not say {told!r}, but: {said}")


def run(command: list[str | Path], cwd: Path = REPOSITORY) -> str:
    """Run a command where nothing of this session's environment reaches Python; end this if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def inside(extra: str) -> int:
    """Import everything that an installed wheel with this extra promises, and what it must not need."""
    wsm = importlib.import_module("wsm")
    if not Path(str(wsm.__file__)).is_relative_to(sys.prefix):
        raise SystemExit(f"wsm was imported from {wsm.__file__}, not from the wheel")
    here = {name for name, package in PACKAGES.items() if not package.extras or extra in package.extras}
    for name in sorted(here):
        importlib.import_module(PACKAGES[name].module or name)
    for found in pkgutil.walk_packages(wsm.__path__, "wsm."):
        needed = {name for name, modules in MADE_OF.items() if found.name in modules}
        if found.name.rpartition(".")[2] == "__main__":
            continue
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if error.name not in needed - here:
                raise
    weight = importlib.import_module("numpy").arange(4, dtype="float32")
    importlib.import_module("wsm.strategies").publish_snapshot("snapshots", 1, {0: {"weight": weight}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
