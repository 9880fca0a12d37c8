"""Any value at every door: it is refused by the name of what it was given as, or it does no harm.

The doors are found, not listed: the parameters of what the public packages export, and of its methods; the
fields of HTTP's bodies, by its OpenAPI document; the options of the command line, by click. So a new one is
drawn without a change here. No harm: nothing is raised but wsm's own errors, which have a code
and name the keyword; words, weights and version are as before; and ``poll()`` goes on.
"""

from __future__ import annotations

import collections.abc
import contextlib
import enum
import functools
import importlib
import inspect
import json
import math
import os
import re
import sys
import time
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import wsm
from tests.incident import incident
from wsm.actions import Action, Addition
from wsm.cli.main import wsm as command_line
from wsm.http.bodies import as_struct, object_of
from wsm.http.native.schema import BODIES
from wsm.strategies import STRATEGIES, AdoptSettings, MemoryTarget, TensorSpec
from wsm.testing import InMemoryRunner, LocalGroup, load_bytes

pytestmark = pytest.mark.timeout(600)  # half a minute of a processor, which others may have

#: wsm.testing is for tests, which see what they do wrong.
PACKAGES = ("wsm", "wsm.strategies", "wsm.actions", "wsm.http", "wsm.metrics")

#: What wsm gives, and no caller makes.
GIVEN = {
    *(
        "ActionContext",
        "Adoption",
        "ClosedHold",
        "DeltaReport",
        "GroupStatus",
        "LoadReport",
        "MooncakeReport",
    ),
    *("Offer", "OfferedTensor", "Plan", "Preview", "ProcessEnd", "PublishReport"),
    *("Receipt", "SendReport", "Sections", "ShardManifest", "SharedReport", "StepPermit", "VersionManifest"),
    *("InMemoryMemory", "load_bytes", "memory_of", "Sending", "EngineUnderTest", "RunnerContract"),
    *("Strategy", "Loaded"),
}

#: Of which a caller has the methods alone.
GIVEN_TO_BE_USED = {"Pending", "Prepared"}

#: Whose methods wsm calls, and which is polled in every step.
CALLED_BY_WSM = {"MemoryTarget", "MooncakeTransport", "TrainingNames", "PlanOptions", "Worker"}

#: Values that were taken for others, or were answered by a raw exception.
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 2**64, -(2**70), 10**5000, 0.0, 0.5, -1.0, 1e308),
    *(math.nan, math.inf, -math.inf, 1j, np.int64(3), np.float32(0.5), np.float64("nan"), np.True_),
    *(np.zeros(2), "", "a", "7", "weights", "drain", "no", "/", "\ud800", "a\0b", "x" * 5000, b"a"),
    *([], (), {}, set(), ["weights"], ["\ud800"], [None], [[]], ("a", 1), {"a": 1}, {1: 2}, {(1, 2): 3}),
    *({"a": {"b": [math.nan]}}, {"more": None}, object(), int, range(3), Path("a")),
)

_SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.binary(max_size=4)),
    st.text(st.characters(), max_size=8),
    st.sampled_from([np.int8(-1), np.float16("inf"), np.bool_(False), np.str_("a")]),
)
_KEYS = st.one_of(st.none(), st.integers(), st.text(st.characters(), max_size=4), st.tuples(st.integers()))
ANYTHING = st.recursive(_SCALARS, lambda inner: st.lists(inner) | st.dictionaries(_KEYS, inner), max_leaves=4)


def with_odd_values(test: Callable[..., None]) -> Callable[..., None]:
    """Let a test of one `value` see each of :data:`ODD`, besides what is drawn."""
    for value in ODD:
        test = example(value=value)(test)
    return test


#: Fresh values in each run, and no more than a run of all tests has time for.
DRAWN = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


class Door(NamedTuple):
    """One parameter of what a user calls."""

    owner: str
    called: Callable[..., Any]
    keyword: str
    annotation: Any
    usual: inspect.Parameter
    is_method: bool


@functools.cache
def names_of_annotations() -> dict[str, Any]:
    """Return what the annotations of wsm's modules may name."""
    found: dict[str, Any] = {**vars(typing), **vars(collections.abc)}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "wsm":
            found |= {key: value for key, value in vars(module).items() if key[:1].isupper()}
    return {**found, "Callable": collections.abc.Callable}


@functools.cache
def evaluated(annotation: Any, called: Callable[..., Any]) -> Any:
    package = called.__module__.rpartition(".")[0]
    near = [module for name, module in list(sys.modules.items()) if name.startswith(f"{package}.")]
    names = {
        **names_of_annotations(),
        **{k: v for each in near for k, v in vars(each).items()},
        **vars(sys.modules[called.__module__]),
    }
    try:
        return eval(annotation, names) if isinstance(annotation, str) else annotation  # noqa: S307 - our own sources
    except Exception:  # noqa: BLE001 - for type checkers only
        return Any


#: Asked for thousands of times, of what does not change.
parameters_of = functools.cache(lambda called: tuple(inspect.signature(called).parameters.values()))


def public_calls() -> Iterator[tuple[str, Callable[..., Any], bool]]:
    """Every function, constructor and method that the public packages export."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, types.FunctionType) and name not in GIVEN:
                yield f"{package}.{name}", value, False
            if not inspect.isclass(value) or issubclass(value, (BaseException, enum.Enum)) or name in GIVEN:
                continue
            if getattr(value, "_is_protocol", False) or inspect.isabstract(value):
                continue
            if name not in GIVEN_TO_BE_USED:
                yield f"{package}.{name}", value, False
            for method, function in vars(value).items():
                is_public = not method.startswith("_") and not method.endswith("_async")  # begun by its twin
                if isinstance(function, types.FunctionType) and is_public and name not in CALLED_BY_WSM:
                    yield f"{package}.{name}.{method}", function, True


@functools.cache
def doors() -> list[Door]:
    found = []
    for owner, called, is_method in public_calls():
        hints: dict[str, Any] = {}
        parameters = parameters_of(called)[is_method:]
        for each in parameters:
            if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) or each.annotation is each.empty:
                continue
            hints[each.name] = evaluated(each.annotation, called)
            found.append(Door(owner, called, each.name, hints[each.name], each, is_method))
    return found


@pytest.mark.slow
def test_as_many_doors_are_found_as_there_were():
    """Fewer: they are looked for in the wrong place. More is a new keyword, which is drawn already."""
    assert len(doors()) >= 480
    assert {"wsm.Controller.update", "wsm.strategies.load", "wsm.WsmConfig"} <= {
        door.owner for door in doors()
    }


def is_wrong(annotation: Any, value: Any, name: str = "") -> bool:  # noqa: PLR0911 - one for each kind
    """Whether a value is plainly none that an annotation means; False where nobody can say."""
    kind, inner = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if kind is typing.Annotated:
        return is_wrong(inner[0], value, name)
    if kind in (typing.Union, types.UnionType):
        has_choices = any(isinstance(each, type) and issubclass(each, enum.Enum) for each in inner)
        members = [each for each in inner if not (has_choices and each is str)]
        if Path in members and isinstance(value, str):
            return "\0" in value
        return all(is_wrong(each, value, name) for each in members)
    if kind is typing.Literal:
        return not isinstance(value, str) or value not in inner
    if kind in (list, tuple, set, frozenset, *(getattr(collections.abc, each) for each in _LISTS)):
        if isinstance(value, (str, bytes, int, float, complex, dict, type(None))):
            return True
        return (
            isinstance(value, (list, tuple))
            and bool(inner)
            and any(is_wrong(inner[0], each) for each in value)
        )
    if kind in (dict, collections.abc.Mapping):
        if not isinstance(value, dict):
            return not isinstance(value, collections.abc.Mapping)
        return bool(inner) and any(is_wrong(inner[0], key) or is_wrong(inner[1], value[key]) for key in value)
    if kind is collections.abc.Callable:
        return not callable(value)
    return _is_wrong_scalar(kind, value, name)


_LISTS = ("Sequence", "Collection", "Iterable", "Set")


def _is_wrong_scalar(kind: Any, value: Any, name: str) -> bool:  # noqa: PLR0911 - one for each type
    if kind is str:
        return not isinstance(value, str) or any("\ud7ff" < each < "\ue000" for each in value)
    if kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else int):
            return True
        return not -1e300 < value < 1e300 or (value < 0 and name.endswith(("_s", "_bytes", "ranks")))
    if kind is bool:
        return not isinstance(value, bool)
    if kind is type(None):
        return value is not None
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return not isinstance(value, kind) and not (
            isinstance(value, str) and value in {x.value for x in kind}
        )
    is_class = isinstance(kind, type) and kind is not Any and not getattr(kind, "_is_protocol", False)
    return is_class and not isinstance(value, kind)


#: Of a model's ten thousand tensors: a name that is no text of UTF-8 is refused where it is written.
LOOKED_AT_LATER = {("wsm.strategies.TensorSpec", "name")}


def is_choice(annotation: Any, value: Any) -> bool:
    """Whether a value is the text of a member of an enumeration that is meant, or a list of such texts."""
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return isinstance(value, str) and value in {each.value for each in annotation}
    if isinstance(value, list) and value and typing.get_origin(annotation) is collections.abc.Collection:
        return all(is_choice(typing.get_args(annotation)[0], each) for each in value)
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return is_union and any(is_choice(each, value) for each in typing.get_args(annotation))


def outcome(door: Door, value: Any, call: Callable[[], Any]) -> str | None:
    """Return what is wrong with how a call took the value; None: nothing."""
    wrong = (
        is_wrong(door.annotation, value, door.keyword) and (door.owner, door.keyword) not in LOOKED_AT_LATER
    )
    try:
        made = call()
        if callable(close := getattr(made, "close", None)):
            close()
    except wsm.InternalError as error:
        return f"InternalError: {error}"
    except wsm.WsmError as error:
        alone = isinstance(error, wsm.BadInputError) and error.code != "tags-contradict"
        if alone and is_choice(door.annotation, value):
            return f"refused, and is one of the few things that it may be: {error}"
        named = door.keyword in str(error) or door.keyword in map(str, error.context.values())
        return None if named or not wrong else f"refused without its name: {error}"
    except Exception as error:  # noqa: BLE001 - the very thing that is looked for
        return f"{type(error).__name__}: {error}"
    return "taken" if wrong else None


def shown(value: Any) -> str:
    try:
        return repr(value)[:40]
    except ValueError:
        return "an integer of 5000 digits"


#: What is only asked whether it refuses what is plainly wrong: called in earnest, it would wait or serve.
NOT_IN_EARNEST = {
    "MooncakeTransport",
    "MooncakePublisher",
    "Keeper",
    "LocalGroup",
    "StagedVersion",
    "EngineBridge",
    "create_app",
    "Commands",
    "Client",
    "AsyncClient",
}


def good(directory: Path) -> dict[str, Any]:
    """Return what is given for every other parameter that must be there, by its name."""
    tensors = {0: {"w": np.zeros(4, np.float32)}}
    spec = TensorSpec("w", "F32", (4,))
    return {
        "address": f"ipc://{directory}/socket",
        "asked": {},
        "base_version": 1,
        "command": dict,
        "commands": "g",
        "config": wsm.WsmConfig("g", 1, deadlines=wsm.Deadlines(attach_s=0.001)),
        "digests": {0: "d"},
        "directory": directory / "away",
        "dtype": "F32",
        "into": directory,
        "kv_cache": InMemoryRunner([spec]).kv_cache,
        "label": 1,
        "name": "g",
        "names": {"a": "b"},
        "rank": 0,
        "ranks": 1,
        "request_id": "r",
        "roots": [directory],
        "runner": InMemoryRunner([spec]),
        "sections": wsm.WsmConfig("g", 1).strategy_sections(),
        "settings": AdoptSettings(directory, [directory]),
        "shape": (4,),
        "shards": tensors,
        "source": directory / "away",
        "specs": [spec],
        "strategy": STRATEGIES["ipc_snapshot"],
        "state": tensors[0],
        "states": tensors,
        "takes": wsm.Loaded,
        "target": MemoryTarget([spec]),
        "tensors": tensors[0],
        "url": "http://127.0.0.1:1",
        "version": 1,
        "work": dict,
        "world_size": 1,
    }


def hollow(annotation: Any, called: Callable[..., Any]) -> Any:
    """Return a bare object of an annotation's class, for what is never looked at."""
    kind = evaluated(annotation, called)
    return (
        kind.__new__(kind)
        if inspect.isclass(kind) and kind is not Any and not inspect.isabstract(kind)
        else None
    )


def tried(door: Door, value: Any, given_for: dict[str, Any]) -> str | None:
    """Return what is wrong with how a door takes a value; of a method, what it does before it is anyone's."""
    last = door.owner.rpartition(".")[2]
    waits = door.keyword == "wait_s"  # in earnest, for as long as was drawn
    if (door.is_method or last in NOT_IN_EARNEST or waits) and not is_wrong(
        door.annotation, value, door.keyword
    ):
        return None
    arguments = {
        each.name: given_for[each.name] if each.name in given_for else hollow(each.annotation, door.called)
        for each in parameters_of(door.called)[door.is_method :]
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    }
    if last == "EngineBridge":
        arguments["config"] = wsm.EngineWordsConfig()
    arguments[door.keyword] = value
    if not door.is_method:
        return outcome(door, value, lambda: door.called(**arguments))
    package, owner, _ = door.owner.rsplit(".", 2)
    kind = getattr(importlib.import_module(package), owner)

    def call() -> None:
        made = door.called(kind.__new__(kind), **arguments)
        if inspect.iscoroutine(made):
            made.send(None)

    return outcome(door, value, call)


@pytest.mark.slow
@DRAWN
@given(value=ANYTHING)
@with_odd_values
def test_what_is_called_refuses_by_name_what_is_not_as_annotated(value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given_for = good(tmp_path)
    found = [
        f"{door.owner}({door.keyword}={shown(value)}): {problem[:160]}"
        for door in doors()
        if (problem := tried(door, value, given_for)) is not None
    ]
    assert not found, "\n".join(found)


class Graphs:
    """Captured graphs of an engine that has some."""

    def __init__(self) -> None:
        self.are_captured = True

    def drop(self) -> None:
        self.are_captured = False

    def capture(self) -> None:
        self.are_captured = True

    def captured(self) -> bool:
        return self.are_captured


class Noting(Action):
    """An action of the engine's own, which says what the test wants."""

    name = "note"
    purpose = "say something"
    said: Mapping[Any, Any] = {}

    def run(self, context) -> None:
        context.facts.update(Noting.said)


class Group:
    """One rank that serves version 1, whose load and surfaces say what a test wants of them."""

    def __init__(self, directory: Path) -> None:
        self.said: Mapping[Any, Any] = {}
        self.local = LocalGroup(self._engine, directory, ranks=1, load=self._load)
        self.runner, self.worker = self.local.runners[0], self.local.workers[0]
        self.controller = wsm.Controller(self.local.config.name, directory=directory)  # can prepare
        self.local.update(1)

    def _engine(self, rank: int) -> InMemoryRunner:
        runner = InMemoryRunner([TensorSpec("w", "F32", (4,))])
        runner.graphs = Graphs()
        runner.additions = [Addition(None, Noting)]
        return runner

    def _load(self, context, target) -> Any:
        honest = load_bytes(context, target)
        return {**honest.facts(), "version": context.version or "2", **self.said}

    def looks(self) -> tuple[Any, ...]:
        """Return what must be as before where nothing was to be done: words, weights, version."""
        segment = self.local.segment
        layout = segment.layout
        words = (layout.command, layout.committed, *layout.step, *layout.status)
        weights = bytes(self.runner.weights.readable("w")) if list(self.runner.weights.held()) else None
        return [segment.words[word] for word in words], weights, self.worker.version

    def end(self, begun: Any) -> Any:
        """Poll until a command is over, or prepared; return its receipt."""
        if isinstance(begun, wsm.Pending):
            return self.local.run(begun)
        while not begun._verdict.prepared.done():
            self.worker.poll()
        self.worker.poll()
        return begun.wait()

    def serve_again(self) -> None:
        """Let the group serve version 1, whatever it holds."""
        if self.controller.status().decision_left_s is not None:
            self.end(self.controller.begin_abort())
        patience = time.monotonic() + 60
        while not self.controller.status().over and time.monotonic() < patience:
            self.worker.poll()  # a commit that the engine spoiled is tried until it is done
        self.end(self.controller.begin_release(force=True, owner="any")) if self.is_held() else None
        if not self.controller.status().serving or self.worker.version != "1":
            self.end(self.controller.begin_update(1, wait_s=10))  # the last one gives its role back
        assert self.local.step() == "1"

    def is_held(self) -> bool:
        return self.controller.status().hold is not None


@pytest.fixture
def serving(tmp_path):
    group = Group(tmp_path)
    yield group
    group.controller.close()
    group.local.close()


_BEGUN = {"wsm.Controller." + name for name in vars(wsm.Controller) if name.startswith("begin_")}


def commanded(group: Group, door: Door, value: Any) -> str | None:
    """Give a command with one keyword; return what is wrong with that, and leave the group serving."""
    usual = {} if "release" in door.owner or "clear" in door.owner or "hold" in door.owner else {"version": 2}
    usual = {"request_id": "r"} if "commit" in door.owner or "abort" in door.owner else usual
    before, begun = group.looks(), []

    def call() -> None:
        begun.append(door.called(group.controller, **{**usual, door.keyword: value}))
        group.end(begun[0])

    problem = outcome(door, value, call)
    if not begun and group.looks() != before:
        problem = f"{problem}: refused, and words or weights have changed"
    elif begun and group.looks() != before:
        if isinstance(begun[0], wsm.Prepared):
            with contextlib.suppress(wsm.CommandTimeoutError):  # so ends what its caller takes back
                group.end(begun[0].begin_abort())
        if (
            group.worker.version is None
            and "clear" not in door.owner
            and not isinstance(begun[0], wsm.Prepared)
            and door.keyword not in ("deadline_s", "restore_s")  # one that is legal may pass within the load
        ):
            problem = problem or "a command that was begun has cost the weights"
        group.serve_again()
    return problem


@pytest.mark.slow
@incident("vllm-omni#4473")
@DRAWN
@given(value=ANYTHING)
@with_odd_values
def test_a_keyword_of_a_command_is_refused_with_nothing_written_or_its_command_is_carried_out(value, serving):
    found = [
        f"{door.owner}({door.keyword}={shown(value)}): {problem[:160]}"
        for door in doors()
        if door.owner in _BEGUN and (problem := commanded(serving, door, value)) is not None
    ]
    assert not found, "\n".join(found)


def carried_out(group: Group, *, of: str, **keywords: Any) -> str | None:
    """Update the group, and see how that ends; afterwards it can serve."""
    try:
        group.local.update(2, force=True, **keywords)
        problem = None
    except wsm.RankFailedError as error:
        raw = not re.fullmatch("[a-z-]+", error.context["error"])
        problem = f"{error.context['error']}, not named" if raw or of not in str(error) else None
    except Exception as error:  # noqa: BLE001 - the very thing that is looked for
        problem = f"{type(error).__name__}: {error}"
    group.said, Noting.said = {}, {}
    group.serve_again()
    return problem


FACTS = ("bytes", "digest", "more", "note", "kv_policy", *inspect.signature(wsm.Loaded).parameters)


@pytest.mark.slow
@DRAWN
@given(value=ANYTHING, fact=st.sampled_from(FACTS))
@example(value=np.int64(16), fact="bytes")
@example(value="16", fact="bytes")
@example(value={(1, 2): 3}, fact="note")
@example(value=None, fact="more")
@example(value=3, fact="not_loaded")
@example(value=None, fact="kept_tensors")
@example(value="d" * 20_000, fact="digest")
@example(value=10**5000, fact="note")
def test_what_a_load_or_an_action_says_is_its_failure_by_name_or_in_the_receipt(value, fact, serving):
    serving.said = {fact: value}
    found = {"load": carried_out(serving, of=fact)}
    Noting.said = {fact: value}
    found["action"] = carried_out(serving, of=fact)
    assert found == {"load": None, "action": None}


SURFACES = {
    "graphs": ("captured",),
    "kv_cache": ("release", "rebuild", "allocated_bytes", "keep_all", "forget_idle"),
    "memory": ("resident_bytes",),
    "requests": ("in_flight", "abort_all", "freeze", "hold", "set_aside", "abort_set_aside", "is_admitting"),
    "weights": ("release",),
}


def twin(answer: Any) -> Any:
    """Return what equals an answer, as an engine that counts with numpy gives it."""
    return np.bool_(answer) if isinstance(answer, bool) else np.int64(answer)


@pytest.mark.slow_but
@pytest.mark.parametrize(
    ("surface", "method"), [(name, each) for name in SURFACES for each in SURFACES[name]]
)
@pytest.mark.parametrize("as_given", [int, twin], ids=["a number", "numpy's"])
def test_a_surface_may_answer_with_a_number_of_its_own_kind(surface, method, as_given, serving, monkeypatch):
    """A count of graphs, or numpy's truth, faulted the whole group."""
    owner = getattr(serving.runner, surface)
    honest = getattr(owner, method)
    monkeypatch.setattr(type(owner), method, lambda _self, *args: as_given(honest(*args)))
    serving.local.clear()
    assert serving.local.update(1, hot=False).version == "1"
    serving.local.update(2, hot=True)
    serving.local.update(1)
    assert serving.local.step() == "1"


@pytest.mark.slow
@settings(DRAWN, max_examples=15)
@given(value=ANYTHING, place=st.sampled_from([(name, each) for name in SURFACES for each in SURFACES[name]]))
@example(value=None, place=("kv_cache", "release"))
@example(value=10**5000, place=("memory", "resident_bytes"))
def test_whatever_a_surface_answers_poll_goes_on_and_a_mended_engine_serves(value, place, serving):
    surface, method = place
    owner = getattr(serving.runner, surface)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(owner), method, lambda _self, *_args: value)
        for command in (serving.local.clear, lambda **k: serving.local.update(1, **k)):
            with contextlib.suppress(wsm.WsmError):
                command(deadline_s=2, settle_s=1)
    for _ in range(3):
        with contextlib.suppress(wsm.WsmError):
            serving.local.clear()
    serving.serve_again()


FIELDS = [(verb, field) for verb, body in BODIES.items() for field in body.__struct_fields__]


def body_problem(verb: str, field: str, text: str) -> str | None:
    try:
        as_struct(object_of(f'{{"{field}": {text}}}'.encode()), BODIES[verb]).keywords()
    except wsm.BadInputError as error:
        return None if field in str(error) or "body" in str(error) else f"{verb}: {field}: {error}"
    except Exception as error:  # noqa: BLE001 - the very thing that is looked for
        return f"{verb}: {field}: {type(error).__name__}: {error}"
    return None


@pytest.mark.slow
@DRAWN
@given(value=ANYTHING)
@with_odd_values
def test_a_field_of_a_body_is_refused_by_its_name_or_read(value):
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        return  # no body can hold it
    found = [problem for verb, field in FIELDS if (problem := body_problem(verb, field, text)) is not None]
    assert not found, "\n".join(found)
    assert len(FIELDS) >= 60


def options(
    command: click.Command, name: str = "wsm"
) -> Iterator[tuple[str, click.Command, click.Parameter]]:
    """Every option and argument of the command line."""
    for each in command.params:
        yield name, command, each
    if isinstance(command, click.Group):
        for inner in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), inner)
            if found is not None:
                yield from options(found, f"{name} {inner}")


OPTIONS = list(options(command_line))


@DRAWN
@given(
    value=st.binary(max_size=12).map(lambda typed: os.fsdecode(typed.replace(b"\0", b"")))
)  # as arguments are
@example(value="")
@example(value="\udcff")
@example(value="nan")
@example(value="-1")
@example(value="9" * 5000)
def test_an_option_of_the_command_line_is_refused_by_its_name_or_read(value):
    found = []
    for name, command, option in OPTIONS:
        given = value if option.nargs == 1 and not option.multiple else [value]
        try:
            option.process_value(click.Context(command, info_name=name), given)
        except (click.UsageError, click.exceptions.Exit, wsm.WsmError):
            continue
        except Exception as error:  # noqa: BLE001 - the very thing that is looked for
            found.append(f"{name} {option.opts}: {type(error).__name__}: {error}")
    assert not found, "\n".join(found)
    assert len(OPTIONS) >= 150
