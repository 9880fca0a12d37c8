"""What a rank wrote about its tensors is believed for the digest that it reported, and for no other."""

from __future__ import annotations

from wsm.strategies import TensorSpec
from wsm.strategies.applier.tensor_ledger import keep_ledger, ledger_paths, read_ledger
from wsm.strategies.digest import digest_of, shard_digest


def rows(content: bytes):
    return [
        (TensorSpec("b", "U8", (2,)), digest_of(content)),
        (TensorSpec("a", "F32", ()), digest_of(b"1234")),
    ]


def test_what_was_kept_is_read_for_its_digest(tmp_path):
    digest = keep_ledger(tmp_path, 3, rows(b"xy"))
    assert digest == shard_digest(rows(b"xy"))
    assert read_ledger(tmp_path, 3, digest) == sorted(rows(b"xy"), key=lambda row: row[0].name)
    assert read_ledger(tmp_path, 2, digest) is None
    assert read_ledger(tmp_path, 3, digest_of(b"another")) is None


def test_a_staged_version_does_not_push_out_the_one_that_serves(tmp_path):
    serving = keep_ledger(tmp_path, 0, rows(b"11"))
    staged = keep_ledger(tmp_path, 0, rows(b"22"))
    for digest in (serving, staged):
        assert read_ledger(tmp_path, 0, digest) is not None
    keep_ledger(tmp_path, 0, rows(b"22"))
    assert read_ledger(tmp_path, 0, serving) is not None


def test_a_file_that_was_changed_is_not_believed(tmp_path):
    digest = keep_ledger(tmp_path, 0, rows(b"11"))
    newest, _ = ledger_paths(tmp_path, 0)
    newest.write_bytes(newest.read_bytes().replace(b"U8", b"I8"))
    assert read_ledger(tmp_path, 0, digest) is None


def test_a_directory_that_cannot_be_written_costs_no_load(tmp_path):
    assert keep_ledger(tmp_path / "gone", 0, rows(b"11")) == shard_digest(rows(b"11"))
