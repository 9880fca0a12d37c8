"""``python -m tests.http.published``: trainers' published clients against a group, killed at every verb.

    python -m tests.http.published --slime PATH --areal PATH --prime-rl PATH --python PYTHON --kills

A path is a checkout of the trainer's source; nothing in it is changed. PYTHON has what the clients import;
modules stand in for what it lacks, which the command names. Each client brings its steps to
``examples.rollout --http`` in the order of requests that its own code has, while text is asked for beside it.
With ``--kills`` a rank, the server (``wsm serve --upstream``, before the group) and the trainer are killed at
each of its verbs, and the end is compared with the one that is written here.

The ends
--------
``on``: the trainer's step succeeds all the same, and the group serves what it brought. ``raises: ...``: the
trainer's code raises, and the group is left as it says. What a trainer that was killed leaves stands alone.
`old` and `new` are the weights before the verb's step and those that it brings; `none` is a group that holds
nothing, under the same hold, after a server that died within an update in place: nothing decided it. In all
cases a new trainer, which begins at 1 again with other weights, then brings its step and is served.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.http.published.served import ServedGroup, Trainer

RANK, SERVER, TRAINER = "rank", "server", "trainer"

#: The surface that each client speaks, and the option that names its source.
SURFACE = {
    "slime": ("sglang", "slime"),
    "slime-pulls": ("sglang", "slime"),
    "areal": ("sglang", "areal"),
    "areal-vllm": ("areal", "areal"),
    "areal-offloads": ("sglang", "areal"),
    "areal-vllm-offloads": ("areal", "areal"),
    "prime-rl": ("prime-rl", "prime_rl"),
    "trl": ("vllm", "trl"),
    "trl-async": ("vllm", "trl"),
}

#: Clients that push tensors: their own code raises, and no weights are served for others that did not come.
REFUSED = {
    "trl": "raises: old open",  # it pauses nothing, and looks at every answer
    "trl-async": "raises: old open",  # it looks at no status, but needs the world size, which it is refused
}

PAUSED = "on | raises: old open | raises: old held"
LOADED = "on | raises: old held | raises: new held"
OPENED = "on | raises: new held | raises: new open"
RELEASED = "on | raises: old held | raises: none held"
RESTORED = "on | raises: none held | raises: old held | raises: old open"

#: The end of each client if the victim is killed while the verb is under way, written before it was tried.
ENDS: dict[tuple[str, str], dict[str, str]] = {
    # slime looks at every answer and repeats none but the flush, which it asks for sixty times.
    ("slime", "/pause_generation"): {RANK: PAUSED, SERVER: PAUSED, TRAINER: "old held"},
    ("slime", "/flush_cache"): {RANK: "on", SERVER: "on", TRAINER: "old held"},
    ("slime", "/update_weights_from_disk"): {
        RANK: LOADED,
        SERVER: f"{LOADED} | raises: none held",
        TRAINER: "new held",
    },
    ("slime", "/continue_generation"): {RANK: OPENED, SERVER: OPENED, TRAINER: "new open"},
    ("slime-pulls", "/pull_weights"): {RANK: "on", SERVER: "raises: old open", TRAINER: "old open"},
    ("slime-pulls", "/update_weights_from_disk"): {
        RANK: LOADED,
        SERVER: f"{LOADED} | raises: none held",
        TRAINER: "new held",
    },
    # AReaL repeats every failure three times, a second apart.
    ("areal", "/pause_generation"): {RANK: PAUSED, SERVER: PAUSED, TRAINER: "old held"},
    ("areal", "/update_weights_from_disk"): {
        RANK: LOADED,
        SERVER: f"{LOADED} | raises: none held",
        TRAINER: "new held",
    },
    ("areal", "/continue_generation"): {RANK: OPENED, SERVER: OPENED, TRAINER: "new open"},
    ("areal-vllm", "/areal_pause_generation"): {RANK: PAUSED, SERVER: PAUSED, TRAINER: "old held"},
    ("areal-vllm", "/areal_update_weights"): {
        RANK: LOADED,
        SERVER: f"{LOADED} | raises: none held",
        TRAINER: "new held",
    },
    ("areal-vllm", "/areal_continue_generation"): {RANK: OPENED, SERVER: OPENED, TRAINER: "new open"},
    # Before its step it lets the memory go and gets it back; behind a failure it continues, too, then raises.
    ("areal-offloads", "/release_memory_occupation"): {
        RANK: RELEASED,
        SERVER: RELEASED,
        TRAINER: "none held",
    },
    ("areal-offloads", "/resume_memory_occupation"): {RANK: RESTORED, SERVER: RESTORED, TRAINER: "old held"},
    ("areal-vllm-offloads", "/sleep"): {RANK: RELEASED, SERVER: RELEASED, TRAINER: "none held"},
    ("areal-vllm-offloads", "/wake_up"): {RANK: RESTORED, SERVER: RESTORED, TRAINER: "old held"},
    # prime-rl repeats what is 5xx or lost up to ten times, for minutes: it goes on, whatever died.
    ("prime-rl", "/pause"): {RANK: "on", SERVER: "on", TRAINER: "old held"},
    ("prime-rl", "/update_weights"): {RANK: "on", SERVER: "on", TRAINER: "new held"},
    ("prime-rl", "/resume"): {RANK: "on", SERVER: "on", TRAINER: "new open"},
}


@dataclass
class Tally:
    """What was tried, and what ended otherwise than expected."""

    tried: int = 0
    wrong: int = 0

    def row(self, *cells: str, ok: bool) -> None:
        self.tried += 1
        self.wrong += not ok
        sys.stdout.write("| {} | {} |\n".format(" | ".join(cells), "ok" if ok else "WRONG"))
        sys.stdout.flush()


@dataclass(frozen=True)
class Run:
    """One client of one source, and where it is tried."""

    client: str
    source: Path
    python: str
    directory: Path
    tally: Tally

    @property
    def surface(self) -> str:
        """Which the client speaks."""
        return SURFACE[self.client][0]


def steps(run: Run, number: int, adopt: str) -> None:
    """Bring so many steps, with text asked for beside them, directly to ``examples.rollout --http``."""
    group = ServedGroup(run.directory, run.surface, adopt=adopt, apart=False)
    trainer = None
    try:
        trainer = Trainer(run.python, run.client, run.source, group)
        begun = time.monotonic()
        said = trainer.live(first=1, steps=number, asks=True, timeout_s=300)
        seconds = time.monotonic() - begun
        group.until_quiet()
        version, held = group.known()
        ok = said["ended"] == 0 and not said.get("failed") and (version, held) == (str(number), False)
        ok = ok and said["answered"] > 0
        seen = f"version {version}, {'held' if held else 'open'}; {said.get('answered')} texts answered, "
        seen += f"{len(said.get('failed', ()))} failed; {seconds:.0f} s"
        seen += f"; stood in: {', '.join(trainer.stood_in)}"
        seen += "".join(f"; {each}" for each in (said.get("raised"), *said.get("failed", ())[:2]) if each)
        expected = f"version {number}, open"
        run.tally.row(run.client, f"{number} steps, --adopt {adopt}", "", expected, seen, ok=ok)
    finally:
        if trainer is not None:
            trainer.close()
        group.close()


def refusals(run: Run) -> None:
    """Let a client push tensors, which cannot be promised."""
    group = ServedGroup(run.directory, run.surface, adopt="link", apart=False)
    trainer = None
    try:
        trainer = Trainer(run.python, run.client, run.source, group)
        said = trainer.live(first=1, steps=1)
        version, held = group.known()
        end = f"raises: {'old' if version == '1' else 'new'} {'held' if held else 'open'}"
        raised, expected = str(said.get("raised")), REFUSED[run.client]
        ok = (
            said["ended"] == 1
            and ("Request failed: 400" in raised or "world_size" in raised)
            and end == expected
        )
        run.tally.row(run.client, "pushed tensors", "", expected, f"{end}; {raised}", ok=ok)
    finally:
        if trainer is not None:
            trainer.close()
        group.close()


def kills(run: Run) -> None:
    """Kill each victim at each verb of the client; compare the ends."""
    group = ServedGroup(run.directory, run.surface, adopt="link", apart=True)
    trainer = None
    try:
        trainer = Trainer(run.python, run.client, run.source, group)
        assert trainer.live(first=1, steps=1)["ended"] == 0
        for (named, verb), ends in ENDS.items():
            for victim, expected in ends.items() if named == run.client else ():
                seen, ok = struck(group, trainer, verb, victim, expected)
                run.tally.row(run.client, verb, victim, expected, seen, ok=ok)
    finally:
        if trainer is not None:
            trainer.close()
        group.close()


def struck(group: ServedGroup, trainer: Trainer, verb: str, victim: str, expected: str) -> tuple[str, bool]:
    """Kill a victim once the verb is under way; say how it ended, and whether that was expected."""
    old, _ = group.known()
    armed = [True]

    def watch(path: str) -> None:
        if path == verb and armed:
            armed.clear()
            time.sleep(0.005)
            {RANK: group.kill_rank, SERVER: group.kill_server, TRAINER: trainer.kill_life}[victim]()

    group.wire.watch = watch
    said = trainer.live(first=1, steps=1)
    group.wire.watch = lambda _: None
    assert not armed, f"{verb} was not asked for"
    group.until_quiet()
    version, held = group.known()
    has = "none" if version is None else "old" if version == old else "new"
    left = f"{has} {'held' if held else 'open'}"
    end = "on" if said["ended"] == 0 else left if victim == TRAINER else f"raises: {left}"
    ok = end in expected.split(" | ") and (end != "on" or left == "new open")
    again = trainer.live(first=1, steps=1)
    group.until_quiet()
    served, still_held = group.known()
    ok = ok and again["ended"] == 0 and served is not None and served != version and not still_held
    why = said.get("raised") if end != "on" else None
    seen = f"{end}; then version {served}"
    seen += "" if end != "on" or left == "new open" else f" ({left} before it)"
    told = (seen, why and why.splitlines()[0][:120], again.get("raised"))
    return "; ".join(each for each in told if each), ok


def main() -> int:
    """Run what the command line says; 1 if anything ended otherwise than expected."""
    parser = argparse.ArgumentParser(prog="python -m tests.http.published")
    for option in ("--slime", "--areal", "--prime-rl", "--trl"):
        parser.add_argument(option, type=Path, metavar="PATH", help="the trainer's source")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the trainers")
    parser.add_argument("--steps", type=int, default=100, help="of each client; 0: none")
    parser.add_argument("--adopt", nargs="+", choices=["link", "copy"], default=["link", "copy"])
    parser.add_argument("--kills", action="store_true", help="kill ranks, server and trainer at every verb")
    parser.add_argument("--client", nargs="+", choices=SURFACE, default=list(SURFACE))
    parser.add_argument("--keep", action="store_true", help="keep the logs")
    asked = parser.parse_args()
    tally = Tally()
    sys.stdout.write("| client | verb | killed | expected | seen | |\n|---|---|---|---|---|---|\n")
    for client in asked.client:
        source = getattr(asked, SURFACE[client][1])
        if source is None:
            continue
        if client in REFUSED:
            with directory(keep=asked.keep) as at:
                refusals(Run(client, source, asked.python, at, tally))
            continue
        for adopt in asked.adopt if asked.steps else ():
            with directory(keep=asked.keep) as at:
                steps(Run(client, source, asked.python, at, tally), asked.steps, adopt)
        if asked.kills:
            with directory(keep=asked.keep) as at:
                kills(Run(client, source, asked.python, at, tally))
    sys.stdout.write(f"{tally.tried} tried, {tally.wrong} ended otherwise than expected\n")
    return 1 if tally.wrong or not tally.tried else 0


@contextlib.contextmanager
def directory(*, keep: bool) -> Iterator[Path]:
    """Give a directory that goes at the end, unless it is to be kept."""
    made = Path(tempfile.mkdtemp(prefix="wsm-published-"))
    try:
        yield made
    finally:
        if keep:
            sys.stdout.write(f"kept: {made}\n")
        else:
            shutil.rmtree(made, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
