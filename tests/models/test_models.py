"""The Promela models within their small bounds, and every seeded fault; large bounds: `make models`."""

from __future__ import annotations

import os
import re

import pytest

from models.catalogue import CHECKS, MUTANTS, Check
from models.checker import missing_tools, run, spin_version
from models.recording import recorded, recorded_version

LIMIT_S = 110.0
SMALL = [check for check in CHECKS if check.small]
MODELS = sorted({check.path for check in CHECKS})


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    missing = missing_tools()
    if not missing:
        return
    reason = f"the models cannot be checked, not found: {', '.join(missing)}"
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; .ci/run installs them where it can")
    pytest.skip(reason)


@pytest.mark.parametrize("check", SMALL, ids=lambda check: check.title)
def test_the_model_comes_out_as_it_must(check: Check) -> None:
    verdict = run(check, limit_s=LIMIT_S)
    assert verdict.good, f"{check.title}: {verdict.sentence}"
    if spin_version() == recorded_version(check.path):
        changed = "the model changed: count again, make models ARGUMENTS=--record"
        assert recorded(check.path)[check.within] == verdict.states, changed


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.title)
def test_a_model_without_one_of_its_rules_is_caught(mutant: Check) -> None:
    verdict = run(mutant, limit_s=LIMIT_S)
    assert verdict.good, f"without the rule that {mutant.what}: {verdict.sentence}"


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_every_fault_that_a_model_can_be_seeded_with_is_in_the_catalogue(path) -> None:
    seeded = set(re.findall(r"\bM_[A-Z_]+\b", path.read_text())) - {"M_NAME"}
    assert seeded == {mutant.bounds.split()[0] for mutant in MUTANTS if mutant.path == path}


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_the_head_of_a_model_lists_the_bounds_that_were_measured(path) -> None:
    assert set(recorded(path)) == {check.within for check in CHECKS if check.path == path}
