"""One check: Promela to C to an exhaustive search to a verdict. Knows spin and gcc, and no model by name.

The search bounds itself: time, memory and depth. One that was stopped by a bound proves nothing, and says so.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from models.catalogue import Check

TOOLS = {"spin": "apt-get install spin", "gcc": "apt-get install gcc"}

MEMORY_MIB = 6000
DEPTH = 200_000

_FACTS = re.compile(
    r"^pan:1: (?P<error>.*?) \(at depth|errors: (?P<errors>\d+)|^ *(?P<states>\d+) states, stored|"
    r"^pan: elapsed time (?P<seconds>\S+)|(?P<cut>max search depth too small|out of memory|memory bound)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Verdict:
    """What came of a check.

    Attributes
    ----------
    check : Check
        Of what.
    error : str or None
        The first error that was found, in the verifier's words.
    states : int
        Distinct states that were looked at.
    seconds : float
        Of the search itself.
    stopped_by : str or None
        The bound that ended the search before its end.
    """

    check: Check
    error: str | None
    states: int
    seconds: float
    stopped_by: str | None = None

    @property
    def good(self) -> bool:
        """Whether the check came out as it must."""
        if self.check.must_fail:
            return self.error is not None
        return self.error is None and self.stopped_by is None

    @property
    def sentence(self) -> str:
        """Say how it came out."""
        if self.error is not None:
            return f"{'caught' if self.check.must_fail else 'ERROR'}: {self.error}"
        if self.stopped_by is not None:
            return f"UNFINISHED: {self.stopped_by}"
        return "NOT CAUGHT" if self.check.must_fail else "no cycle" if self.check.cycles else "no error"


def missing_tools() -> list[str]:
    """Return the tools that are not on PATH, each with how to get it."""
    return [f"{tool} ({how})" for tool, how in TOOLS.items() if shutil.which(tool) is None]


def spin_version() -> str:
    """Return spin's version, as it says it."""
    said = _output(["spin", "-V"], Path())
    return said.split("--")[0].replace("Spin Version", "").strip()


def run(check: Check, *, limit_s: float) -> Verdict:
    """Run one check. Blocks; starts processes, which end with it.

    Parameters
    ----------
    check : Check
        What.
    limit_s : float
        Seconds after which the search is stopped.

    Raises
    ------
    subprocess.CalledProcessError
        If the model does not translate or compile; its ``output`` says why.
    """
    with tempfile.TemporaryDirectory(prefix="wsm-model-") as folder:
        where = Path(folder)
        _build(check, where)
        try:
            said = _output([_PAN, f"-m{DEPTH}", *(["-l"] if check.cycles else [])], where, limit_s=limit_s)
        except subprocess.TimeoutExpired:
            return Verdict(check, None, 0, limit_s, f"its limit of {limit_s:g} s")
    return _verdict(check, said)


_PAN = "./pan"


def _build(check: Check, where: Path) -> None:
    """Translate and compile; a small check without optimization, which would take longer than it does."""
    shutil.copy(check.path, where / "model.pml")
    defines = [f"-D{bound}" for bound in check.bounds.split()]
    said = _output(["spin", "-a", *defines, "model.pml"], where)
    if "Error" in said:
        raise subprocess.CalledProcessError(1, "spin", output=said)
    kind = ["-DNP", "-DNOFAIR"] if check.cycles else ["-DSAFETY"]
    limits = [f"-DMEMLIM={MEMORY_MIB}", "-DCOLLAPSE", "-DVECTORSZ=2048"]
    level = "-O0" if check.small else "-O2"
    _output(["gcc", "-w", level, *kind, *limits, "-o", "pan", "pan.c"], where, must_succeed=True)


def _output(
    command: list[str], where: Path, *, limit_s: float | None = None, must_succeed: bool = False
) -> str:
    """Run a command in `where` and return what it said on either stream."""
    ended = subprocess.run(  # noqa: S603 - our own words, and files that this module wrote
        command,
        cwd=where,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
        check=False,
    )
    if must_succeed and ended.returncode:
        raise subprocess.CalledProcessError(ended.returncode, command, output=ended.stdout)
    return ended.stdout


def _verdict(check: Check, said: str) -> Verdict:
    facts: dict[str, str] = {}
    for found in _FACTS.finditer(said):
        facts.update({name: text for name, text in found.groupdict().items() if text is not None})
    error = facts.get("error")
    if error is None and facts.get("errors") != "0":
        lines = said.strip().splitlines() or ["the verifier said nothing"]
        return Verdict(check, None, int(facts.get("states", 0)), 0.0, facts.get("cut", lines[-1]))
    states, seconds = int(facts.get("states", 0)), float(facts.get("seconds", 0))
    return Verdict(check, error, states, seconds, facts.get("cut"))
