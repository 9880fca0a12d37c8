"""One whole demo: run the loop, then write what it leaves behind. What the command calls.

Responsible for files in the output directory and for the last lines on the terminal; the loop knows neither.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from examples.demo.loop import run_loop
from examples.demo.picture import draw
from examples.demo.report import Report, step_line, summary_lines
from examples.demo.settings import JOURNAL_DIRECTORY, DemoSettings
from wsm.ending import Ending
from wsm.errors import GroupError
from wsm.journal.entry import JournalEntry, read_ndjson
from wsm.journal.replay import replay
from wsm.journal.spans import TimelineSpan, extent, journal_spans, trace_text
from wsm.printable import printable

REPORT_FILE = "report.json"
TRACE_FILE = "trace.json"
PICTURE_FILE = "timeline.png"


def run_demo(
    settings: DemoSettings, write: Callable[[str], object] | None = None, *, ending: Ending | None = None
) -> Report:
    """Run the demo and write ``report.json``, ``trace.json``, ``timeline.png`` and ``journals/``. Blocks.

    Parameters
    ----------
    settings : DemoSettings
        What to do; ``settings.out`` is created.
    write : callable or None
        Given each line about what happens; None: to standard output.
    ending : Ending or None
        Interrupts the demo between its start and its end, which leave nothing half made.

    Raises
    ------
    wsm.ending.SignalReceived
        If a signal asked for the end. Nothing is left behind but what was written to the directory.
    wsm.errors.WsmError
        If the group or the trainer failed, or left behind what must not be.
    """
    ending, write, hot = ending or Ending(), write or _write, settings.hot
    settings.out.mkdir(parents=True, exist_ok=True)
    kind = "hot updates" if hot else "updates"
    write(f"demo of wsm: {settings.ranks} ranks, {'with' if settings.update else 'without'} {kind}")
    report, spans = run_loop(
        settings, lambda record: write(step_line(record, settings.steps, hot=hot)), ending
    )
    with ending.interrupting():
        files = write_results(settings.out, report, spans, chance=settings.task.chance)
    for line in (*summary_lines(report, hot=hot), *(f"  {file}" for file in files)):
        write(line)
    return report


def _write(line: str) -> None:
    sys.stdout.write(f"{printable(line)}\n")
    sys.stdout.flush()


def write_results(out: Path, report: Report, spans: list[TimelineSpan], *, chance: float) -> list[str]:
    """Write report, trace and picture of a run whose journals are in `out`; say for each file what it is.

    Raises
    ------
    GroupError
        If a rank did what the tables do not know. Report and trace are written nevertheless.
    """
    report.write(out / REPORT_FILE)
    entries = read_journals(out / JOURNAL_DIRECTORY)
    origin_ns, end_ns = extent(spans)
    everything = [*spans, *journal_spans(entries, end_ns=end_ns)]
    with (out / TRACE_FILE).open("w", encoding="utf-8") as file:
        file.writelines(trace_text(everything, origin_ns=min(origin_ns, extent(everything)[0])))
    files = [
        f"{out / REPORT_FILE}: numbers per step",
        f"{out / TRACE_FILE}: every action, for Perfetto or chrome://tracing",
    ]
    try:
        draw(out / PICTURE_FILE, report, everything, chance=chance)
        files.append(f"{out / PICTURE_FILE}: reward, states and actions as a picture")
    except ModuleNotFoundError as error:
        files.append(f"no picture: {error.name} is not installed (pip install matplotlib)")
    files.append(f"{out / JOURNAL_DIRECTORY}/: {len(entries)} journal entries of all ranks")
    impossible = replay(entries).impossible
    if impossible is not None:
        raise GroupError(
            f"entry {impossible.index} of the journal of rank {impossible.entry.rank} is no behaviour of the "
            f"tables: {impossible.reason}; keep the journals, and report this as a bug in wsm",
            code="impossible-journal",
        )
    return files


def read_journals(directory: Path) -> list[JournalEntry]:
    """Read the journals of all ranks, one after the other."""
    entries: list[JournalEntry] = []
    for path in sorted(directory.glob("rank*.ndjson")):
        with path.open(encoding="utf-8") as lines:
            entries += read_ndjson(lines)
    return entries
