"""Who may import whom, and who may import paddle: read off the source of every module.

The direction is the design's: errors, clock, log, shared directories <- states <- journal <- signals,
actions, strategies <- config, command, report, receipt <- worker, controller <- cli.
Nothing of wsm imports the examples.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests import sources
from wsm.shared_directory import SHARED_MEMORY

SOURCE = sources.SOURCE

#: What each part may import from wsm, apart from itself.
FOUNDATION = {
    "errors",
    "clock",
    "labels",
    "log",
    "named",
    "ending",
    "own_descriptor",
    "payload",
    "printable",
    "shared_directory",
    "typed",
}
CORE = FOUNDATION | {"states.vocabulary"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": {"printable"},
    "named": set(),
    "clock": set(),
    "labels": {"errors"},
    "log": {"printable"},
    "own_descriptor": {"errors"},
    "shared_directory": {"errors", "own_descriptor"},
    "ending": set(),
    "states": FOUNDATION,
    "journal": FOUNDATION | {"states"},
    "signals": FOUNDATION | {"states", "journal"},
    "strategies": CORE | {"config_reading", "states.fleet"},
    "actions": CORE
    | {"states.plan_key"}
    | {
        f"strategies.{name}"
        for name in ("tensor", "digest", "transposing", "dtype_names", "checkpoint_models")
    },
    "torch": CORE | {"actions", "strategies"},
    "vllm": FOUNDATION
    | {"actions.backends", "states", "strategies", "http", "fleet", "receipt"}
    | {"journal", "metrics", "status", "committed_record", "signals.presence"},
    "config": FOUNDATION | {"config_reading", "states", "signals", "actions", "strategies"},
    "config_reading": FOUNDATION,
    "printable": set(),
    "payload": {"errors", "typed"},
    "typed": {"errors"},
    "command": CORE | {"states.holding"},
    "committed_record": FOUNDATION | {"states.holding", "states.words", "signals", "command"},
    "status": FOUNDATION | {"states", "journal", "signals", "command", "committed_record"},
    "receipt": CORE | {"states.holding", "command"},
}
#: What each package of strategies may import from the others; the modules beside them are open to all but
#: those that put strategies together.
STRATEGIES: dict[str, set[str]] = {
    "applier": {"files"},
    "files": set(),
    "trainer": {"files"},
    "adopt": {"files", "snapshot", "trainer", "transports"},
    "snapshot": {"applier", "files", "trainer"},
    "ipc": {"applier", "files", "snapshot", "trainer"},
    "buckets": {"applier", "files", "ipc", "trainer"},
    "transports": {"applier", "files", "trainer"},
    "mooncake": {"applier", "files", "trainer", "transports"},
    "delta": {"applier", "files", "snapshot", "trainer"},
}
#: They put strategies together; no strategy may know them.
STRATEGIES_TOGETHER = {"registry", "load", "inventory"}
SHELLS = {"traces", "worker", "controller", "group_segment", "testing"}
EVERYTHING_BELOW_THE_SHELLS = FOUNDATION | {
    "states",
    "journal",
    "signals",
    "actions",
    "strategies",
    "config",
    "config_reading",
    "command",
    "committed_record",
    "status",
    "receipt",
}
#: Each may import those before it; the command line checks what vLLM is told before vLLM starts.
APPLICATIONS = ("metrics", "fastdeploy", "http", "fleet", "vllm.options", "cli", "__main__")

#: Parts whose modules may import paddle when they are imported. All others import it inside functions.
MAY_NEED_PADDLE = ("actions.backends",)

#: Strategies that may need paddle, also inside functions only.
FOREIGN_HEAVY = ("paddle", "torch", "mooncake", "zmq")

#: The part that is imported only by an engine of torch.
MAY_NEED_TORCH = "torch"

#: What other packages reach by the names in the registry, and in wsm.strategies, alone.
NAMED_ONLY = ("strategies.mooncake", "strategies.delta")

#: The module that is imported only once a trainer or a rank streams buckets.
MAY_NEED_ZMQ = "strategies.buckets.channel"


def modules() -> Sequence[tuple[str, ast.Module]]:
    """Return the modules by their names inside wsm; that of wsm itself is empty."""
    return [(name.removeprefix("wsm").lstrip("."), tree) for name, tree in sources.modules().items()]


@functools.cache
def imported(tree: ast.Module) -> set[str]:
    """Names of all modules that `tree` imports, anywhere in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}: say where it comes from"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def imported_at_once(tree: ast.Module) -> set[str]:
    """Names of the modules that importing `tree` imports too: those outside functions."""
    outside = ast.Module(
        body=[
            node
            for node in tree.body
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ],
        type_ignores=[],
    )
    return imported(outside)


def own_part(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def allowed_for(part: str) -> set[str]:
    if part in MAY_IMPORT:
        return MAY_IMPORT[part] | {part}
    if part in SHELLS:
        return EVERYTHING_BELOW_THE_SHELLS | SHELLS
    if part in APPLICATIONS:
        below = set(APPLICATIONS[: APPLICATIONS.index(part) + 1])
        return EVERYTHING_BELOW_THE_SHELLS | SHELLS | below
    pytest.fail(f"wsm.{part} is no part that the design knows; give it a place in tests/test_layering.py")


def is_within(name: str, parts: set[str]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def known_modules() -> set[str]:
    return {name for name, _ in modules()}


@pytest.mark.slow
def test_the_check_sees_the_whole_library() -> None:
    assert {"errors", "states.vocabulary", "states.words", "actions.base"} <= known_modules()


def test_imports_follow_the_direction_of_the_design() -> None:
    existing = known_modules()
    wrong = []
    for module, tree in modules():
        if not module:  # wsm/__init__.py collects the public names
            continue
        allowed = allowed_for(own_part(module))
        targets = {name.removeprefix("wsm.") for name in imported(tree) if name.startswith("wsm.")}
        wrong += [
            f"wsm.{module} imports wsm.{target}"
            for target in sorted(targets & existing)
            if not is_within(target, allowed)
        ]
    assert not wrong


def test_nothing_of_the_wheel_imports_the_examples() -> None:
    assert not [
        module for module, tree in modules() if any(own_part(name) == "examples" for name in imported(tree))
    ]


def test_mooncake_and_deltas_are_imported_where_they_are_named_and_import_public_modules() -> None:
    wrong = []
    for module, tree in modules():
        own = next((each for each in NAMED_ONLY if is_within(module, {each})), "")
        outside = ast.Module(body=[node for node in tree.body if not _is_for_types(node)], type_ignores=[])
        for name in imported(outside):
            target = name.removeprefix("wsm.")
            if own and name.startswith("wsm.") and not is_within(target, {own}) and "._" in target:
                wrong.append(f"wsm.{module} imports the private {name}")
            if any(is_within(target, {each}) for each in NAMED_ONLY if each != own):
                wrong.append(f"wsm.{module} imports {name}: name it in the registry")
    assert not wrong


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def test_strategies_know_what_is_below_them_and_never_one_another() -> None:
    packages = set(STRATEGIES)
    wrong = []
    for module, tree in modules():
        _, _, place = module.partition("strategies.")
        package = own_part(place)
        if package not in packages:
            continue
        targets = {
            own_part(name.removeprefix("wsm.strategies."))
            for name in imported(tree)
            if name.startswith("wsm.strategies.")
        }
        forbidden = (packages | STRATEGIES_TOGETHER) - STRATEGIES[package] - {package}
        wrong += [f"wsm.{module} imports wsm.strategies.{target}" for target in sorted(targets & forbidden)]
    assert not wrong
    assert {
        path.name for path in (SOURCE / "strategies").iterdir() if (path / "__init__.py").exists()
    } == packages


def test_only_the_machine_knows_the_transitions_library() -> None:
    users = {
        module
        for module, tree in modules()
        if any(own_part(name) == "transitions" for name in imported(tree))
    }
    assert users <= {"states.machine"}


def test_each_type_that_msgspec_makes_values_of_is_resolved_before() -> None:
    """Else two threads that use it first at the same time end their process."""
    wrong = []
    for module, tree in modules():
        if module == "typed":  # which resolves them, and else gives msgspec numbers and texts alone
            continue
        for node in ast.walk(tree):
            call = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if call in ("msgspec.convert", "msgspec.json.decode", "msgspec.json.Decoder"):
                given = [ast.unparse(each) for each in node.args[call != "msgspec.json.Decoder" :]]
                given += [ast.unparse(word.value) for word in node.keywords if word.arg == "type"]
                if given and not given[0].startswith(("resolved(", "dict[str, str]")):
                    wrong.append(f"wsm.{module}:{node.lineno} gives {call} {given[0]}")
    assert not wrong


def test_one_module_names_a_path_in_shared_memory() -> None:
    naming = {
        module
        for module, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and str(node.value).startswith(str(SHARED_MEMORY))
    }
    assert naming == {"shared_directory"}


def test_nobody_unpickles_evaluates_or_sleeps_a_fixed_time() -> None:
    wrong = []
    for module, tree in modules():
        names = imported(tree)
        wrong += [f"wsm.{module} imports {name}" for name in names & {"pickle", "marshal", "shelve", "dill"}]
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in {"eval", "exec"}
            ):
                wrong.append(f"wsm.{module}:{node.lineno} calls {node.func.id}")
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "sleep"
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                wrong.append(f"wsm.{module}:{node.lineno} sleeps a fixed time")
    assert not wrong


@pytest.mark.slow_but
@pytest.mark.parametrize("package", FOREIGN_HEAVY)
def test_heavy_packages_are_imported_lazily_outside_the_parts_that_are_made_of_them(package: str) -> None:
    wrong = [
        f"wsm.{module} imports {package} when it is imported"
        for module, tree in modules()
        if not is_within(module, set(MAY_NEED_PADDLE))
        and not (package == "torch" and is_within(module, {MAY_NEED_TORCH}))
        and (package, module) != ("zmq", MAY_NEED_ZMQ)
        and any(own_part(name) == package for name in imported_at_once(tree))
    ]
    assert not wrong


def test_paddle_is_only_used_where_the_design_allows_it() -> None:
    users = {
        module for module, tree in modules() if any(own_part(name) == "paddle" for name in imported(tree))
    }
    allowed = {*MAY_NEED_PADDLE, "strategies", "fastdeploy"}
    assert all(is_within(module, allowed) for module in users), sorted(users)


def test_torch_is_imported_in_its_own_part_alone() -> None:
    users = {
        module for module, tree in modules() if any(own_part(name) == "torch" for name in imported(tree))
    }
    assert users == {"torch.memory", "torch.weights", "vllm.extension"}


@pytest.mark.slow_but
@pytest.mark.parametrize(
    "statement",
    ["import wsm", "import wsm.log", "import wsm.cli.main", "import wsm.controller", "import wsm.worker"],
)
def test_importing_the_library_the_shells_or_the_command_line_brings_no_paddle(statement: str) -> None:
    program = (
        f"{statement}; import sys; print(*sorted({{'paddle', 'matplotlib', 'torch'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
