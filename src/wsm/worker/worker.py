"""One rank of a group, embedded in the event loop of an inference engine.

The loop asks ``poll()`` what it may do and runs its steps inside ``step()``; everything else that a
weight change needs happens inside ``poll()``, one action per call. This module holds the path that is
taken while the group serves, and the life of the attachment; the rest is in :mod:`._loop`.

While the group serves, ``poll()`` costs one load of the command word (and one of each peer's step word,
where ranks follow each other or one may break), ``step()`` one store. Whatever differs from the last
quiet look goes to the slow path, :meth:`wsm.worker._loop.RankLoop.turn`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, final

from wsm.actions.base import LoadFunction, Plans
from wsm.actions.options import PlanOptions
from wsm.actions.plan import derive_plans
from wsm.actions.surfaces import BareRunner, completed
from wsm.clock import Clock, SystemClock
from wsm.config import ConfigurationError, WsmConfig, load_config
from wsm.errors import RefusedError
from wsm.journal.entry import Journal
from wsm.signals.errors import SegmentClosedError
from wsm.signals.segment import SegmentImage
from wsm.signals.waiting import Bell
from wsm.states.machine import LifeCycleView
from wsm.states.phases import Phase, Todo
from wsm.states.vocabulary import KVState, WeightState
from wsm.states.words import MAX_STEP
from wsm.status import Explanation, GroupStatus, explain, read_facts
from wsm.typed import CountFrom0, Wait, typed
from wsm.worker._attachment import Attachment
from wsm.worker._command import Work
from wsm.worker._loop import IDLE_WAIT_S
from wsm.worker.errors import NotServingError

#: A command word that no controller ever writes: nothing is quiet.
_NEVER = -1

#: From this number of a step on words are looked at one by one, up to where numbers begin anew: there a peer
#: that is a step ahead has the smaller word.
_LAST_QUIET_STEP = MAX_STEP - 8


class Turn(enum.Enum):
    """What the embedding loop may do next."""

    SERVE = "serve"
    JOIN = "join"
    HOLD = "hold"


SERVE = Turn.SERVE
JOIN = Turn.JOIN
HOLD = Turn.HOLD

#: Seconds between two looks at FastDeploy's words. A look takes the interpreter from the loop, up to half a
#: millisecond; an engine that asks for other weights does not notice the wait.
_ENGINE_WORDS_S = 0.02

#: While a command goes on beside the loop, which steps if it has work.
_BESIDE = frozenset({Phase.STAGING, Phase.STAGED})

_TURNS = {Todo.SERVE: SERVE, Todo.JOIN: JOIN}


@final
@typed
class Worker:
    """One rank of a group, in this process.

    Not safe for threads: the thread of the event loop makes every call.

    Parameters
    ----------
    config : WsmConfig
        The group's configuration.
    runner : BareRunner
        The engine's surfaces; those that it does not name are taken for ``None``.
    rank : int
        This process' rank, 0 to ``config.ranks - 1``.
    plan_options : PlanOptions or None
        None reads them off the runner's surfaces. What they do not say is the configuration's.
    load : callable or None
        ``load(context, target) -> wsm.Loaded``, or a mapping with the same keys; None takes the configured
        strategy.
    clock : Clock or None
        For deadlines and for the seconds in receipts; None is the host's.
    meanwhile : callable or None
        For a test that plays all processes of a group in one thread: ``meanwhile(seconds)`` is called where
        this rank would wait for a word, and no thread watches over it or over commands whose controllers do
        not come back. None: it waits, and is watched over.
    directory : path or None
        Where segment and FastDeploy's words lie; the user's private directory and ``/dev/shm`` by default.
    answers_engine_words : bool
        Whether rank 0 obeys and answers the words of ``engine_words``, in a thread of its own; False where
        another process of the group runs a :class:`wsm.EngineBridge`.

    Raises
    ------
    ConfigurationError
        If the configuration does not fit the segment that is there.
    BadInputError
        If `plan_options` promise what the runner cannot do, or contradict the configuration.
    BadInputError, RefusedError
        If the configured strategy is none, or cannot be had.
    NoRoomError
        If it is to collect versions in host memory (``rsync: {check: whole}``), and they do not fit.
    GroupError
        If no segment appeared in time. Blocks that long at most.
    SlotTakenError, EpochUsedError
        If another process is, or was in this epoch, this rank.
    """

    def __init__(
        self,
        config: WsmConfig,
        runner: BareRunner,
        *,
        rank: CountFrom0,
        plan_options: PlanOptions | None = None,
        load: LoadFunction | None = None,
        clock: Clock | None = None,
        meanwhile: Callable[[float], object] | None = None,
        directory: str | Path | None = None,
        answers_engine_words: bool = True,
    ) -> None:
        # What loads comes with the first rank of a process, and not with the first command.
        from wsm.worker.loading import Sources, keeping_tensors  # noqa: PLC0415 - no other process needs it

        if rank >= config.ranks:
            raise ConfigurationError(
                where="rank",
                problem=f"{rank} is none of {config.ranks} ranks",
                fix=f"give 0 to {config.ranks - 1}",
            )
        runner = completed(runner)
        options = (plan_options or PlanOptions.from_runner(runner)).configured(
            shut_down_groups=config.shut_down_groups,
            deadlines=config.deadlines.action_s,
            releases_cache=config.releases_cache,
        )
        options.require_offered(runner)
        self._plans = plans = derive_plans(keeping_tensors(options, config.journal_directory, rank))
        self._sources = None
        if load is None:
            self._sources = sources = Sources(config)
            sources.require_room(runner)
            work = Work(runner, plans, sources.load, sources.find, sources.require, pins=sources.pins)
        else:
            work = Work(runner, plans, load)
        with ExitStack() as undo:
            self._attachment = Attachment(
                config, rank, directory, work=work, clock=clock or SystemClock(), meanwhile=meanwhile
            )
            undo.callback(self._attachment.close, adopted=False)  # others live in it
            self._engine_words = undo.enter_context(ExitStack())
            if config.engine_words.suffixes and answers_engine_words and rank == 0:
                self._answer_engine_words(config, directory)
            undo.pop_all()
        self._loop = self._attachment.loop
        self._words = words = self._loop.words
        self._rank = rank
        self._bell: Bell | None = None
        self._memory: memoryview[int] | _ClosedWords = words.words
        self._command = words.command
        self._own_step = words.step
        self._followed = words.peer_steps if config.follow else ()
        self._quiet = _NEVER
        self._permit = StepPermit(rank, words.words, words.step, self._open_step_slowly, self._break_step)

    @classmethod
    def from_config(cls, path: str | Path, runner: BareRunner, *, rank: int, **options: Any) -> Worker:
        """Read the configuration file, then as the constructor."""
        return cls(load_config(path), runner, rank=rank, **options)

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self._rank

    @property
    def plans(self) -> Plans:
        """What this rank does for each command; an action of theirs is run by the loop, or inside one."""
        return self._plans

    @property
    def version(self) -> str | None:
        """The committed version that this rank holds; None while it holds none."""
        return self._loop.version

    @property
    def weights(self) -> WeightState:
        """Where the weights are."""
        return self._loop.life.weights

    @property
    def kv(self) -> KVState:
        """Where the KV cache is."""
        return self._loop.life.kv

    @property
    def life_cycle(self) -> LifeCycleView:
        """The live machines as they are now: where each is, its edges, and the last transitions."""
        return self._loop.life.view()

    @property
    def epoch(self) -> int:
        """The epoch that this rank has joined; a greater one: a peer was replaced, reconnect to all."""
        return self._loop.state.epoch

    @property
    def finished(self) -> int:
        """The number of the last command that is over on this rank, in this epoch."""
        return self._loop.state.done

    def finds(self, version: str) -> bool:
        """Whether this rank's source has a version now; true of a stream, which cannot be looked at. Blocks.

        Files are opened, and nothing is loaded.
        """
        return self._sources is None or self._sources.have(self._rank, version)

    @property
    def journal(self) -> Journal:
        """The bounded, replayable record of what this rank did."""
        return self._loop.recorder.journal

    def poll(self, *, block: bool = False) -> Turn:
        """Say what the loop may do, after doing what a weight change needs now.

        Parameters
        ----------
        block : bool
            Stay inside until a step may be run. Otherwise one call runs at most one action, or waits at
            most 1 ms.

        Returns
        -------
        Turn
            SERVE: run a step if there is work. JOIN: other ranks are in the next step already, run it, with a
            dummy batch if there is no work. HOLD: run nothing, call ``poll()`` again.

        Raises
        ------
        RefusedError
            If a step is open and there is something to do (code ``step-open``); it is left for the next call.
        InternalError
            If the words contradict the rules; the group must be stopped.
        """
        memory = self._memory
        if memory[self._command] == self._quiet:
            own = self._permit.word
            for index in self._followed:
                if memory[index] > own:
                    break
            else:
                return SERVE
        turn = self._turn()
        while block and turn is HOLD:
            turn = self._turn()
        return turn

    def step(self) -> StepPermit:
        """Return the permit of the next step, to be entered: ``with worker.step() as permit:``.

        Everything collective of one iteration of the loop belongs inside: the forward pass and the
        scheduler's own collectives. Collective: once one rank has entered, every rank will. A step that
        raises leaves this rank BROKEN, since it is unknown which of its collectives were run.

        Raises
        ------
        NotServingError
            On entering, if this rank may not step now, or a step is open.
        """
        return self._permit

    @typed
    def wait(self, timeout_s: Wait) -> bool:
        """Wait for a command, for a loop that has no work; blocks up to `timeout_s` seconds.

        Returns
        -------
        bool
            Whether a word of the group changed, or there is something to do already. Entering a step wakes
            no peer, so a rank that follows others should poll every millisecond or so. While a hot update is
            staged it returns within a millisecond.
        """
        read = self._words.read()  # first: a command that arrives now must not be taken for an old one
        if self._memory[self._command] != self._quiet:
            if self._loop.state.phase not in _BESIDE:
                return True
            # Not on the words: peers that step change them, and a loop that comes straight back lets the
            # interpreter go only for moments that the staging thread misses on a busy machine.
            self._words.pause(min(timeout_s, IDLE_WAIT_S))
            return False
        return self._words.wait(read, timeout_s)

    def beat(self) -> None:
        """Show that this rank is here, where :meth:`poll` is on its quiet path."""
        self._words.beat()

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a command arrives, for selectors, asyncio and ZMQ.

        Wait on it only while ``poll()`` returns SERVE and there is no work; ``poll()`` makes it quiet again.
        It tells of commands, not of peers: a rank that follows others waits in short turns (:meth:`wait`).
        """
        if self._bell is None:
            self._bell = Bell(self._words.segment, seen=self._quiet, on_ring=self._rung)
        return self._bell.fileno()

    def explain(self) -> Explanation:
        """Say why this rank's group does or does not serve, as ``wsm explain`` does. Never raises."""
        name = self._words.segment.name
        try:
            segment = self._words.segment
            return explain(read_facts(name, SegmentImage.of(segment), lock_file=segment.lock_file))
        except Exception as error:  # noqa: BLE001 - an engine asks in its darkest hour: it gets an answer
            return explain(GroupStatus(name, problem=f"{type(error).__name__}: {error}"))

    def close(self) -> None:
        """Leave the group's segment. Idempotent. The group cannot step without this rank."""
        self._quiet = _NEVER
        self._memory = _ClosedWords(str(self._words.segment.path))
        if self._bell is not None:
            self._bell.close()
            self._bell = None
        self._attachment.close()
        self._engine_words.close()  # after this rank has left: a command of an engine's ends without it
        if self._sources is not None:
            self._sources.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer_engine_words(self, config: WsmConfig, directory: str | Path | None) -> None:
        from wsm.controller import Controller, EngineBridge  # noqa: PLC0415 - for ranks that obey the words

        controller = Controller(config.name, directory=directory, journal_directory=config.journal_directory)
        self._engine_words.enter_context(controller)
        bridge = EngineBridge(controller, config.engine_words, directory=directory, poll_s=_ENGINE_WORDS_S)
        self._engine_words.enter_context(bridge.start())

    def _turn(self) -> Turn:
        """Leave the quiet path; find out whether it may be taken again."""
        if self._permit.is_open:
            step = self._permit.step
            raise RefusedError(
                f"poll() was called on rank {self._rank} inside step {step}, where no command may be carried "
                "out, since weights could change under what is computed; poll between steps, behind the "
                "block of 'with worker.step()'",
                code="step-open",
                rank=self._rank,
                step=step,
            )
        rang = self._bell is not None and self._bell.clear()
        self._quiet = _NEVER
        self._permit.end_simple_steps(self._loop.stepped_to)
        seen = self._memory[self._command]
        todo = self._loop.turn()
        idle = self._loop.state.phase is Phase.IDLE
        if idle and todo is Todo.SERVE:
            self._permit.word = self._memory[self._own_step]
            self._quiet = seen if self._permit.word & MAX_STEP < _LAST_QUIET_STEP else _NEVER
            if self._bell is not None and self._bell.is_ringing():
                self._quiet = _NEVER
        if rang or (idle and todo is Todo.WAIT):
            self._attachment.check(now=rang)
        return _TURNS.get(todo, HOLD)

    def _rung(self) -> None:
        """Let the next poll() look, and silence the bell; called by the bell's thread after it rang."""
        self._quiet = _NEVER

    def _open_step_slowly(self) -> OpenedStep:
        said_so = self._permit.end_simple_steps(self._loop.stepped_to)
        word, version = self._loop.enter_step(said_so=said_so)
        if word & MAX_STEP >= _LAST_QUIET_STEP:
            self._quiet = _NEVER  # a peer's number may begin anew before this rank's does
        content = self._loop.reader.resident.weights.get("content_digest")
        return OpenedStep(word, self._loop.state.step, version, content, self._quiet != _NEVER)

    def _break_step(self, error: BaseException) -> None:
        self._quiet = _NEVER
        self._permit.end_simple_steps(self._loop.stepped_to)
        self._loop.broke_step(error)
        # No rank will get out of that step.
        self._attachment.watchdog.interrupt(f"step {self._loop.state.step} raised here")


class _ClosedWords:
    """What is left of a segment's words once this rank has left it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getitem__(self, _index: int) -> int:
        raise SegmentClosedError(path=self._path)


class OpenedStep(NamedTuple):
    """A step that was opened the slow way.

    Parameters
    ----------
    word : int
        This rank's step word, as it was stored.
    step : int
        The number of the step in this epoch, counted without end.
    version : str
        The version that makes the step.
    content_digest : str or None
        Of that version, where its label has meant other content before.
    simple : bool
        Whether the next one may be opened the quick way.
    """

    word: int
    step: int
    version: str
    content_digest: str | None
    simple: bool


@final
class StepPermit:
    """The context manager of a worker's steps, and the right to compute inside them.

    One object serves all steps of a worker, one after the other.

    Attributes
    ----------
    rank : int
        Whose.
    version : str
        The version that makes every token of this step.
    content_digest : str or None
        Of that version, where its label has meant other content before; None: the label says which it is.
    word : int
        This rank's step word, as it was stored last.
    is_open : bool
        Whether the step is open.
    """

    __slots__ = (
        "_break",
        "_memory",
        "_open_slowly",
        "_own_word",
        "_simple_until",
        "_steps_before",
        "content_digest",
        "is_open",
        "rank",
        "version",
        "word",
    )

    def __init__(
        self,
        rank: int,
        memory: memoryview[int],
        own_word: int,
        open_slowly: Callable[[], OpenedStep],
        break_step: Callable[[BaseException], None],
    ) -> None:
        self.rank = rank
        self.version = ""
        self.content_digest: str | None = None
        self._memory = memory
        self._own_word = own_word
        self._open_slowly = open_slowly
        self._break = break_step
        self.is_open = False
        self.word = 0
        self._simple_until = 0
        self._steps_before = 0  # what the number of a step is more than that in the word

    @property
    def step(self) -> int:
        """The number of the step in this epoch, counted without end."""
        return self._steps_before + (self.word & MAX_STEP)

    def check(self) -> None:
        """Assert that a step is open.

        Raises
        ------
        RefusedError
            If the ``with`` block has been left.
        """
        if not self.is_open:
            raise RefusedError(
                f"the permit of step {self.step} on rank {self.rank} has ended; compute inside 'with "
                "worker.step() as permit:' and keep no permit beyond it",
                code="permit-expired",
                rank=self.rank,
                step=self.step,
            )

    def end_simple_steps(self, stepped_to: Callable[[int], None]) -> bool:
        """Let the driver open the next step, after it was told the last one that was opened without it.

        Returns
        -------
        bool
            Whether steps could be opened without it until now.
        """
        if not self._simple_until:
            return False
        stepped_to(self.step)
        self._simple_until = 0
        return True

    def __enter__(self) -> StepPermit:
        """Store RUNNING; everything collective of the step comes after it."""
        if self.is_open:
            raise NotServingError(rank=self.rank, why=f"step {self.step} is open")
        word = self.word + 1
        if word < self._simple_until:
            self.word = self._memory[self._own_word] = word
        else:
            self.word, step, self.version, self.content_digest, simple = self._open_slowly()
            number = self.word & MAX_STEP
            self._steps_before = step - number
            # Beyond its last step number a word would run over into the field next to it.
            self._simple_until = self.word - number + _LAST_QUIET_STEP if simple else 0
        self.is_open = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the step; store BROKEN if it raised."""
        self.is_open = False
        if error is not None:
            self._break(error)
