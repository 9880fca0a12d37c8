"""The transfer mode of an update travels with its command, and an unknown one is refused before anything."""

from __future__ import annotations

import json

import pytest
from msgspec import structs

from tests.raising import raising
from wsm.command import CommandArguments, CommandArgumentsError
from wsm.committed_record import CommittedRecord
from wsm.controller import Controller
from wsm.controller._command_request import HoldKeywords, UpdateKeywords
from wsm.states.vocabulary import After, InFlightPolicy, KVPolicy, Tag, TransferMode
from wsm.states.words import Operation
from wsm.typed import bad_keyword


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


@pytest.mark.parametrize("config", [{"a": object()}, {"a": float("nan")}, {"a": "x" * 9000}, nested(100_000)])
def test_options_that_cannot_travel_are_refused_where_they_are_given(config):
    with raising("bad-rsync-config"):
        UpdateKeywords("7", rsync_config=config).request()


def test_a_restore_loads_as_the_last_load_did_and_takes_nothing_else_from_it():
    said = CommandArguments(
        "r", "7", transfer_mode=TransferMode.GDR, verify_checksum=False, rsync_config={"a": [1]}
    )
    restoring = CommandArguments("restore", "7", restores=True)
    assert restoring.loading_as({**said.load_options(), "version": "8"}) == structs.replace(
        said, request_id="restore", restores=True
    )
    assert restoring.loading_as(restoring.load_options()) == restoring


@pytest.mark.parametrize(
    ("call", "keyword", "value"),
    [
        ("update", "force", 1),
        ("update", "partial", 0.0),
        ("update", "hot", "no"),
        ("update", "verify_checksum", "no"),
        ("update", "rsync_config", [("a", 1)]),
        ("update", "in_flight", "sometimes"),
        ("update", "transfer_mode", "fast"),
        ("update", "tags", "weights"),
        ("update", "deadline_s", float("nan")),
        ("update", "deadline_s", True),
        ("clear", "deadline_s", -1),
        ("hold", "deadline_s", 0),
        ("clear", "settle_s", -5),
        ("update", "wait_s", "5"),
        ("hold", "lease_s", 1e19),
        ("hold", "on_lease", "leave"),
        ("prepare", "lease_s", 0),
        ("release", "force", "false"),
        ("release", "owner", "\ud800"),
        ("commit", "request_id", 7),
        ("commit", "wait_s", -1),
        ("begin_abort", "settle_s", float("nan")),
    ],
)
def test_a_keyword_that_no_rank_would_take_is_refused_by_name_before_anything_is_asked(call, keyword, value):
    """A deadline of -1 s was written, aborted the update, and left a group without the weights it served."""
    named = {"request_id": "r"} if call == "commit" else {}
    with raising(bad_keyword, match=rf"^Controller\.{call}\(\): {keyword} is .*; it must be "):
        getattr(Controller.__new__(Controller), call)(**{**named, keyword: value})


def test_what_is_one_of_a_few_things_may_be_named_by_its_value():
    named = UpdateKeywords("7", tags=["weights"], in_flight="drain", kv_policy="drop", after="serve")
    meant = UpdateKeywords(
        "7",
        tags={Tag.WEIGHTS},
        in_flight=InFlightPolicy.DRAIN,
        kv_policy=KVPolicy.DROP,
        after=After.SERVE,
        request_id=(asked := named.request()).arguments.request_id,
    )
    assert meant.request() == asked


def test_a_message_quotes_the_beginning_of_what_is_no_owner():
    with raising("bad-hold", match="an owner is a name of") as caught:
        HoldKeywords(owner="o" * 60_000).request()
    assert len(str(caught.value)) < 500


def test_a_mode_is_refused_where_no_weights_are_loaded():
    with raising("tags-contradict"):
        UpdateKeywords(tags={Tag.KV_CACHE}, transfer_mode="gdr").request()


def test_what_is_left_of_an_update_without_work_forgets_no_blocks():
    request = UpdateKeywords("7", after="held").request().of_admission()
    assert (request.operation, request.arguments.kv_policy) == (Operation.HOLD, KVPolicy.KEEP)


def test_what_a_command_can_carry_a_record_can():
    options = {"log_file": "/log/\udcff"}
    record = CommittedRecord(
        3, "7", load=UpdateKeywords("7", rsync_config=options).request().arguments.load_options()
    )
    assert CommittedRecord.from_bytes(3, 1, record.to_bytes()) == record


@pytest.mark.parametrize("field", [{"verify_checksum": 1}, {"rsync_config": [1]}])
def test_what_another_build_says_of_a_transfer_is_a_typed_error(field):
    fields = {**json.loads(CommandArguments("r", "7").to_bytes()), **field}
    with pytest.raises(CommandArgumentsError):
        CommandArguments.from_bytes(json.dumps(fields).encode())


@pytest.mark.parametrize("call", ["update", "begin_update", "clear", "prepare"])
def test_a_keyword_that_there_is_not_is_named_beside_the_call_that_was_made(call):
    controller = Controller.__new__(Controller)
    with pytest.raises(TypeError, match=rf"^Controller\.{call}\(\): .*'versoin'; it takes .*in_flight"):
        getattr(controller, call)(versoin=7)
