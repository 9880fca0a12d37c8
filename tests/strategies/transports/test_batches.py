"""Small tensors of a foreign iterator are taken together, before the iterator uses their memory again."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from tests.incident import incident
from wsm.errors import InternalError
from wsm.strategies.transports import _foreign as module
from wsm.strategies.transports._foreign import END, Batches

SMALL, LARGE = 16, 1 << 17
Item = tuple[str, np.ndarray[Any, Any]]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, time does not end a batch."""
    monkeypatch.setattr(module, "BATCH_S", 3600.0)


def overwriting(*sizes: int) -> Iterator[Item]:
    """Tensors through one buffer, which is written again as soon as the iterator is advanced."""
    buffer = np.zeros(max(sizes), np.uint8)
    for index, size in enumerate(sizes):
        buffer[:] = index + 1
        yield f"t{index}", buffer[:size]
        buffer[:] = 0


async def asynchronous(items: Iterator[Item]) -> AsyncIterator[Item]:
    for item in items:
        await asyncio.sleep(0)
        yield item


def awaitables(items: Iterator[Item]) -> Iterator[Any]:
    async def later(item: Item) -> Item:
        await asyncio.sleep(0)
        return item

    for item in items:
        yield later(item)


def settled(answer: Any) -> Any:
    async def awaited() -> Any:
        return await answer

    return asyncio.run(awaited()) if inspect.isawaitable(answer) else answer


def contents(item: Any) -> tuple[str, bytes] | None:
    if item is END:
        return None
    name, value = item
    return name, bytes(value[1] if isinstance(value, tuple) else value)


@incident("FastDeploy C2-19")
@pytest.mark.parametrize("way", [iter, asynchronous, awaitables])
def test_no_tensor_is_taken_so_late_that_its_memory_was_used_again(way):
    sizes = (SMALL, SMALL, LARGE, SMALL, 0, LARGE, LARGE, SMALL)
    batches = Batches(way(overwriting(*sizes)), keep=False)
    came, takes = [contents(settled(batches.first()))], 0
    while came[-1] is not None:
        takes += 1
        came += [contents(item) for item in settled(batches.take())]
    assert came[:-1] == [(f"t{index}", bytes([index + 1]) * size) for index, size in enumerate(sizes)]
    assert takes < len(sizes) or way is awaitables


def test_a_large_tensor_ends_its_batch_and_is_not_copied():
    stream = overwriting(SMALL, SMALL, LARGE, SMALL)
    batches = Batches(stream, keep=False)
    first, second, large = batches.take()
    assert [contents(item) for item in (first, second)] == [("t0", b"\1" * SMALL), ("t1", b"\2" * SMALL)]
    assert isinstance(large[1], np.ndarray)
    assert np.all(large[1] == 3)


def test_where_memory_is_never_used_again_nothing_is_copied():
    arrays = [np.full(SMALL, value, np.uint8) for value in range(5)]
    batches = Batches(iter([(f"t{index}", array) for index, array in enumerate(arrays)]), keep=True)
    taken = batches.take()
    assert taken.pop() is END
    assert all(item[1] is array for item, array in zip(taken, arrays, strict=True))


@pytest.mark.parametrize("way", [iter, asynchronous])
def test_what_came_before_an_error_is_taken_and_then_the_error_is_raised(way):
    def failing() -> Iterator[Item]:
        yield from overwriting(SMALL, SMALL)
        raise ConnectionError("the trainer is gone")

    batches = Batches(way(failing()), keep=False)
    assert [contents(item)[0] for item in settled(batches.take())] == ["t0", "t1"]
    with pytest.raises(ConnectionError, match="the trainer is gone"):
        settled(batches.take())
    with pytest.raises(InternalError, match="has failed"):
        settled(batches.take())


@pytest.mark.parametrize("item", [None, ("name",), ("name", object()), ("name", (1, 2)), (7, np.zeros(2))])
def test_what_is_no_named_tensor_is_handed_on_as_it_came(item):
    batches = Batches(iter([item, ("next", np.zeros(2))]), keep=False)
    taken = batches.take()
    assert taken[0] is item
    assert len(taken) == 1


def test_no_batch_holds_more_copies_than_it_may():
    many = ((f"t{index}", np.zeros(1 << 15, np.uint8)) for index in range(100))
    batches = Batches(many, keep=False)
    sizes = []
    while (taken := batches.take())[-1] is not END:
        sizes.append(len(taken))
    assert max(sizes) <= 33


def test_a_batch_that_has_taken_its_time_is_handed_over(monkeypatch):
    monkeypatch.setattr(module, "BATCH_S", -1.0)
    batches = Batches(overwriting(SMALL, SMALL), keep=False)
    assert [len(batches.take()) for _ in range(2)] == [1, 1]
    assert batches.take()[0] is END
