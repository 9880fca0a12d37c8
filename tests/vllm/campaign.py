"""Random failures on a real server: ``python -m tests.vllm.campaign RUNS SEED [END]``, in vLLM's environment.

One ``vllm serve`` with two workers is brought from version to version while others never stop asking it for
tokens. In each run something befalls the update, and the answer must name it. Then the server must say of
itself what it does, and :mod:`.audit` looks at all tokens that were answered in between.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from examples.vllm_demo.server import PATIENCE_S, random_model
from tests.vllm.audit import CLOSED, DYING, Answer, Era, Span, broken_promises
from tests.vllm.server import VllmServer

VERSIONS = ("A", "B", "C")
PROMPTS = ((1, 2, 3, 4, 5), (9, 8, 7), (63, 1))
LONGEST = 16
ASKERS = 2
WEIGHTS, COMMITTED = "model.safetensors", "committed.json"
#: Seconds in which the ranks of the campaign's own server answer; more than a busy machine takes.
ANSWER_S = 20.0
#: With the second one vLLM packs its weights on a CPU, and most parameters are empty.
DTYPES = ("bfloat16", "float32")
EXTENSION = ("--worker-extension-cls", "tests.vllm.faulty.FaultyWorker")


@dataclass
class Told:
    """What an update was answered, and what the answer must say.

    `outcomes`: those that it may have. `names`: words of which a refusal must have each: ``rank 1``, a
    tensor, a file.
    """

    status: int
    receipt: Any
    outcomes: set[str]
    names: list[str] = field(default_factory=list)


def write_versions(directory: Path) -> None:
    for seed, name in enumerate(VERSIONS, 1):
        random_model(seed).save_pretrained(directory / name)


def ask(server: VllmServer, prompt: tuple[int, ...], tokens: int, timeout: float = PATIENCE_S) -> Answer:
    began = time.monotonic()
    status, said = server.generate(tokens=tokens, prompt=prompt, timeout=timeout)
    ended = time.monotonic()
    if status != 200:
        return Answer(began, ended, prompt, status, why=str(said)[:300])
    [choice] = said["choices"]
    spans = tuple(
        Span(each["version"], each["start"], each["end"]) for each in choice["weight_versions"] or ()
    )
    return Answer(began, ended, prompt, status, tuple(choice["token_ids"] or ()), spans)


class Campaign:
    """One server under random failures. All of chance but the moments of threads is drawn from `seed`.

    `start`: starts another server for a model; None: none is started, and nothing is drawn that ends one.
    `end`: what alone ends a server, in every second run; None: all ends in turn, in one run of eight.
    """

    def __init__(
        self,
        directory: Path,
        server: VllmServer,
        seed: int,
        *,
        start: Callable[[Path], VllmServer] | None = None,
        end: str | None = None,
    ) -> None:
        self.draws = random.Random(seed)  # noqa: S311 - chance that is played again
        self.directory, self.server = directory, server
        self.names = sorted(load_file(directory / "A" / WEIGHTS))
        self.counts: Counter[str] = Counter()
        self.broken: list[str] = []
        self.answers: list[Answer] = []
        self.eras: list[Era] = []
        self.serves: str | None = self._status()["version"]
        self.made: dict[tuple[str, tuple[int, ...]], Sequence[int]] = {}
        self._start, self._end = start, end
        self._over = threading.Event()
        self._mode, self._in_two_steps, self._asked_for = "keep", False, self.serves

    def learn(self) -> None:
        """Hear what each version answers while nothing befalls the server."""
        first = self.serves
        for version in (*VERSIONS, first):
            status, receipt = self.server.update(self.directory / version)
            assert (status, receipt["serves"]) == (200, version), receipt
            self._hear(version)
        firsts = {(prompt, tuple(made[:8])) for (_, prompt), made in self.made.items()}
        assert len(firsts) == len(VERSIONS) * len(PROMPTS), "two versions answer alike"

    def _hear(self, version: str) -> None:
        for prompt in PROMPTS:
            heard = ask(self.server, prompt, LONGEST).tokens
            if self.made.setdefault((version, prompt), heard) != heard:
                self.broken.append(f"{version} answers {heard} to {prompt}, not as before")

    # -- those who ask ---------------------------------------------------------------------------

    def _asks(self, seed: int) -> None:
        draws = random.Random(seed)  # noqa: S311 - chance that is played again
        pause_s = 0.0
        while not self._over.wait(pause_s):
            server = self.server
            one = ask(server, draws.choice(PROMPTS), draws.randint(1, LONGEST))
            pause_s = 0.02 if one.status == 200 else 0.5
            if server is self.server or one.status == 200:
                self.answers.append(one)

    @contextlib.contextmanager
    def asked(self) -> Iterator[None]:
        """Let others ask for tokens all the time; behind it all that they were answered is looked at."""
        self._over.clear()
        self._begin({self.serves} - {None})
        seeds = [self.draws.random() for _ in range(ASKERS)]
        askers = [threading.Thread(target=self._asks, args=[seed], daemon=True) for seed in seeds]
        for asker in askers:
            asker.start()
        try:
            yield
        finally:
            self._over.set()
            for asker in askers:
                asker.join(PATIENCE_S)
        self.counts.update(f"requests answered {each.status}" for each in self.answers)
        self.counts["requests under which the version changed"] = sum(
            len(each.spans) > 1 for each in self.answers
        )

    def audit(self) -> None:
        """Look at all that was answered; a request under which the version changed is asked about again."""
        versions = {span.version for each in self.answers if len(each.spans) > 1 for span in each.spans[1:]}
        known: dict[tuple[str, tuple[int, ...], int], tuple[int, ...]] = {}
        for version in sorted(versions):
            self._bring(version)
            for each in self.answers:
                for span in each.spans[1:]:
                    if span.version == version:
                        before, length = (*each.prompt, *each.tokens[: span.start]), span.end - span.start
                        known[version, before, length] = ask(self.server, before, length).tokens
        self.broken += broken_promises(
            self.answers, self.eras, self.made, lambda *asked: known.get(asked, ("never asked",))
        )

    def _begin(self, versions: set[Any], refusals: frozenset[int] = frozenset()) -> Era:
        self.eras.append(Era(time.monotonic(), versions, refusals))
        return self.eras[-1]

    # -- what befalls an update ------------------------------------------------------------------

    def _other(self) -> str:
        return self.draws.choice([each for each in VERSIONS if each != self.serves])

    def _update(self, path: Path | None = None, **more: Any) -> tuple[int, Any]:
        """Ask for an update, in one step or in two, as the run has drawn it."""
        path = path or self.directory / self._other()
        self._asked_for = more.get("version", path.name)
        if not self._in_two_steps:
            return self.server.update(path, **{"mode": self._mode, **more})
        status, receipt = self._prepare(path, **more)
        if status != 200:
            return status, receipt
        return self.server.call("POST", "/wsm/v1/commit", {"request_id": receipt["request_id"]})

    def _prepare(self, path: Path, **more: Any) -> tuple[int, Any]:
        asked = {"path": str(path), "mode": self._mode, "lease_s": PATIENCE_S, **more}
        return self.server.call("POST", "/wsm/v1/prepare", asked)

    def _copy(self, version: str, **changed: Any) -> Path:
        """Return a directory of its own with the version's tensors, or changed ones; None: without it."""
        made = Path(tempfile.mkdtemp(prefix="copy-", dir=self.directory))
        shutil.copytree(self.directory / version, made, dirs_exist_ok=True)
        if changed:
            tensors = {**load_file(made / WEIGHTS), **changed}
            kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
            save_file(kept, made / WEIGHTS, metadata={"format": "pt"})
        return made

    def _where(self, *before: str) -> dict[str, Any]:
        """Draw a rank, and where a fault comes to it: before a step, or in the middle of a load."""
        point = self.draws.choice(before or ("prepare", "load"))
        at = self.draws.choice((point, self.draws.choice(self.names)))
        return {"rank": self.draws.choice((0, 1)), "at": at}

    def nothing(self) -> Told:
        return Told(*self._update(), {"committed"})

    def a_digest_differs(self) -> Told:
        with self.server.fault(rank=self.draws.choice((0, 1)), kind="digest", times=999):
            return Told(*self._update(), {"refused"}, ["rank 0", "rank 1"])

    def a_reload_fails(self) -> Told:
        rank, name = self.draws.choice((0, 1)), self.draws.choice(self.names)
        with self.server.fault(rank=rank, kind="tensor", name=name):
            return Told(*self._update(), {"rolled-back"}, [f"rank {rank}", name])

    def the_version_before_fails_too(self) -> Told:
        rank, name = self.draws.choice((0, 1)), self.draws.choice(self.names)
        with self.server.fault(rank=rank, kind="tensor", name=name, times=2):
            return Told(*self._update(), {"closed"}, [f"rank {rank}", name])

    def a_rank_answers_late(self) -> Told:
        late_s = self.draws.choice((0.5, 1.5, *([ANSWER_S + 2.0] if self._start else [])))
        with self.server.fault(kind="late", seconds=late_s, **self._where()):
            told = self._update(deadline_s=self.draws.choice((0.3, 60.0)))
        outcomes = {"committed", "refused", "rolled-back"} | ({"unknown"} if late_s > ANSWER_S else set())
        return Told(*told, outcomes, ["not answered in time" if told[0] == 504 else "0.3 s"])

    def a_file_changes_before_its_load(self) -> Told:
        target, rank = self._other(), self.draws.choice((0, 1))
        copy, how = self._copy(target), self.draws.choice(("overwrite", "truncate", "delete"))
        with self.server.fault(rank=rank, kind="damage", how=how, path=str(copy / WEIGHTS)):
            told = self._update(copy, version=target)
        outcomes = {"committed"} if how == "delete" else {"committed", "rolled-back"}
        return Told(*told, outcomes, [f"rank {rank}", str(copy / WEIGHTS)])

    def the_version_before_was_written_over_and_a_reload_fails(self) -> Told:
        copy, served = self._copy(self.serves), self.serves
        status, receipt = self._update(copy, version=served)
        assert (status, receipt["serves"]) == (200, served), receipt
        with (copy / WEIGHTS).open("r+b") as opened:
            opened.seek(-2000, 2)
            opened.write(bytes(2000))
        rank, name = self.draws.choice((0, 1)), self.draws.choice(self.names)
        with self.server.fault(rank=rank, kind="tensor", name=name):
            return Told(*self._update(), {"closed", "rolled-back"}, [f"rank {rank}", name])

    def the_version_has_other_tensors(self) -> Told:
        target, name = self._other(), self.draws.choice(self.names)
        tensor = load_file(self.directory / target / WEIGHTS)[name]
        changed = self.draws.choice(
            (
                {name: None},
                {f"{name}.other": tensor.clone()},
                {name: tensor[:1].clone()},
                {name: tensor.to(torch.float32)},
            )
        )
        return Told(*self._update(self._copy(target, **changed)), {"refused"}, [*changed])

    def the_version_is_not_whole(self) -> Told:
        copy, what = self._copy(self._other()), self.draws.choice(("index", "torn", "none", "outside"))
        if what == "index":
            places = {"weight_map": dict.fromkeys([*self.names, "model.gone.weight"], WEIGHTS)}
            (copy / f"{WEIGHTS}.index.json").write_text(json.dumps(places))
            return Told(*self._update(copy), {"refused"}, ["model.gone.weight"])
        if what == "torn":
            file = copy / WEIGHTS
            with file.open("r+b") as opened:
                opened.truncate(self.draws.randrange(file.stat().st_size))
            return Told(*self._update(copy), {"refused"}, [str(copy), WEIGHTS])
        place = copy / "none" if what == "none" else self.directory.parent
        return Told(*self._update(place), {"refused"}, [str(place)])

    def the_content_is_another_than_promised(self) -> Told:
        target = self._other()
        if self.draws.random() < 0.5:
            return Told(*self._update(self.directory / target, digest="0" * 32), {"refused"}, ["0" * 32])
        wrong = self.directory / self._other()
        label = next(each for each in VERSIONS if each != wrong.name)
        return Told(*self._update(wrong, version=label), {"refused"}, [label, "digest"])

    def two_trainers_update_at_once(self) -> Told:
        told: list[tuple[int, Any]] = []

        def trains(path: Path) -> None:
            told.append(self._update(path))

        paths = [self.directory / self._other() for _ in range(2)]
        trainers = [threading.Thread(target=trains, args=[path]) for path in paths]
        for trainer in trainers:
            trainer.start()
        for trainer in trainers:
            trainer.join()
        for status, said in told:
            if status != 200 and said["error"]["code"] != "update-in-progress":
                self.broken.append(f"two at once: {said}")
        statuses = sorted(status for status, _ in told)
        self.counts[f"two at once were answered {statuses}"] += 1
        last = self._receipts()[-1]
        return Told(200 if 200 in statuses else statuses[0], last, {"committed"})

    def another_has_paused(self) -> Told:
        mode = self.draws.choice(("keep", "abort"))
        assert self.server.call("POST", f"/pause?mode={mode}")[0] == 200
        told = self._update()
        if self.server.call("GET", "/is_paused")[1] != {"is_paused": True}:
            self.broken.append("a pause that another has given was not kept")
        assert self.server.call("POST", "/resume")[0] == 200
        return Told(*told, {"committed"})

    def a_stranger_asks_for_more(self) -> Told:
        path, body = self.draws.choice(
            (
                ("/resume", None),
                ("/wake_up", None),
                ("/update_weights", {"update_info": {}}),
                ("/collective_rpc", {"method": "reset_weights"}),
                ("/weight_checker", {"action": "reset"}),
                ("/update_weight_version", {"new_version": "of a stranger"}),
            )
        )
        after_s, said = self.draws.uniform(0.0, 0.3), []

        def asks() -> None:
            threading.Event().wait(after_s)
            said.append(self.server.call("POST", path, body))

        stranger = threading.Thread(target=asks)
        stranger.start()
        told = self._update()
        stranger.join()
        [(status, answer)] = said
        if status not in (400, 409) and path not in ("/resume", "/wake_up"):
            self.broken.append(f"{path} was answered {status}: {answer}")
        return Told(*told, {"committed"})

    def the_caller_hangs_up(self) -> Told:
        before = self._receipts()
        path, timeout = self.directory / self._other(), self.draws.uniform(0.01, 0.2)
        self.server.call("POST", "/wsm/v1/update", {"path": str(path)}, timeout=timeout)
        idle = 0
        while idle < 20:
            if (receipts := self._receipts()) and receipts[-1:] != before[-1:]:
                return Told(200, receipts[-1], {"committed"})
            idle = 0 if self._status()["updating"] else idle + 1
            time.sleep(0.05)
        self.counts["a caller hung up before its request was read"] += 1
        return self.nothing()

    def what_is_prepared_is_not_committed(self) -> Told:
        lease_s = self.draws.choice((0.3, PATIENCE_S))
        status, prepared = self._prepare(self.directory / self._other(), lease_s=lease_s)
        assert (status, prepared["outcome"]) == (200, "prepared"), prepared
        told = self._update() if lease_s == PATIENCE_S else (409, {"error": {"code": "update-in-progress"}})
        if (told[0], told[1]["error"]["code"]) != (409, "update-in-progress"):
            self.broken.append(f"while a version was prepared, another update was answered {told}")
        decided = {"request_id": prepared["request_id"]}
        if lease_s < PATIENCE_S:
            time.sleep(2 * lease_s)
            refused = self.server.call("POST", "/wsm/v1/commit", decided)
            if refused[1]["error"]["code"] != "lease-over":
                self.broken.append(f"a commit behind the lease was answered {refused}")
            return Told(409, self._receipts()[-1], {"refused"}, [prepared["request_id"], "in time"])
        ended = self.server.call("POST", "/wsm/v1/abort", decided)
        return Told(*ended, {"aborted"}, [prepared["request_id"], "taken back"])

    def a_worker_is_stopped_for_a_while(self) -> Told:
        worker = self.draws.choice(self.server.workers())
        after_s, for_s = self.draws.uniform(0.0, 0.3), self.draws.uniform(0.1, 2.0)

        def stops() -> None:
            threading.Event().wait(after_s)
            worker.suspend()
            threading.Event().wait(for_s)
            worker.resume()

        stopper = threading.Thread(target=stops)
        stopper.start()
        told = self._update(deadline_s=self.draws.choice((1.0, 60.0)))
        stopper.join()
        return Told(*told, {"committed", "refused", "rolled-back"}, [" 1 s"])

    # -- what ends a server ----------------------------------------------------------------------

    def a_worker_is_killed(self) -> Told:
        with self.server.fault(kind="kill", **self._where()):
            return Told(*self._update(), {"unknown"}, ["restart vLLM"])

    def a_worker_is_killed_while_it_serves(self) -> Told:
        worker = self.draws.choice(self.server.workers())
        threading.Event().wait(self.draws.uniform(0.0, 0.3))
        worker.kill()
        return Told(*self._update(), {"unknown"}, ["restart vLLM"])

    def what_was_committed_is_gone_when_a_worker_is_killed(self) -> Told:
        target = self._other()
        copy = self._copy(target)
        self._begin({self.serves, target}, DYING)
        status, receipt = self._update(copy, version=target)
        assert (status, receipt["serves"]) == (200, target), receipt
        self.serves = target
        shutil.rmtree(copy)
        return self.a_worker_is_killed_while_it_serves()

    def the_api_server_is_killed(self) -> Told:
        with self.server.fault(kind="orphan", **self._where("load")):
            return Told(*self._update(), {"unknown"})

    def the_api_server_is_killed_between_prepare_and_commit(self) -> Told:
        status, prepared = self._prepare(self.directory / self._other())
        assert (status, prepared["outcome"]) == (200, "prepared"), prepared
        self._asked_for = self.serves
        self.server.process.kill()
        asked = {"request_id": prepared["request_id"]}
        return Told(*self.server.call("POST", "/wsm/v1/commit", asked), {"unknown"})

    def an_extension_raises(self) -> Told:
        at, rank = self.draws.choice(("prepare", "load")), self.draws.choice((0, 1))
        with self.server.fault(rank=rank, kind="raise", at=at):
            return Told(*self._update(), {"unknown"}, ["restart vLLM"])

    def another_extension_raises(self) -> Told:
        assert self.server.call("POST", "/other")[0] == 200
        return Told(*self._update(), {"unknown"}, ["out of step", "restart vLLM"])

    def a_load_never_returns(self) -> Told:
        with self.server.fault(kind="late", **self._where("load")):
            return Told(*self._update(deadline_s=2.0), {"unknown"}, ["not answered in time", "restart vLLM"])

    # -- one run ---------------------------------------------------------------------------------

    STAYS = (
        nothing,
        a_digest_differs,
        a_reload_fails,
        the_version_before_fails_too,
        a_rank_answers_late,
        a_file_changes_before_its_load,
        the_version_before_was_written_over_and_a_reload_fails,
        the_version_has_other_tensors,
        the_version_is_not_whole,
        the_content_is_another_than_promised,
        two_trainers_update_at_once,
        another_has_paused,
        a_stranger_asks_for_more,
        the_caller_hangs_up,
        what_is_prepared_is_not_committed,
        a_worker_is_stopped_for_a_while,
    )
    ENDS = (
        a_worker_is_killed,
        a_worker_is_killed_while_it_serves,
        what_was_committed_is_gone_when_a_worker_is_killed,
        the_api_server_is_killed,
        the_api_server_is_killed_between_prepare_and_commit,
        an_extension_raises,
        another_extension_raises,
        a_load_never_returns,
    )

    def befalls(self, runs: int) -> list[Callable[[Campaign], Told]]:
        """Return what befalls each run: all kinds in turn, in a drawn order."""
        kinds, each = ([getattr(Campaign, self._end)], 2) if self._end else (self.ENDS, 8)
        ends = self._deck(kinds, runs // each) if self._start else []
        drawn = [*self._deck(self.STAYS, runs - len(ends)), *ends]
        self.draws.shuffle(drawn)
        return drawn

    def _deck(self, kinds: Sequence[Any], count: int) -> list[Any]:
        times, more = divmod(count, len(kinds))
        return [*kinds * times, *self.draws.sample(kinds, more)]

    def run(self, number: int, befalls: Callable[[Campaign], Told]) -> str:
        """Let something befall the way to the next version, and hear what is said; return how it ended."""
        kind, self._mode = befalls.__name__.replace("_", " "), self.draws.choice(("keep", "wait", "abort"))
        self._in_two_steps = self.draws.random() < 0.5
        era = self._begin({self.serves}, DYING if befalls in self.ENDS else frozenset())
        told = befalls(self)
        answered = told.status != 0
        outcome = told.receipt["outcome"] if answered else "no answer"
        serves = told.receipt["serves"] if answered else None
        before = len(self.broken)
        ended = f"{kind}: {outcome}"
        self.counts[ended] += 1
        if answered:
            era.versions.add(serves)
            self._hold(told, outcome)
        if serves is None:
            era.refusals |= CLOSED
            self._begin(set(), era.refusals | CLOSED)
            if answered:
                self._is_closed(told)
            self._restart() if befalls in self.ENDS else self._open_again()
        else:
            self.serves = serves
            self._begin({serves})
            self._is_open()
        self.broken[before:] = [f"run {number + 1}, {kind}: {each}" for each in self.broken[before:]]
        return ended

    def _hold(self, told: Told, outcome: str) -> None:
        receipt = told.receipt
        if outcome not in told.outcomes:
            self.broken.append(f"it ended {outcome}, not {told.outcomes}: {receipt}")
        if outcome == "committed":
            return
        errors = receipt["errors"]
        words = " ".join(f"rank {each.get('rank')} {json.dumps(each)}" for each in errors)
        missing = [name for name in told.names if name not in words]
        if missing or not errors:
            self.broken.append(f"the refusal does not name {missing}: {errors}")
        # vLLM, a worker of which was killed, may have ended meanwhile.
        last = self._get("receipts").get("receipts", [receipt])[-1:]
        if last != [receipt]:
            self.broken.append(f"the last receipt is {last}, not {receipt}")

    def _is_open(self) -> None:
        status, explained = self._status(), self._explain()
        said = status["open"], status["version"], explained["open"], self.serves in explained["text"]
        if said != (True, self.serves, True, True):
            self.broken.append(f"{self.serves} serves, and it says {status}, {explained}")
        one = ask(self.server, PROMPTS[0], LONGEST)
        self.broken += broken_promises([one], self.eras[-1:], self.made, lambda *_: ())

    def _is_closed(self, told: Told) -> None:
        status, explained = self._status(), self._explain()
        text = explained["text"]
        if status.get("open") or status.get("version") or explained["open"]:
            self.broken.append(f"it is closed, and says {status}, {explained}")
        missing = [name for name in told.names if name not in text]
        if missing or "restart vLLM" not in text:
            self.broken.append(f"it does not explain {missing}: {text}")
        tokens, resumed = ask(self.server, PROMPTS[0], 1, timeout=30.0), self.server.call("POST", "/resume")
        if tokens.status == 200 or resumed[0] == 200:
            self.broken.append(f"it is closed, and answers {tokens}, {resumed}")

    def _open_again(self) -> None:
        for _ in range(8):
            era = self._begin(set(), CLOSED)
            _, receipt = self.server.update(self.directory / self.draws.choice(VERSIONS))
            if receipt["serves"]:
                self.serves = receipt["serves"]
                era.versions.add(self.serves)
                break
            time.sleep(2.0)
        else:
            raise AssertionError(f"no whole update opens the gate again: {receipt}")
        self._begin({self.serves})
        self._is_open()

    def _bring(self, version: str) -> None:
        status, receipt = self.server.update(self.directory / version)
        assert (status, receipt["serves"]) == (200, version), receipt

    def _restart(self) -> None:
        """Start another server for any model: it must bring what was committed before it listens."""
        assert self._start is not None
        self.server.close()
        self._begin(set(), DYING)
        model = self.draws.choice(VERSIONS)
        server = self._start(self.directory / model)
        era = self._begin(set(), DYING)  # those who asked the one before may hear only now
        self.server = server
        brought = self._status()["version"]
        if brought is None and not self._is_whole(recorded := self._recorded()):
            self._is_closed(Told(409, None, set(), [recorded["version"], recorded["path"]]))
            self._open_again()
            return
        if brought not in {self.serves, self._asked_for}:
            self.broken.append(f"{self.serves} was committed, and a start with {model} serves {brought}")
        self.serves = brought
        era.versions.add(brought)
        self._hear(brought)
        self._is_open()

    def _recorded(self) -> Any:
        return json.loads((self.directory.parent / COMMITTED).read_text())

    def _is_whole(self, recorded: Any) -> bool:
        """Whether what was committed last still lies where it did; a run may have damaged or removed it."""
        file, written = Path(recorded["path"], WEIGHTS), self.directory / recorded["version"] / WEIGHTS
        return file.exists() and file.read_bytes() == written.read_bytes()

    def _status(self) -> Any:
        return self._get("status")

    def _explain(self) -> Any:
        return self._get("explain")

    def _receipts(self) -> Any:
        return self._get("receipts").get("receipts", [])

    def _get(self, what: str) -> Any:
        status, said = self.server.call("GET", f"/wsm/v1/{what}")
        return said if status == 200 else {"open": False, "text": f"{status}: restart vLLM"}


def play(campaign: Campaign, runs: int) -> list[str]:
    """Return the promises that were broken in so many runs; :attr:`Campaign.counts` is what was seen."""
    campaign.learn()
    with campaign.asked():
        for number, befalls in enumerate(campaign.befalls(runs)):
            before = len(campaign.broken)
            outcome = campaign.run(number, befalls)
            said = f"run {number + 1} of {runs}, {outcome}", *campaign.broken[before:]
            print(*said, sep="\n", flush=True)  # noqa: T201 - progress
    campaign.audit()
    return campaign.broken


def play_on_servers(
    place: Path, runs: int, seed: int, dtype: str, end: str | None = None
) -> tuple[list[str], Counter[str]]:
    """Play on servers of its own, one after the other; return what was broken, and what was counted."""
    directory = place / "models"
    write_versions(directory)
    memories = itertools.cycle(({}, {"memory_bytes": 0}, {"keep_previous": True}))
    with contextlib.ExitStack() as undo:

        def start(model: Path) -> VllmServer:
            home = Path(tempfile.mkdtemp(dir=place))
            memory = next(memories)
            options = {"answer_s": ANSWER_S, "committed": str(place / COMMITTED), **memory}
            flags = (*EXTENSION, "--dtype", dtype, "--additional-config", json.dumps({"wsm": options}))
            return undo.enter_context(VllmServer(home, model, *flags, plugins="wsm,other"))

        campaign = Campaign(directory, start(directory / "A"), seed, start=start, end=end)
        return play(campaign, runs), campaign.counts


def main(runs: int, seed: int, end: str | None = None) -> int:
    ends = 0
    for number, (dtype, part) in enumerate(zip(DTYPES, ((runs + 1) // 2, runs // 2), strict=True)):
        with tempfile.TemporaryDirectory() as place:
            broken, counts = play_on_servers(Path(place), part, len(DTYPES) * seed + number, dtype, end)
        seen = [f"{count:7} {what}" for what, count in sorted(counts.items())]
        said = f"{len(broken)} promises broken in {part} runs with {dtype}"
        print(*seen, *broken, said, sep="\n", flush=True)  # noqa: T201 - what it is called for
        ends |= bool(broken)
    return ends


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
