"""Units of work of an engine's own: what they go and come with, and where they stand in the plans.

For what wsm has no surface for: adapters, prefix stores, whatever lives and dies with the weights or the KV
cache. An engine lists its additions, and they stand in plans, diagrams, journals and receipts like every
other action. Which plans they are in follows from the plans' keys (:mod:`wsm.states.plan_key`), so that none
can be forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from wsm.actions import errors, names
from wsm.actions.base import Action, Plan
from wsm.states.plan_key import GIVEN_BACK, Half
from wsm.states.vocabulary import Tag

_TAKES_BEFORE = {
    Tag.WEIGHTS: (names.RELEASE_WEIGHTS, names.LOAD_WEIGHTS, names.FLIP_WEIGHTS),
    Tag.KV_CACHE: (names.RELEASE_KV_CACHE,),
}
_BRINGS_AFTER = {
    Tag.WEIGHTS: (names.VERIFY_LOADED, names.FLIP_WEIGHTS),
    Tag.KV_CACHE: (names.REBUILD_KV_CACHE,),
}


@dataclass(frozen=True)
class Addition:
    """One thing that an engine takes down and brings back by actions of its own.

    Parameters
    ----------
    takes, brings : callable or None
        Each returns a new action whenever a plan is derived; usually it is a subclass of
        :class:`wsm.actions.base.Action`. Both must be idempotent. `takes` runs wherever what `tags` name is
        given back or replaced, in the teardown after a failure, too, where a rank is alone: it cannot be
        collective. `brings` runs wherever that comes or was replaced. After the decision for a hot update
        both run while all ranks stand; what they raise there leaves the rank broken, as any failure in a
        flip does.
    tags : frozenset of Tag
        What it goes and comes with.
    takes_before : tuple of str
        Names of actions (:mod:`wsm.actions.names`); `takes` stands before the first of them that a plan has.
        Empty: before the memory of `tags` goes.
    brings_after : tuple of str
        `brings` stands behind the last of them that a plan has. Empty: once what `tags` name is verified.

    Raises
    ------
    BadInputError (``plan-options``)
        If there is no action, no tag, or an unknown name.
    """

    takes: Callable[[], Action] | None
    brings: Callable[[], Action] | None
    tags: frozenset[Tag] = frozenset({Tag.WEIGHTS})
    takes_before: tuple[str, ...] = ()
    brings_after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for missing, allowed in (
            (self.takes is None and self.brings is None, "an addition takes something down or brings it"),
            (not self.tags, "an addition goes and comes with the weights, the KV cache, or both"),
        ):
            if missing:
                raise errors.plan_options(option="additions", value=self, allowed=allowed)
        for name in (*self.takes_before, *self.brings_after):
            if name not in names.ALL:
                raise errors.plan_options(
                    option="additions",
                    value=name,
                    allowed="the place of an addition is one of wsm.actions.names",
                )

    def actions(self) -> Iterator[Action]:
        """Make one of each action, to ask what it says of itself."""
        yield from (make() for make in (self.takes, self.brings) if make is not None)


def with_additions(plan: Plan, additions: tuple[Addition, ...]) -> Plan:
    """Return a plan with the actions that an engine has added to it.

    Raises
    ------
    BadInputError (``plan-options``)
        If a plan must have one, and has none of the actions that its place is said by.
    """
    actions, staged = list(plan.actions), plan.staged
    for addition in additions:
        taken, brought = _moved(plan, addition.tags)
        if taken and addition.takes is not None:
            anchors = addition.takes_before or tuple(_of(_TAKES_BEFORE, addition.tags))
            actions.insert(_places(plan, actions, anchors)[0], addition.takes())
        if brought and addition.brings is not None:
            anchors = addition.brings_after or tuple(_of(_BRINGS_AFTER, addition.tags))
            actions.insert(_places(plan, actions, anchors)[-1] + 1, addition.brings())
    return replace(plan, actions=tuple(actions), staged=staged)


def _moved(plan: Plan, tags: frozenset[Tag]) -> tuple[bool, bool]:
    """Say whether a plan takes what `tags` name away, and whether it brings it."""
    mine = set() if plan.key is None else {plan.key.halves[tag] for tag in tags}
    return bool(mine & (GIVEN_BACK | {Half.REPLACED})), bool(mine & {Half.COMES, Half.REPLACED})


def _of(table: dict[Tag, tuple[str, ...]], tags: frozenset[Tag]) -> Iterator[str]:
    for tag in tags:
        yield from table[tag]


def _places(plan: Plan, actions: list[Action], anchors: tuple[str, ...]) -> list[int]:
    found = [index for index, action in enumerate(actions) if action.name in anchors and index >= plan.staged]
    if not found:
        raise errors.plan_options(
            option="additions",
            value=anchors,
            allowed=f"the plan {plan.name} needs the addition, and has none of these; name an action of it",
        )
    return found
