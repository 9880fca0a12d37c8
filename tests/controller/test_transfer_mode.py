"""The transfer mode of an update travels with its command, and an unknown one is refused before anything."""

from __future__ import annotations

import json

import pytest

from wsm.command import CommandArguments, CommandArgumentsError
from wsm.states.vocabulary import TransferMode


@pytest.mark.parametrize("mode", [None, *TransferMode])
def test_the_mode_arrives_as_it_was_written(mode):
    written = CommandArguments("r", "7", transfer_mode=mode)
    assert CommandArguments.from_bytes(written.to_bytes()) == written


@pytest.mark.parametrize("mode", ["rdma", 3, [], {}])
def test_a_mode_that_is_none_is_a_typed_error(mode):
    fields = {**json.loads(CommandArguments("r", "7").to_bytes()), "transfer_mode": mode}
    with pytest.raises(CommandArgumentsError):
        CommandArguments.from_bytes(json.dumps(fields).encode())
