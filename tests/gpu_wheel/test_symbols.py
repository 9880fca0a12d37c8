"""Every paddle symbol that the library uses exists in the installed build, or has its declared replacement.

Runs on whatever build is installed: here the CPU build, under ``make test-gpu-wheel`` paddlepaddle-gpu 2.6.2.
"""

from __future__ import annotations

import importlib
import inspect
import re
from functools import reduce
from pathlib import Path
from typing import Any

import paddle
import pytest

from tests.gpu_wheel.of_objects import CLASSES, EVERYDAY, OF_OBJECTS
from tests.gpu_wheel.replacements import CPU, GPU_2_6, LACKING_IN_2_6, REPLACEMENTS
from tests.gpu_wheel.used_symbols import EXAMPLES, SOURCE, Use, uses
from tests.strategies.shared.installed_paddle import has_float8

pytestmark = [pytest.mark.paddle, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent
MISSING = object()


def this_build() -> set[str]:
    """Under which names the replacements know the installed build."""
    names = set() if paddle.is_compiled_with_cuda() else {CPU}
    return names | ({GPU_2_6} if paddle.__version__.startswith("2.6.") else set())


def resolved(symbol: str) -> Any:
    """Return what a symbol names in the installed build, or MISSING."""
    names = symbol.split(".")
    for depth in range(len(names), 0, -1):
        try:
            module = importlib.import_module(".".join(names[:depth]))
        except ImportError:
            continue
        return reduce(lambda owner, name: getattr(owner, name, MISSING), names[depth:], module)
    return MISSING


@pytest.fixture(scope="module")
def found() -> list[Use]:
    names = {name for owner in CLASSES for name in dir(resolved(owner)) if not name.startswith("__")}
    return uses(frozenset(names))


def test_every_symbol_exists_or_is_known_to_be_missing_from_this_build(found) -> None:
    missing = {use.symbol for use in found if resolved(use.symbol) is MISSING}
    declared = {symbol for symbol, (builds, _) in REPLACEMENTS.items() if builds & this_build()}
    assert missing == declared


def test_whose_name_it_is_is_known_of_all_that_is_used_on_objects_of_paddle(found) -> None:
    assert {use.name for use in found if use.of_object} == set(OF_OBJECTS)


def test_every_module_that_comes_by_paddle_is_seen_to_use_it(found) -> None:
    comes_by_it = re.compile(r"^ *(import|from) paddle\b|modules\[.paddle.\]", re.MULTILINE)
    folders = ((SOURCE, SOURCE), (EXAMPLES.parent, EXAMPLES))
    modules = {
        str(path.relative_to(root))
        for root, folder in folders
        for path in folder.rglob("*.py")
        if comes_by_it.search(path.read_text())
    }
    assert modules <= {use.file for use in found if not use.of_object}
    assert len(modules) > 15


def test_every_call_fits_the_signature_of_what_it_calls(found) -> None:
    """Where paddle's function has one; what is compiled has none, and the suite runs it."""
    checked, wrong = 0, []
    for use in found:
        target = resolved(use.symbol)
        if use.call is None or target is MISSING:
            continue
        try:
            signature = inspect.signature(target)
        except (TypeError, ValueError):
            continue
        positional, keywords = use.call
        # A compiled constructor names its parameters and hides which of them have defaults.
        compiled = next(iter(signature.parameters), "") == "self" and inspect.isclass(target)
        bind = signature.bind_partial if compiled else signature.bind
        try:
            bind(*[None] * (positional + (compiled or use.of_object)), **dict.fromkeys(keywords))
            checked += 1
        except TypeError as error:
            wrong.append(f"{use.file}:{use.line} {use.symbol}{signature}: {error}")
    assert not wrong
    assert checked > 50


def test_every_replacement_is_of_a_symbol_that_is_used(found) -> None:
    assert set(REPLACEMENTS) <= {use.symbol for use in found}


@pytest.mark.parametrize(
    "symbol",
    [
        "paddle.base.core.LoDTensor._new_shared_cuda",
        "paddle.base.core.LoDTensor._share_cuda",
        "paddle.base.core.ProcessGroupNCCL.shutdown",
        "paddle.device.memory_reserved",
        "paddle.device.cuda.graphs.CUDAGraph",
        "paddle.distributed.restart_process_group",
    ],
)
def test_the_calls_of_a_gpu_alone_are_among_the_symbols(found, symbol: str) -> None:
    """They run nowhere here, so that the reading must not miss them."""
    assert symbol in {use.symbol for use in found}


def test_no_private_call_is_left_out_as_everyday() -> None:
    assert not [name for name in EVERYDAY if name.startswith("_")]
    assert not EVERYDAY & set(OF_OBJECTS)


def test_what_cannot_run_on_the_wheel_says_why_and_is_there() -> None:
    assert all(len(reason.split()) >= 3 for reason in LACKING_IN_2_6.values())
    files = {pattern.partition("::")[0].replace("\\", "") for pattern in LACKING_IN_2_6}
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_states_of_tests_have_float8_where_paddle_has_it() -> None:
    assert has_float8() == hasattr(paddle, "float8_e4m3fn") == (GPU_2_6 not in this_build())


def test_groups_that_cannot_be_restarted_are_refused_by_the_name_of_the_missing_call() -> None:
    from wsm.actions.backends.paddle_groups import DeviceGroups  # noqa: PLC0415 - needs paddle first
    from wsm.errors import BadInputError  # noqa: PLC0415 - as above

    lacks = resolved("paddle.distributed.shutdown_process_group") is MISSING
    assert lacks == (GPU_2_6 in this_build())
    if lacks:
        with pytest.raises(BadInputError, match="shutdown_process_group"):
            DeviceGroups({})
    else:
        assert DeviceGroups({}).kinds() == ()
