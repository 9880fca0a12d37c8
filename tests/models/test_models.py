"""The Promela models within their small bounds, and every seeded fault; large bounds: `make models`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from models.catalogue import CHECKS, MUTANTS, Check
from models.checker import Verdict, run, spin_version
from models.recording import recorded, recorded_version

LIMIT_S = 110.0
#: Bounds of more situations are for the slow tests: compiled and walked, each takes two seconds.
MANY = 100_000
MODELS = sorted({check.path for check in CHECKS})


@pytest.fixture(scope="module")
def verdict_of(request: pytest.FixtureRequest) -> Iterator[Callable[[Check], Verdict]]:
    """What comes of a check that a chosen test needs; they are run on all processors, and waited for."""
    chosen = [
        item.callspec.params["check"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec") and "check" in item.callspec.params
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        verdicts = {check.title: pool.submit(run, check, limit_s=LIMIT_S) for check in chosen}
        yield lambda check: verdicts[check.title].result()


@pytest.mark.slow_but("oneword: SEQUENCE N=3 CYCLES=3")
@pytest.mark.needs("spin", "gcc")
@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=pytest.mark.slow if recorded(check.path)[check.within] > MANY else ())
        for check in CHECKS
        if check.small
    ],
    ids=lambda check: check.title,
)
def test_the_model_comes_out_as_it_must(verdict_of: Callable[[Check], Verdict], check: Check) -> None:
    verdict = verdict_of(check)
    assert verdict.good, f"{check.title}: {verdict.sentence}"
    if spin_version() == recorded_version(check.path):
        changed = "the model changed: count again, make models ARGUMENTS=--record"
        assert recorded(check.path)[check.within] == verdict.states, changed


@pytest.mark.slow
@pytest.mark.needs("spin", "gcc")
@pytest.mark.parametrize("check", MUTANTS, ids=lambda check: check.title)
def test_a_model_without_one_of_its_rules_is_caught(
    verdict_of: Callable[[Check], Verdict], check: Check
) -> None:
    verdict = verdict_of(check)
    assert verdict.good, f"without the rule that {check.what}: {verdict.sentence}"


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_every_fault_that_a_model_can_be_seeded_with_is_in_the_catalogue(path) -> None:
    seeded = set(re.findall(r"\bM_[A-Z_]+\b", path.read_text())) - {"M_NAME"}
    assert seeded == {mutant.bounds.split()[0] for mutant in MUTANTS if mutant.path == path}


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_the_head_of_a_model_lists_the_bounds_that_were_measured(path) -> None:
    assert set(recorded(path)) == {check.within for check in CHECKS if check.path == path}
