"""The transfer mode of an update travels with its command, and an unknown one is refused before anything."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.raising import raising
from wsm.command import CommandArguments, CommandArgumentsError
from wsm.controller import errors
from wsm.controller._command_request import UpdateKeywords
from wsm.states.vocabulary import TransferMode


@pytest.mark.parametrize("mode", [None, *TransferMode])
def test_the_mode_arrives_as_it_was_written(mode):
    written = CommandArguments("r", "7", transfer_mode=mode)
    assert CommandArguments.from_bytes(written.to_bytes()) == written


@pytest.mark.parametrize("mode", ["nccl", 3, [], {}])
def test_a_mode_that_is_none_is_a_typed_error(mode):
    fields = {**json.loads(CommandArguments("r", "7").to_bytes()), "transfer_mode": mode}
    with pytest.raises(CommandArgumentsError):
        CommandArguments.from_bytes(json.dumps(fields).encode())


@pytest.mark.parametrize(("verify", "config"), [(None, None), (True, {"etcd_server": "a:1"}), (False, {})])
def test_what_is_said_of_one_transfer_arrives_as_it_was_written(verify, config):
    written = CommandArguments("r", "7", verify_checksum=verify, rsync_config=config)
    assert CommandArguments.from_bytes(written.to_bytes()) == written


def nested(depth: int) -> dict:
    found: dict = {}
    for _ in range(depth):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    "config", [3, {"a": object()}, {"a": float("nan")}, [("a", 1)], {"a": "x" * 9000}, nested(100_000)]
)
def test_options_that_cannot_travel_are_refused_where_they_are_given(config):
    with raising(errors.bad_rsync_config):
        UpdateKeywords("7", rsync_config=config).request()


def test_a_restore_loads_as_the_last_load_did_and_takes_nothing_else_from_it():
    said = CommandArguments(
        "r", "7", transfer_mode=TransferMode.GDR, verify_checksum=False, rsync_config={"a": [1]}
    )
    restoring = CommandArguments("restore", "7", restores=True)
    assert restoring.loading_as({**said.load_options(), "version": "8"}) == replace(
        said, request_id="restore", restores=True
    )
    assert restoring.loading_as(restoring.load_options()) == restoring


@pytest.mark.parametrize("field", [{"verify_checksum": 1}, {"rsync_config": [1]}])
def test_what_another_build_says_of_a_transfer_is_a_typed_error(field):
    fields = {**json.loads(CommandArguments("r", "7").to_bytes()), **field}
    with pytest.raises(CommandArgumentsError):
        CommandArguments.from_bytes(json.dumps(fields).encode())
