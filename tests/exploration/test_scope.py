"""Bounds of explorations: as text and back, and refused where they make no sense."""

from __future__ import annotations

import pytest

from explorer.errors import ScopeError
from explorer.scope import Budget, Scope, Survey


@pytest.mark.parametrize("scope", [Scope(), *Survey.DAILY.scopes, *Survey.DEEP.scopes], ids=Scope.as_text)
def test_bounds_survive_being_written_and_read(scope: Scope) -> None:
    assert Scope.from_text(scope.as_text()) == scope


@pytest.mark.parametrize(
    "text",
    [
        "ranks=0",
        "ranks=7",
        "steps=-1",
        "failures=99",
        "steps=x",
        "sing=1",
        "steps",
        "operations=",
        "operations=commit",
        "starts=x",
    ],
)
def test_bounds_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ScopeError):
        Scope.from_text(text)


def test_every_budget_is_a_bound() -> None:
    for budget in Budget:
        assert Scope.from_text(f"{budget.name.lower()}=2").budget(budget) == 2
