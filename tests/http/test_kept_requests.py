"""What outlives a server stands in one file, which is replaced whole when it has grown too long."""

from __future__ import annotations

from pathlib import Path

import pytest

from wsm.http import kept
from wsm.http.kept import KeptRequests

CLOSED = {"hold": "h", "surface": "vllm", "verb": "/init_communicator", "reason": "pushed tensors"}


def test_a_file_that_is_written_anew_keeps_every_request_and_why_the_hold_is_closed(
    tmp_path: Path, monkeypatch
):
    path = tmp_path / "http.jsonl"
    first = KeptRequests(path)
    first.close(CLOSED)
    first.keep({"request_id": "a", "state": "succeeded"})
    monkeypatch.setattr(kept, "_FILE_BYTES", 1)
    first.keep({"request_id": "b", "state": "running"})
    again = KeptRequests(path)
    assert again.closed == CLOSED
    assert again.request("a") == {"request_id": "a", "state": "succeeded"}
    assert again.request("b") == {"request_id": "b", "state": "running"}
    assert [each.name for each in tmp_path.iterdir()] == ["http.jsonl"]


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_rewrite_that_breaks_off_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch, moment):
    path = tmp_path / "http.jsonl"
    first = KeptRequests(path)
    first.close(CLOSED)
    monkeypatch.setattr(kept, "_FILE_BYTES", 1)

    def breaks(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((kept.os, "fsync") if moment == "fsync" else (Path, "replace")), breaks)
    first.keep({"request_id": "a", "state": "running"})
    monkeypatch.undo()
    assert KeptRequests(path).closed == CLOSED


def test_a_torn_last_line_costs_that_line_alone(tmp_path: Path):
    path = tmp_path / "http.jsonl"
    first = KeptRequests(path)
    first.keep({"request_id": "a", "state": "running"})
    with path.open("ab") as file:
        file.write(b'{"request": {"request_id": "b"')
    again = KeptRequests(path)
    again.keep({"request_id": "c", "state": "running"})
    found = KeptRequests(path)
    assert [name for name in "abc" if found.request(name)] == ["a", "c"]


def test_what_is_remembered_outlives_a_server_and_is_bounded(tmp_path: Path, monkeypatch):
    path = tmp_path / "http.jsonl"
    first = KeptRequests(path)
    first.remember("pulled", "/local", ["7", "7.reused-0123", "/w@d", True])
    first.remember("unfit", "/w@d", {"code": "digest-mismatch"})
    first.remember("unfit", "/w@d", None)
    again = KeptRequests(path)
    assert again.note("pulled", "/local") == ["7", "7.reused-0123", "/w@d", True]
    assert again.note("unfit", "/w@d") is None
    monkeypatch.setattr(kept, "KEPT_NOTES", 2)
    for number in range(3):
        again.remember("pulled", f"/{number}", [number])
    monkeypatch.setattr(kept, "_FILE_BYTES", 1)
    again.remember("pulled", "/3", [3])
    written = KeptRequests(path)
    assert [written.note("pulled", f"/{number}") for number in range(4)] == [None, None, [2], [3]]
