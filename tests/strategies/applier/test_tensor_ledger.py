"""What a rank wrote about its tensors is believed for the digest that it reported, and for no other."""

from __future__ import annotations

import os

from wsm.shared_directory import read_ours
from wsm.strategies import TensorSpec
from wsm.strategies.applier.tensor_ledger import TensorLedger, ledger_paths, read_ledger
from wsm.strategies.digest import digest_of, shard_digest, shard_text


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
