"""A transport is kept between loads and closed after an error; ``rsync`` finds the version.

The transport here brings shards of a published snapshot: real versions, and nothing but the protocol.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.incident import incident
from tests.raising import raising
from wsm.strategies import (
    STRATEGIES,
    MemoryTarget,
    SnapshotSource,
    TensorSpec,
    errors,
    publish_snapshot,
)
from wsm.strategies.applier.apply import apply_tensors
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import Offer
from wsm.strategies.snapshot.ipc_snapshot import IpcSnapshot
from wsm.strategies.transports.by_version import RsyncSource

SPEC = TensorSpec("w", "U8", (4,))


class SnapshotTransport:
    """Brings what was published below `directory`."""

    name = "snapshot"

    def __init__(self, directory: Path, *, close_error: Exception | None = None) -> None:
        self.directory = directory
        self.opened = self.closed = 0
        self._close_error = close_error

    @contextlib.contextmanager
    def open(
        self, version: int | None, rank: int, observer: LoadObserver, *, world_size: int | None = None
    ) -> Iterator[Offer]:
        self.opened += 1
        source = SnapshotSource(self.directory, rank=rank, device_id=rank, world_size=world_size)
        with IpcSnapshot().open(source, version, observer) as offer:
            yield offer

    def preview(
        self, version: int | None, rank: int, *, world_size: int | None = None
    ) -> contextlib.AbstractContextManager[Offer]:
        return self.open(version, rank, UNOBSERVED, world_size=world_size)

    def close(self) -> None:
        self.closed += 1
        if self._close_error is not None:
            raise self._close_error


def publish(directory: Path, version: int, data: bytes = b"abcd") -> None:
    publish_snapshot(directory, version, {0: {"w": (SPEC, data)}})


def loaded(source: RsyncSource, version: str | None) -> tuple[str | None, bytes]:
    target = MemoryTarget([SPEC])
    with STRATEGIES["rsync"].open(source, version) as offer:
        apply_tensors(offer, target, UNOBSERVED)
    return offer.version, bytes(target.readable("w"))


@incident("FastDeploy#8078")
def test_a_transport_is_kept_for_the_next_load(tmp_path):
    publish(tmp_path, 1)
    transport = SnapshotTransport(tmp_path)
    source = RsyncSource(transport, rank=0, world_size=1)
    for _ in range(2):
        assert loaded(source, "1") == ("1", b"abcd")
    with STRATEGIES["rsync"].preview(source, "1") as offer:
        assert offer.version == "1"
    assert transport.closed == 0
    STRATEGIES["rsync"].close(source)
    assert transport.closed == 1


@incident("FastDeploy#8078")
def test_after_an_error_the_transport_is_closed_and_used_again(tmp_path):
    publish(tmp_path, 1)
    transport = SnapshotTransport(tmp_path)
    source = RsyncSource(transport)
    with raising(errors.SnapshotNotFoundError):
        loaded(source, "9")
    with pytest.raises(OSError, match="the model has no memory"), STRATEGIES["rsync"].open(source, "1"):
        raise OSError("the model has no memory")
    assert transport.closed == 2
    assert loaded(source, "1") == ("1", b"abcd")
    assert transport.closed == 2


@incident("FastDeploy C2-25")
def test_an_error_of_closing_does_not_hide_why_it_was_closed(tmp_path, caplog):
    publish(tmp_path, 1)
    transport = SnapshotTransport(tmp_path, close_error=OSError("the peer is gone"))
    with caplog.at_level(logging.WARNING), raising(errors.SnapshotNotFoundError):
        loaded(RsyncSource(transport), 9)
    assert "transport.not_closed" in caplog.text
    assert "the peer is gone" in caplog.text


def test_without_version_yaml_the_newest_is_what_was_published_last_whatever_it_is_called(tmp_path):
    source = RsyncSource(SnapshotTransport(tmp_path), directory=tmp_path)
    for label in ("step_9", "step_10", "a"):
        publish(tmp_path, label)
        (tmp_path / "version.yaml").unlink()
        assert loaded(source, None) == (label, b"abcd")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, errors.version_file_missing),
        ("[1]\n", errors.bad_version_file),
        ("version: 1\n", errors.bad_version_file),
        ("step: {\n", errors.bad_version_file),
    ],
    ids=["missing", "a list", "without a step", "not YAML"],
)
def test_a_version_yaml_that_names_none_is_an_error_and_no_connection(tmp_path, text, error):
    if text is not None:
        (tmp_path / "version.yaml").write_text(text)
    transport = SnapshotTransport(tmp_path)
    with raising(error, match=r"version\.yaml"):
        loaded(RsyncSource(transport, directory=tmp_path), None)
    assert transport.opened == 0
