"""A model of a fleet, explored whole: replicas, targets, two callers, a watcher; answers are lost or late.

It decides nothing itself: every rule is asked of :mod:`wsm.states.fleet`, through the module, so that a
seeded fault there is a fault here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from wsm.states import fleet
from wsm.states.fleet import FleetEvent, FleetState, FleetTarget, LookAnswer, NamedContent

CONTENTS = tuple(NamedContent(label, f"digest-{label}") for label in ("one", "two", "three"))
#: What the first label means since somebody has published other content under it.
SWAPPED = NamedContent("one", "digest-other")


class Replica(NamedTuple):
    """`holds`, `staged`: contents by digest, what stands prepared with its generation. `alive`."""

    holds: str | None
    staged: tuple[int, str] | None = None
    alive: bool = True


class World(NamedTuple):
    """`callers`: the generation that each works for; 0: none. `counted`: what the watcher counts each as.

    `proved`: the look that proved it, and the digest that it said. `late`: an answer on its way.
    """

    replicas: tuple[Replica, ...]
    targets: tuple[FleetTarget, ...]
    callers: tuple[int, int] = (0, 0)
    look: int = 0
    counted: tuple[FleetState, ...] = ()
    proved: tuple[int | None, ...] = ()
    late: tuple[int, LookAnswer] | None = None
    swapped: bool = False


def start(replicas: int) -> World:
    target = fleet.next_target(None, CONTENTS[0])
    return World(
        (Replica(CONTENTS[0].digest),) * replicas,
        (target,),
        counted=(FleetState.STALE,) * replicas,
        proved=(None,) * replicas,
    )


def admitted(world: World, at: int) -> bool:
    """Whether the replica takes text now: it reads the newest target itself."""
    replica = world.replicas[at]
    return replica.alive and fleet.admits(replica.holds, world.targets[-1])


def steps(world: World, looks: int) -> Iterator[tuple[str, World]]:
    """Yield every step that may come next, by name."""
    yield from _targets(world)
    for caller, generation in enumerate(world.callers):
        if generation:
            yield from _of_caller(world, caller, world.targets[generation - 1])
    for at, replica in enumerate(world.replicas):
        if replica.alive and world.look < looks:
            yield f"kill {at}", _with(world, at, replica._replace(alive=False, holds=None, staged=None))
        elif not replica.alive:  # its keeper restores what it held, however old that is
            yield f"restart {at}", _with(world, at, Replica(CONTENTS[0].digest))
    if world.look < looks:
        yield from _looks(world)


def _targets(world: World) -> Iterator[tuple[str, World]]:
    if len(world.targets) < 3:
        content = CONTENTS[len(world.targets)]
        made = fleet.next_target(world.targets[-1], content)
        for caller, generation in enumerate(world.callers):
            if generation == 0:
                callers = tuple(
                    made.generation if each == caller else old for each, old in enumerate(world.callers)
                )
                yield f"target {content.label} by {caller}", _announced(world, made)._replace(callers=callers)
                break
    if not world.swapped and len(world.targets) == 2:
        yield "the label of the version before is published again", world._replace(swapped=True)


def _announced(world: World, made: FleetTarget) -> World:
    counted = tuple(fleet.after(each, FleetEvent.TARGET) for each in world.counted)
    proved = tuple(None for _ in world.proved)  # proved for the target before
    return world._replace(targets=(*world.targets, made), counted=counted, proved=proved)


def _of_caller(world: World, caller: int, target: FleetTarget) -> Iterator[tuple[str, World]]:
    newest = world.targets[-1]
    for at, replica in enumerate(world.replicas):
        if not replica.alive or not fleet.may_step(target.generation, newest):
            continue
        if replica.staged is None and replica.holds != target.content.digest:
            staged = replica._replace(staged=(target.generation, target.content.digest))
            yield f"{caller} prepares {at}", _with(world, at, staged)
        if replica.staged is not None and replica.staged[0] == target.generation:
            yield f"{caller} commits {at}", _with(world, at, Replica(replica.staged[1]))
        if replica.staged is not None and replica.staged[0] < target.generation:
            yield f"{caller} aborts {at}", _with(world, at, replica._replace(staged=None))
    found = SWAPPED if world.swapped and target.before == CONTENTS[0] else target.before
    back = fleet.way_back(target, found)
    if back is not None and newest == target and len(world.targets) < 3:
        made = fleet.next_target(newest, back)
        # What is loaded by the way back is what lies under the label, whatever the caller believes.
        callers = tuple(made.generation if each == caller else old for each, old in enumerate(world.callers))
        replicas = tuple(
            Replica(found.digest if found else None) if each.alive else each for each in world.replicas
        )
        yield f"{caller} goes back", _announced(world, made)._replace(callers=callers, replicas=replicas)


def _looks(world: World) -> Iterator[tuple[str, World]]:
    """One look of the watcher: each replica answers in time, or one of the answers is lost, or late."""
    look, target = world.look + 1, world.targets[-1]
    answers: list[LookAnswer | None] = [
        LookAnswer(look, target.generation, each.holds, admitted(world, at)) if each.alive else None
        for at, each in enumerate(world.replicas)
    ]
    yield "look", _counted(world, look, answers)
    lost: list[LookAnswer | None] = [None, *answers[1:]]
    late = None if answers[0] is None else (0, answers[0])
    yield "look, an answer is late", _counted(world, look, lost)._replace(late=late)
    if world.late is not None:  # what was said in a look before comes now
        at, said = world.late
        yield (
            "look, a late answer comes",
            _counted(world, look, [said if each == at else None for each in range(len(answers))])._replace(
                late=None
            ),
        )


def _counted(world: World, look: int, answers: list[LookAnswer | None]) -> World:
    target = world.targets[-1]
    counted = tuple(
        fleet.after(before, fleet.seen(said, target, look))
        for before, said in zip(world.counted, answers, strict=True)
    )
    proved = tuple(
        look if now is FleetState.READY else before for now, before in zip(counted, world.proved, strict=True)
    )
    return world._replace(look=look, counted=counted, proved=proved)


def _with(world: World, at: int, replica: Replica) -> World:
    replicas = tuple(replica if each == at else old for each, old in enumerate(world.replicas))
    return world._replace(replicas=replicas)


def broken(name: str, before: World, now: World) -> str | None:
    """Return which promise a step breaks; None: none."""
    return next(_broken(name, before, now), None)


def _broken(name: str, before: World, now: World) -> Iterator[str]:
    target = now.targets[-1]
    allowed = {each.digest for each in target.allowed}
    for at, replica in enumerate(now.replicas):
        proved = now.proved[at]
        if admitted(now, at) and replica.holds not in allowed:
            yield f"replica {at} serves {replica.holds}, which is not allowed"
        if now.look > before.look and now.counted[at] is FleetState.READY and not admitted(now, at):
            yield f"replica {at} is READY, and takes no text"
        if proved is not None and fleet.is_routable(proved, now.look) and now.look - proved >= 3:
            yield f"replica {at} is routable by a proof of {now.look - proved} looks ago"
        if replica.holds == SWAPPED.digest != before.replicas[at].holds:
            yield f"replica {at} went back to a label that means other content"
    if "commits" in name and now != before:
        generation = before.callers[int(name.split(maxsplit=1)[0])]
        if generation < target.generation:
            yield f"a commit of generation {generation} landed behind {target.generation}"
    served = before.targets[-1].content.digest
    served_before = any(
        admitted(before, at) and each.holds == served for at, each in enumerate(before.replicas)
    )
    serve = any(admitted(now, at) for at in range(len(now.replicas)))
    if name.startswith("target") and served_before and not serve:
        yield "a new target stops every replica that served the one before"


def explore(replicas: int, looks: int, most: int = 2_000_000) -> tuple[int, str | None]:
    """Go through every world that can be reached; return how many there are, and the first broken promise."""
    first = start(replicas)
    known, ahead = {first}, [first]
    while ahead:
        world = ahead.pop()
        for name, after in steps(world, looks):
            wrong = broken(name, world, after)
            if wrong is not None:
                return len(known), f"{name}: {wrong}"
            if after not in known:
                known.add(after)
                ahead.append(after)
        assert len(known) < most, "the scope is too large"
    return len(known), None
