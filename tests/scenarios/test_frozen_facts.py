"""What a group of two does in each situation: its words, events and actions, and what its caller is told.

The facts of every scenario stand in ``frozen.facts``, in the order in which each participant wrote them into
its journal file; sentences do not stand there. A change that renames something says so in :data:`RENAMED`. A
change that is meant is written anew by ``python tests/scenarios/test_frozen_facts.py``: read the difference.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import wsm
from wsm.actions.measuring import resident_digest
from wsm.strategies.tensor import TensorSpec
from wsm.testing import InMemoryRunner, LocalGroup

FACTS = Path(__file__).with_name("frozen.facts")
SPECS = (TensorSpec("weight", "F32", (8, 8)), TensorSpec("bias", "F32", (8,)))
WEIGHTS, KV = frozenset({wsm.Tag.WEIGHTS}), frozenset({wsm.Tag.KV_CACHE})

#: Names that have changed since the facts were written: old to new. Empty once they are written anew.
RENAMED: dict[str, str] = {}

Step = tuple[str, dict[str, Any]]


def update(version: int | None = 2, **options: Any) -> Step:
    return "update", {"version": version, **options}


def hot(version: int = 2, **options: Any) -> Step:
    return "update", {"version": version, "hot": True, **options}


def clear(**options: Any) -> Step:
    return "clear", options


def breaks(rank: int, *path: str, times: int = 1) -> Step:
    """A method of a surface of one rank raises, the next time or times."""
    return "breaks", {"rank": rank, "path": path, "times": times}


def fills(rank: int, what: str) -> Step:
    """What a load does on one rank from here on: it tells a `wrong` digest, `raise`s, or is `right` again.

    `late`: once the other rank is PREPARED, for a load that runs beside the loop.
    """
    return "fills", {"rank": rank, "what": what}


def requests(steps: int) -> Step:
    return "requests", {"steps": steps}


BOOT, GONE = update(1), clear()
POLICIES = wsm.KVPolicy, wsm.InFlightPolicy

SCENARIOS: dict[str, tuple[Step, ...]] = {
    "boot": (BOOT,),
    "update": (BOOT, update()),
    "update, the same version": (BOOT, update(1)),
    "update, the same version by force": (BOOT, update(1, force=True)),
    "update back": (BOOT, update(), update(1)),
    "clear": (BOOT, clear()),
    "clear, cleared before": (BOOT, GONE, clear()),
    "clear, never loaded": (clear(),),
    "clear and update": (BOOT, GONE, update()),
    "clear and the same version": (BOOT, GONE, update(1)),
    "clear and update twice": (BOOT, GONE, update(), clear(), update(3)),
    "clear, weights": (BOOT, clear(tags=WEIGHTS)),
    "clear, KV cache": (BOOT, clear(tags=KV)),
    "clear, weights, then the KV cache": (BOOT, clear(tags=WEIGHTS), clear(tags=KV)),
    "clear, KV cache, then the weights": (BOOT, clear(tags=KV), clear(tags=WEIGHTS)),
    "clear, weights, keeping blocks": (BOOT, clear(tags=WEIGHTS, kv_policy=wsm.KVPolicy.KEEP)),
    "clear, weights, keeping blocks, the same version": (
        BOOT,
        clear(tags=WEIGHTS, kv_policy=wsm.KVPolicy.KEEP),
        update(1, tags=WEIGHTS),
    ),
    "clear, weights, keeping blocks, another version": (
        BOOT,
        clear(tags=WEIGHTS, kv_policy=wsm.KVPolicy.KEEP),
        update(2, tags=WEIGHTS),
    ),
    "clear, weights, keeping blocks, another version keeps them": (
        BOOT,
        clear(tags=WEIGHTS, kv_policy=wsm.KVPolicy.KEEP),
        update(2, tags=WEIGHTS, kv_policy=wsm.KVPolicy.KEEP),
    ),
    "clear, weights, update of the weights": (BOOT, clear(tags=WEIGHTS), update(2, tags=WEIGHTS)),
    "clear, KV cache, update of the KV cache": (BOOT, clear(tags=KV), update(None, tags=KV)),
    "clear, KV cache, update of the weights": (BOOT, clear(tags=KV), update(2, tags=WEIGHTS)),
    "clear, KV cache, update of both": (BOOT, clear(tags=KV), update(2)),
    "cleared, update of the weights, then the KV cache": (
        BOOT,
        GONE,
        update(2, tags=WEIGHTS),
        update(None, tags=KV),
    ),
    "cleared, update of the KV cache, then the weights": (
        BOOT,
        GONE,
        update(None, tags=KV),
        update(2, tags=WEIGHTS),
    ),
    "served, update of the KV cache": (BOOT, update(None, tags=KV)),
    "served, update of the weights": (BOOT, update(2, tags=WEIGHTS)),
    "served, update of the weights keeps blocks": (
        BOOT,
        update(2, tags=WEIGHTS, kv_policy=wsm.KVPolicy.KEEP),
    ),
    "update keeps blocks": (BOOT, update(kv_policy=wsm.KVPolicy.KEEP)),
    "hot": (BOOT, hot()),
    "hot, then in place, then hot": (BOOT, hot(), update(3), hot(4)),
    "hot, the same version": (BOOT, hot(1)),
    "hot, cleared": (BOOT, GONE, hot()),
    "hot, cleared, in place instead": (BOOT, GONE, hot(hot_fallback="in_place")),
    "hot keeps blocks": (BOOT, hot(kv_policy=wsm.KVPolicy.KEEP)),
    "hot with the KV cache gone": (BOOT, clear(tags=KV), hot()),
    **{
        f"{name}, requests in flight: {policy.value}": (BOOT, requests(3), command(in_flight=policy))
        for name, command in (("clear", clear), ("update", update), ("hot", hot))
        for policy in (wsm.InFlightPolicy.ABORT, wsm.InFlightPolicy.KEEP, wsm.InFlightPolicy.DRAIN)
    },
    "update, the load raises on rank 0": (BOOT, fills(0, "raise"), update()),
    "update, the load raises on rank 1": (BOOT, fills(1, "raise"), update()),
    "boot, the load raises": (fills(1, "raise"), update()),
    "boot, the load raises, then it does not": (fills(1, "raise"), update(), fills(1, "right"), update()),
    "cleared, the load raises": (BOOT, GONE, fills(1, "raise"), update()),
    "cleared, the load of the weights alone raises": (
        BOOT,
        GONE,
        fills(1, "raise"),
        update(2, tags=WEIGHTS),
    ),
    "weights cleared, the load raises": (BOOT, clear(tags=WEIGHTS), fills(1, "raise"), update(2)),
    "update, the digest is wrong": (BOOT, fills(1, "wrong"), update()),
    "hot, the load raises": (BOOT, fills(1, "raise late"), hot()),
    "hot, the load raises, then in place": (BOOT, fills(1, "raise late"), hot(), fills(1, "right"), update()),
    "hot, the digest is wrong": (BOOT, fills(1, "wrong late"), hot()),
    "clear, releasing the weights raises": (BOOT, breaks(1, "weights", "release"), clear()),
    "clear, releasing the weights raises, clear again": (
        BOOT,
        breaks(1, "weights", "release", times=2),
        clear(),
        clear(),
        update(),
    ),
    "clear, releasing the KV cache raises": (BOOT, breaks(0, "kv_cache", "release"), clear()),
    "clear, releasing the KV cache raises twice": (BOOT, breaks(0, "kv_cache", "release", times=3), clear()),
    "clear, KV cache, releasing it raises": (BOOT, breaks(0, "kv_cache", "release"), clear(tags=KV)),
    "clear, weights, releasing them raises": (BOOT, breaks(0, "weights", "release"), clear(tags=WEIGHTS)),
    "clear, requests cannot be stopped": (BOOT, breaks(1, "requests", "stop_admitting"), clear()),
    "update, rebuilding the KV cache raises": (BOOT, GONE, breaks(1, "kv_cache", "rebuild"), update()),
    "update, rebuilding the KV cache alone raises": (
        BOOT,
        clear(tags=KV),
        breaks(1, "kv_cache", "rebuild"),
        update(None, tags=KV),
    ),
    "update, emptying the KV cache raises": (BOOT, breaks(1, "kv_cache", "forget"), update()),
    "update, emptying the KV cache raises, restored": (
        BOOT,
        breaks(1, "kv_cache", "forget"),
        update(on_failure="restore"),
    ),
}


class Played:
    """Two ranks and a controller in this thread, which looks behind each move of a rank."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.what = ["right", "right"]  # of the loads, by rank
        self.group = LocalGroup(
            lambda _: InMemoryRunner(SPECS),
            directory,
            load=self._load,
            configuration={"name": "frozen", "journal_directory": str(directory)},
            meanwhile=self._move,
        )
        self._next = itertools.cycle(range(2))

    def play(self, step: Step) -> Iterator[str]:
        what, options = step
        if what == "breaks":
            self._break(**options)
        elif what == "fills":
            self.what[options["rank"]] = options["what"]
        elif what == "requests":
            for runner in self.group.runners:
                runner.requests.submit(options["steps"])
            self._turn()
        else:
            yield from self._command(what, dict(options))

    def _command(self, what: str, options: dict[str, Any]) -> Iterator[str]:
        yield f"{what} {' '.join(_text(options))}".strip()
        if "late" in self.what[1]:
            self.group.hold_load(1)
        try:
            receipt = getattr(self.group, what)(**options)
        except wsm.WsmError as error:
            yield f"  raised {_family(error)}" + "".join(
                f", {name} {error.context[name]}" for name in ("rank", "action") if name in error.context
            )
        else:
            yield (
                f"  receipt {receipt.outcome.value}, version {receipt.version} "
                f"after {receipt.previous_version}, "
                f"loaded {receipt.loaded}, hot {receipt.hot}, missing {list(receipt.missing)}, "
                f"fallback {receipt.fallback is not None}"
            )
        for _ in range(3):
            self._turn()
        status = self.group.controller.status()
        yield f"  status {status.state}, serving {status.serving}, version {status.version}"

    def _turn(self) -> None:
        for _ in self.group.workers:
            self._move()

    def _move(self, _seconds: float = 0.0) -> None:
        rank = next(self._next)
        turn, engine = self.group.workers[rank].poll(), self.group.runners[rank].requests
        if self.group.controller.status().ranks[0].code == "PREPARED":
            self.group.resume(1)  # what is loaded late
        if turn is wsm.JOIN or (turn is wsm.SERVE and engine.has_work()):
            with self.group.workers[rank].step():
                engine.advance()

    def _load(self, context: Any, target: Any) -> dict[str, Any]:
        """Load every byte of version v as v."""
        what = self.what[context.rank]
        if "raise" in what:
            raise OSError("the scenario wants the load to fail")
        for name, spec in target.specs().items():
            target.writable(name)[:] = bytes([int(context.version)]) * spec.nbytes
        facts = {
            "manifest_digest": f"m{context.version}",
            "manifest_scope": "group",
            "bytes": 288,
            "tensors": 2,
        }
        digest = resident_digest(target, context.progress)
        return {"version": context.version, "digest": "f" * 32 if "wrong" in what else digest, **facts}

    def _break(self, *, rank: int, path: tuple[str, str], times: int) -> None:
        surface = getattr(self.group.runners[rank], path[0])
        real: Callable[..., Any] = getattr(surface, path[1])
        left = times

        def broken(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left >= 0:
                raise OSError(f"the scenario wants {path[1]} to fail")
            return real(*arguments, **options)

        setattr(surface, path[1], broken)

    def journals(self, *, after: int) -> Iterator[str]:
        """What each has written about the commands after that one."""
        told: dict[str, list[str]] = {}
        for who in ("controller", "rank0", "rank1"):
            path = self.directory / f"{who}.ndjson"
            lines = path.read_text().splitlines() if path.exists() else []
            entries = [entry for entry in map(json.loads, lines) if entry["sequence"] > after]
            told[who] = [f"  {fact}" for entry in entries for fact in _facts(entry)]
        if told["rank1"] == told["rank0"]:
            told["rank1"] = ["  as rank0"]
        for who, facts in told.items():
            yield f"{who}:"
            yield from facts


def _family(error: wsm.WsmError) -> str:
    families = wsm.RefusedError, wsm.BadInputError, wsm.GroupError, wsm.InternalError
    return next(family.__name__ for family in families if isinstance(error, family))


def _text(options: dict[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, frozenset):
            yield f"{name}={'+'.join(sorted(tag.value for tag in value))}"
        else:
            yield f"{name}={getattr(value, 'value', value)}"


def _facts(entry: dict[str, Any]) -> Iterator[str]:
    """What is frozen of one line of a journal: who did what, in which order; no times, no sentences."""
    facts = entry["facts"]
    match entry["kind"]:
        case "transition":
            flags = " kept" if facts["guard"] == "kept" else ""
            yield f"{facts['machine']}: {facts['source']} {facts['event']} {facts['dest']}{flags}"
        case "action_started" | "action_failed" | "action_undone":
            yield f"{entry['kind'].removeprefix('action_')} {facts['name']}"
        case "word_written" if "code" in facts:
            yield f"word {facts['word']} {facts['code']}"
        case "command_issued" | "decision":
            yield f"{entry['kind']} {facts['operation']}"
        case "served_version":
            yield f"serves {facts['version']}"
        case "command_failed":
            yield f"command failed in {facts['action']}"
        case "command_seen":
            yield f"sees {facts['operation']} {entry['sequence']}"


def told(name: str, directory: Path) -> list[str]:
    """Play one scenario; return its facts."""
    played, steps = Played(directory), SCENARIOS[name]
    with played.group:
        lines = [line for step in steps for line in played.play(step)]
        return [f"# {name}", *lines, *played.journals(after=int(len(steps) > 1 and steps[0] is BOOT))]


def frozen() -> dict[str, list[str]]:
    text = FACTS.read_text(encoding="utf-8")
    for old, new in RENAMED.items():
        text = text.replace(old, new)
    parts = [part.splitlines() for part in text.split("\n\n")]
    return {part[0].removeprefix("# "): part for part in parts if part and part[0].startswith("# ")}


@pytest.mark.slow_but("clear", "clear, *", "update", "hot")
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_group_does_what_it_always_did(name: str, tmp_path: Path) -> None:
    assert told(name, tmp_path) == frozen()[name]


def main() -> None:
    """Write the facts anew; names on the command line are those of scenarios, all without any."""
    kept = frozen() if FACTS.exists() else {}
    for name in sys.argv[1:] or SCENARIOS:
        with tempfile.TemporaryDirectory() as directory:
            kept[name] = told(name, Path(directory))
    FACTS.write_text("\n\n".join("\n".join(kept[name]) for name in SCENARIOS) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
