"""The trainer's side of deltas: against which base, visible at once, and kept as long as they are needed."""

from __future__ import annotations

import json

import pytest
from delta_directory import A, B, C, Directory, changed, digest_of_state, holding, holds, released

from tests.forkserver import WITHOUT_PADDLE
from tests.raising import raising
from wsm.strategies import (
    Retention,
    SnapshotPublisher,
    TensorSpec,
    errors,
    publish_delta,
)
from wsm.strategies.delta import source as wrong
from wsm.strategies.delta._manifest import DeltaShard
from wsm.strategies.snapshot import publish
from wsm.strategies.trainer.retention import take_publisher_lock

FINITE = {"w": (TensorSpec("w", "F32", (4096,)), b"\0" * 16384)}
FINER = {"w": (FINITE["w"][0], b"\0\0\x80\x3f" + b"\0" * 16380)}


def promised(directory: Directory) -> bool:
    file = directory.path / "deltas/2/delta.tp0.manifest.json"
    return DeltaShard.decode(file.read_bytes(), file=str(file)).finite


def test_a_base_that_was_not_published_as_such_is_refused_to_the_trainer(directory):
    directory.whole(1, A)
    with raising("delta-base-not-published") as caught:
        directory.delta(2, 1, C, base={0: B})
    assert (caught.value.expected, caught.value.actual) == (digest_of_state(A), digest_of_state(B))
    assert not (directory.path / "deltas/2").exists()


def test_a_base_of_another_model_is_refused_to_the_trainer(directory):
    directory.whole(1, A)
    with raising("delta-of-other-model", match="'steps'"):
        directory.delta(2, 1, {name: row for name, row in B.items() if name != "steps"})
    resized = (TensorSpec("steps", "I64", (1,)), A["steps"][1])
    with raising("delta-of-other-model", match="'steps'"):
        directory.delta(2, 1, {**B, "steps": resized})


def test_a_base_that_is_not_there_is_refused_to_the_trainer(directory):
    with raising(wrong.delta_not_found, match="version 1"):
        directory.delta(2, 1, B)


def test_a_base_may_be_kept_by_the_trainer_alone(directory):
    directory.delta(2, 1, B, base={0: A})
    target = holding(A)
    directory.load(2, target)
    assert holds(target, B)


def test_publishing_the_same_delta_again_is_no_second_publication(directory):
    directory.whole(1, A)
    first, again = directory.delta(2, 1, B), directory.delta(2, 1, B)
    assert again.manifest_digest == first.manifest_digest
    with raising(errors.VersionExistsError):
        directory.delta(2, 1, C)
    directory.delta(2, 1, C, replace=True)
    assert directory.brings(2, C, to=holding(A))


def test_a_promise_that_what_stands_does_not_make_is_refused_unless_it_is_replaced(directory):
    directory.whole(1, FINITE)
    first = directory.delta(2, 1, FINER)
    with raising(errors.VersionExistsError, match=r"same tensors, but .* finite"):
        directory.delta(2, 1, FINER, finite=True)
    again = directory.delta(2, 1, FINER, finite=True, replace=True)
    assert again.manifest_digest == first.manifest_digest  # of the same tensors
    assert promised(directory)
    directory.delta(2, 1, FINER)
    assert promised(directory)


def test_a_delta_that_promises_less_than_the_whole_version_instead_of_it_makes_way(directory):
    directory.whole(1, FINITE)
    directory.delta(2, 1, FINER)
    with raising(errors.VersionExistsError, match=r"does not say .* finite"):
        directory.delta(2, 1, FINER, crossover=0.0, finite=True)
    assert directory.delta(2, 1, FINER, crossover=0.0, finite=True, replace=True).whole == "size"
    assert not (directory.path / "deltas/2").exists()


def test_a_damaged_delta_is_repaired_by_publishing_it_again(deltas):
    blocks = deltas.path / "deltas/2/delta.tp0.blocks"
    blocks.write_bytes(blocks.read_bytes()[:-1])
    with raising(errors.VersionExistsError, match="damaged"):
        deltas.delta(2, 1, B)
    deltas.delta(2, 1, B, replace=True)
    target = holding(A)
    deltas.load(2, target)
    assert holds(target, B)


def test_one_number_never_means_two_contents(directory):
    directory.whole(1, A)
    directory.whole(2, C)
    with raising(errors.VersionExistsError):
        directory.delta(2, 1, B, replace=True)
    directory.delta(3, 1, B)
    with raising(errors.VersionExistsError):
        directory.delta(3, 1, C, crossover=0.0)
    assert directory.delta(3, 1, C, crossover=0.0, replace=True).whole == "size"
    target = holding(A)
    directory.load(3, target)
    assert holds(target, C)
    directory.delta(4, 3, B)
    directory.whole(4, C)  # by a publisher that knows no deltas
    with raising(errors.differs_from_manifest, match="holds other tensors"):
        directory.load(4, target)
    assert holds(target, C)


# Publishes a whole version in the place of a delta that leads elsewhere, and dies at every operation.
DYING_INSTEAD_OF_A_DELTA = """
import json, shutil, sys
from itertools import groupby
from pathlib import Path
from delta_directory import A, B, C, Directory, holding, holds
from dying_publisher import deaths
from wsm.errors import error_name

directory = Directory(Path(sys.argv[1]))

def begin():
    shutil.rmtree(directory.path, ignore_errors=True)
    directory.whole(1, A)
    directory.delta(2, 1, B)

def instead():
    directory.delta(2, 1, C, crossover=0.0, replace=True)

def found():
    target = holding(A)
    try:
        directory.load(2, target)
    except Exception as error:
        return error_name(error)
    return "B" if holds(target, B) else "C" if holds(target, C) else "mixed"

begin()
seen = []
for _ in deaths(instead):
    seen.append(found())
    instead()
    assert found() == "C"
    begin()
print(json.dumps([name for name, _ in groupby(seen)]))
"""


@pytest.mark.slow
def test_a_delta_that_the_whole_version_replaces_goes_in_one_step_once_the_whole_is_there(directory):
    """In between there are two contents under one number, which ranks refuse to load."""
    said = WITHOUT_PADDLE.run("-c", DYING_INSTEAD_OF_A_DELTA, directory.path / "dying")
    assert json.loads(said) == ["B", "differs-from-manifest", "C"]


def test_no_other_publisher_comes_between_a_delta_and_the_whole_version_instead_of_it(directory, monkeypatch):
    directory.whole(1, A)
    taken = []

    def take(versions, **options):
        taken.append(versions)
        return take_publisher_lock(versions, **options)

    monkeypatch.setattr(publish.retention, "take_publisher_lock", take)
    assert directory.delta(2, 1, B, crossover=0.0).whole == "size"
    assert len(taken) == 1
    with SnapshotPublisher(directory.path).version(3):  # it was given back
        pass


def test_deltas_that_lead_from_a_whole_version_to_the_newest_stay(directory):
    directory.whole(1, A)
    state = A
    for version in range(2, 7):
        state = changed(state, 0.01, version)
        directory.delta(version, version - 1, state, retain=Retention(1))
    assert sorted(int(path.name) for path in (directory.path / "deltas").iterdir()) == [2, 3, 4, 5, 6]
    directory.whole(6, state)
    last = changed(state, 0.01, 9)
    report = directory.delta(7, 6, last, retain=Retention(2, protect=[3]))
    assert report.retired == ("2", "4", "5")
    assert directory.brings(7, last, to=released(A))


def test_what_a_dead_publisher_left_is_swept(directory):
    directory.whole(1, A)
    leftover = directory.path / "deltas/.staging-2-0123"
    leftover.mkdir(parents=True)
    (leftover / "delta.tp0.blocks").write_bytes(b"half")
    directory.delta(2, 1, B)
    assert [path.name for path in (directory.path / "deltas").iterdir()] == ["2"]


@pytest.mark.parametrize(
    ("states", "base", "says"),
    [
        ({}, None, "ranks \\[\\]"),
        ({1: A}, None, "ranks \\[1\\]"),
        ({0: B}, {1: A}, "bases for ranks \\[1\\]"),
    ],
)
def test_states_and_bases_are_one_per_rank(directory, states, base, says):
    directory.whole(1, A)
    with raising(errors.incomplete_publication, match=says):
        publish_delta(directory.path, 2, 1, states, base=base)
    with raising(errors.incomplete_publication, match="its own base"):
        directory.delta(1, 1, B)
