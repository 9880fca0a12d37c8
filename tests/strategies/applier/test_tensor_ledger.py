"""What a rank writes about its tensors: believed for the digest that it reported, and of any set of them."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as some

from wsm.shared_directory import read_ours
from wsm.strategies import TensorSpec
from wsm.strategies.applier.tensor_ledger import TensorLedger, ledger_paths, read_ledger
from wsm.strategies.applier.tensor_set import MAX_TEXT, tensors_in, text_of
from wsm.strategies.digest import digest_of, shard_digest, shard_text
from wsm.strategies.tensor import ITEM_BYTES


def rows(content: bytes):
    return [
        (TensorSpec("b", "U8", (2,)), digest_of(content)),
        (TensorSpec("a", "F32", ()), digest_of(b"1234")),
    ]


def test_what_was_kept_is_read_for_its_digest(tmp_path):
    digest = TensorLedger(tmp_path, 3).keep(rows(b"xy"))
    assert digest == shard_digest(rows(b"xy"))
    assert read_ledger(tmp_path, 3, digest) == sorted(rows(b"xy"), key=lambda row: row[0].name)
    assert read_ledger(tmp_path, 2, digest) is None
    assert read_ledger(tmp_path, 3, digest_of(b"another")) is None


def test_a_staged_version_does_not_push_out_the_one_that_serves(tmp_path):
    ledger = TensorLedger(tmp_path, 0)
    serving = ledger.keep(rows(b"11"))
    staged = ledger.keep(rows(b"22"))
    for digest in (serving, staged):
        assert read_ledger(tmp_path, 0, digest) is not None
    ledger.keep(rows(b"22"))
    assert read_ledger(tmp_path, 0, serving) is not None


def test_a_new_process_writes_over_the_older_file_of_the_one_before(tmp_path):
    before = TensorLedger(tmp_path, 0)
    older, newer = before.keep(rows(b"11")), before.keep(rows(b"22"))
    for path in ledger_paths(tmp_path, 0):  # the clock of a file system may be too coarse to tell
        os.utime(path, ns=(1, 2 if read_ours(path) == shard_text(rows(b"22")) else 1))
    TensorLedger(tmp_path, 0).keep(rows(b"22"))
    assert read_ledger(tmp_path, 0, older) is not None
    TensorLedger(tmp_path, 0).keep(rows(b"3"))
    assert read_ledger(tmp_path, 0, newer) is not None
    assert read_ledger(tmp_path, 0, older) is None
    assert len(list(tmp_path.iterdir())) == 2


def test_a_shorter_text_leaves_nothing_of_a_longer_one(tmp_path):
    ledger = TensorLedger(tmp_path, 0)
    digests = [ledger.keep(rows(content)[:count]) for content, count in ((b"1", 2), (b"2", 2), (b"3", 1))]
    assert read_ledger(tmp_path, 0, digests[2]) == rows(b"3")[:1]
    assert read_ledger(tmp_path, 0, digests[1]) is not None


def test_a_file_that_was_changed_is_not_believed_and_is_written_anew(tmp_path):
    ledger = TensorLedger(tmp_path, 0)
    digest = ledger.keep(rows(b"11"))
    (path,) = (path for path in ledger_paths(tmp_path, 0) if path.exists())
    path.write_bytes(path.read_bytes().replace(b"U8", b"I8"))
    assert read_ledger(tmp_path, 0, digest) is None
    ledger.keep(rows(b"11"))
    assert read_ledger(tmp_path, 0, digest) is not None


def test_a_directory_that_cannot_be_written_costs_no_load(tmp_path):
    assert TensorLedger(tmp_path / "gone", 0).keep(rows(b"11")) == shard_digest(rows(b"11"))


# -- a checkpoint's tensors without their bytes, in a text that a record has room for --------------------


NAMES = some.text(max_size=6) | some.from_regex(r"layers\.[0-9]{1,2}\.(up|down)\.0?[0-3]", fullmatch=True)
SPECS = some.builds(
    TensorSpec,
    NAMES.filter(lambda name: name.isprintable()),
    some.sampled_from(sorted(ITEM_BYTES)),
    some.lists(some.integers(0, 9), max_size=3).map(tuple),
)


@pytest.mark.slow
@given(some.lists(SPECS, max_size=40, unique_by=lambda spec: spec.name))
def test_every_set_of_names_comes_back_as_it_was(specs):
    text = text_of(specs)
    assert text is not None
    assert tensors_in(text) == {spec.name: spec for spec in specs}


def experts(count):
    names = [f"layers.{layer}.experts.{expert}.up" for layer in range(count) for expert in range(count)]
    return [TensorSpec(name, "BF16", (7, 8)) for name in names]


@pytest.mark.slow
def test_names_that_are_patterns_with_ranges_fit_however_many_they_are():
    specs = experts(100)
    text = text_of(specs)
    assert len(text) < 1024
    assert tensors_in(text) == {spec.name: spec for spec in specs}


@pytest.mark.slow
def test_a_set_without_pattern_that_is_too_long_has_no_text():
    some_of_them = [spec for spec in experts(300) if digest_of(spec.name.encode())[0] in "0123"]
    assert text_of(some_of_them) is None
    assert len(text_of(some_of_them[:500])) <= MAX_TEXT


def test_what_is_no_such_text_is_none():
    for text in ("", "\x00", "x" * 40, "é"):
        assert tensors_in(text) is None
