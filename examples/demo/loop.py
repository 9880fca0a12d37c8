"""One whole demo: a group serves a policy, a trainer improves it, and every step hands the weights over.

The one module that knows group, trainer and files at once. A step is generate, clear, train, publish, update:
the trainer works while the group holds no memory, as on shared GPUs. With hot updates nothing is cleared, and
the group serves others while the trainer works and the ranks stage. Nothing is taken on trust: the digests
that the ranks report must be those that the trainer published, every token must name the version that the
receipts name, and the ranks' journals must be behaviours of the tables.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from examples.demo.picture import draw
from examples.demo.report import Report, StepRecord, step_line, summary_lines
from examples.demo.settings import JOURNAL_DIRECTORY, DemoSettings, Rewards, Tokens, group_config
from examples.demo.trainer_process import Reply, TrainerProcess
from examples.rollout.client import RolloutClient
from examples.rollout.request import Generation
from examples.rollout.request_socket import request_socket_path
from examples.rollout.run_directory import remove_run_directory, run_directory_path
from examples.rollout.supervisor import INITIAL_VERSION, RolloutSupervisor
from wsm.ending import Ending
from wsm.errors import GroupError, WsmError
from wsm.journal.entry import JournalEntry, read_ndjson
from wsm.journal.replay import replay
from wsm.journal.spans import TimelineSpan, extent, journal_spans, trace_text
from wsm.printable import printable
from wsm.receipt import Receipt
from wsm.signals.layout import segment_path
from wsm.signals.ownership import remove_abandoned

_NAME = re.compile(r"wsm\.(demo-\d+)(\.lock)?")


def remove_leftovers(directory: Path | None = None) -> list[str]:
    """Remove segments, sockets and run directories of demos whose processes are all gone.

    Parameters
    ----------
    directory : Path or None
        Where segments lie; None is this user's private directory.

    Returns
    -------
    list of str
        Names of the groups that were removed.
    """
    where = segment_path("demo", directory).parent
    found = {match[1] for path in where.iterdir() if (match := _NAME.fullmatch(path.name))}
    removed = []
    for name in sorted(found):
        if remove_abandoned(segment_path(name, directory)):
            remove_run_directory(run_directory_path(name, directory))
            request_socket_path(name, directory).unlink(missing_ok=True)
            removed.append(name)
    return removed


#: How long a step waits for a group that recovers from the loss of a rank, in seconds.
PATIENCE_S = 120.0

_LOOK_S = 0.05


def run_loop(
    settings: DemoSettings, finished: Callable[[StepRecord], object], ending: Ending
) -> tuple[Report, list[TimelineSpan]]:
    """Run the whole loop. Blocks; starts processes, and leaves none behind however it ends.

    Parameters
    ----------
    settings : DemoSettings
        What to do. Old journals in ``out`` are removed.
    finished : callable
        Told each step that is over.
    ending : Ending
        Interrupts the steps, asked for by the group while it starts; its haste kills trainer and ranks.

    Returns
    -------
    Report, list of Span
        Numbers, and the spans of controller and trainer; those of the ranks are in their journals.

    Raises
    ------
    wsm.errors.WsmError
        If the group or the trainer fails; the message names the culprit.
    """
    began = time.monotonic()
    remove_leftovers()
    config = group_config(settings, f"demo-{os.getpid()}")
    for journal in (settings.out / JOURNAL_DIRECTORY).glob("rank*.ndjson"):
        journal.unlink()
    snapshots = Path(config.group.snapshot.directory)
    with (
        TrainerProcess(
            settings.shape, ranks=settings.ranks, directory=snapshots, seed=settings.seed
        ) as trainer,
        ending.hastened_by(trainer.kill),
        RolloutSupervisor(config, ending=ending) as group,
        RolloutClient(config.group.name, retry_s=PATIENCE_S) as client,
    ):
        loop = _TrainingLoop(settings, trainer, group, client)
        try:
            with ending.interrupting():
                steps = []
                for number in range(1, settings.steps + 1):
                    steps.append(loop.step(number))
                    finished(steps[-1])
        except WsmError:
            group.check()  # a rank that died says more in its log than the others can
            raise
    return Report(settings.as_mapping(), steps, time.monotonic() - began), loop.spans


class _StepBatch(NamedTuple):
    """What a step has generated, and how it is rewarded."""

    prompts: Tokens
    tokens: Tokens
    rewards: Rewards
    answers: list[Generation]


class _TrainingLoop:
    """One run under way."""

    def __init__(
        self,
        settings: DemoSettings,
        trainer: TrainerProcess,
        group: RolloutSupervisor,
        client: RolloutClient,
    ) -> None:
        self.spans: list[TimelineSpan] = []
        self._settings = settings
        self._trainer = trainer
        self._group = group
        self._controller = group.controller
        self._load = group.load
        self._client = client
        self._hold: str | None = None
        self._version = INITIAL_VERSION
        self._step = 0

    def step(self, number: int) -> StepRecord:
        """Run one turn of the loop."""
        self._step = number
        task = self._settings.task
        prompts = task.prompts(self._settings.batch, seed=self._seed_of(number))
        with self._timed("generate") as generated:
            answers = self._client.generate(
                prompts.tolist(), task.length, temperature=1.0, seed=self._seed_of(number)
            )
        tokens = np.array([answer.tokens for answer in answers], np.int64)
        rewards = task.rewards(prompts, tokens)
        record = StepRecord(
            step=number,
            version=None,
            served_version=self._version,
            reward=float(rewards.mean()),
            tokens=Counter(version for answer in answers for version in answer.versions),
            mixed_versions=any(set(answer.versions) != {self._version} for answer in answers),
            generate_ms=generated[0].duration_ns / 1e6,
        )
        how = self._flip if self._settings.hot else self._pause if self._settings.hold else self._hand_over
        hand_over = how if self._settings.update else self._train_only
        return hand_over(record, _StepBatch(prompts, tokens, rewards, answers))

    def _hand_over(self, record: StepRecord, batch: _StepBatch) -> StepRecord:
        """Clear the group, train in the memory that it gave back, and update it to what was learned."""
        with self._timed("clear") as cleared:
            self._commanded(self._controller.clear)
        record = self._train_and_update(record, batch)
        return replace(record, clear_ms=cleared[0].duration_ns / 1e6)

    def _pause(self, record: StepRecord, batch: _StepBatch) -> StepRecord:
        """Hold the group with all that it has, train, update it in place, and let it go on."""
        with self._timed("hold"):
            held = self._commanded(lambda: self._controller.hold(owner="trainer"))
        self._hold = None if held.hold is None else held.hold.hold_id
        record = self._train_and_update(record, batch)
        with self._timed("release"):
            released = self._commanded(lambda: self._controller.release(owner="trainer", hold=self._hold))
        self._hold = None
        return replace(record, pause_ms=released.pause_s * 1e3)

    def _flip(self, record: StepRecord, batch: _StepBatch) -> StepRecord:
        """Train, and update the group to what was learned, while it serves others."""
        before = self._served_to_others()
        record = self._train_and_update(record, batch)
        return replace(record, served_meanwhile=self._served_to_others() - before)

    def _train_and_update(self, record: StepRecord, batch: _StepBatch) -> StepRecord:
        learned = self._train(batch)
        version = str(int(self._version) + 1)  # this trainer counts
        published = self._trainer.publish(version)
        self._spans_of(published, "publish")
        with self._timed("update") as updated:
            receipt = self._commanded(self._update_to(version))
        require_published(receipt, published.facts)
        self._version = version
        seen = np.array([answer.logprobs for answer in batch.answers])
        return replace(
            record,
            version=version,
            train_ms=learned.milliseconds,
            publish_ms=published.milliseconds,
            update_ms=updated[0].duration_ns / 1e6,
            pause_ms=receipt.pause_s * 1e3,
            staging_ms=receipt.staging_s * 1e3,
            bytes=sum(rank.bytes for rank in receipt.ranks),
            digests={str(rank.rank): rank.digest or "" for rank in receipt.ranks},
            manifest_digest=receipt.manifest_digest,
            loss=learned.facts["loss"],
            entropy=learned.facts["entropy"],
            log_probability_gap=float(np.abs(seen - np.array(learned.facts["log_probability"])).max()),
        )

    def _update_to(self, version: str) -> Callable[[], Receipt]:
        return lambda: self._controller.update(version, hot=self._settings.hot, hold=self._hold)

    def _served_to_others(self) -> int:
        return 0 if self._load is None else sum(dict(self._load.tokens_by_version).values())

    def _commanded(self, command: Callable[[], Receipt]) -> Receipt:
        """Command the group, and again while it recovers from the loss of a rank."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return command()
            except WsmError as error:
                if not error.retryable or time.monotonic() > deadline:
                    raise
            self._group.check()
            self._group.wait_until_whole(max(deadline - time.monotonic(), 0.0))
            time.sleep(_LOOK_S)  # what else a command can meet is the role of another process: no event

    def _train_only(self, record: StepRecord, batch: _StepBatch) -> StepRecord:
        """Train, and tell the group nothing."""
        learned = self._train(batch)
        return replace(
            record,
            train_ms=learned.milliseconds,
            loss=learned.facts["loss"],
            entropy=learned.facts["entropy"],
        )

    def _train(self, batch: _StepBatch) -> Reply:
        learned = self._trainer.improve(batch.prompts, batch.tokens, batch.rewards)
        self._spans_of(learned, "train")
        return learned

    def _seed_of(self, number: int) -> int:
        return self._settings.seed * 1_000_003 + number

    def _spans_of(self, reply: Reply, name: str) -> None:
        facts = {"step": self._step}
        self.spans.append(
            TimelineSpan("trainer", "training", name, reply.started_ns, reply.finished_ns, facts)
        )

    @contextmanager
    def _timed(self, name: str) -> Iterator[list[TimelineSpan]]:
        """Keep the span of a phase, which is in the list once the block has ended."""
        done: list[TimelineSpan] = []
        started = time.monotonic_ns()
        yield done
        done.append(
            TimelineSpan("controller", "commands", name, started, time.monotonic_ns(), {"step": self._step})
        )
        self.spans += done


def require_published(receipt: Receipt, published: Mapping[str, Any]) -> None:
    """Hold what every rank says that it holds against what the trainer wrote."""
    held = {str(rank.rank): rank.digest for rank in receipt.ranks}
    if held != published["digests"] or receipt.manifest_digest != published["manifest_digest"]:
        wrong = [rank for rank, digest in published["digests"].items() if held.get(rank) != digest]
        who = f"rank {', '.join(wrong)}" if wrong else "the group's manifest"
        raise GroupError(
            f"version {receipt.version}: {who} has another digest than the trainer published; "
            "do not trust this group's answers, and report this as a bug in wsm",
            code="weights-differ",
        )


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
