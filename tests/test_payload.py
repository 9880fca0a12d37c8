"""Payloads are checked where they are written and where they are read, and what is refused is named."""

from __future__ import annotations

import json
import math
import re

import msgspec
import numpy as np
import pytest

from wsm.command import ActionSeconds, AtHand, CommandArguments, FailureReport, RankReport
from wsm.committed_record import CommittedRecord
from wsm.payload import PayloadError, decode, encode
from wsm.receipt import Outcome, Receipt
from wsm.states.holding import ClosedHold, Hold
from wsm.states.vocabulary import After, InFlightPolicy, Tag, TransferMode, WeightState

HOLD = Hold("h", "trainer", InFlightPolicy.KEEP, lease_s=2.5, renewed_ns=7, closed=ClosedHold("a", "b", "c"))
REPORT = RankReport(0, "7", "m", "d", 3, 4, (ActionSeconds("load", 0.5),), 0.25, {"files": ["a"]}, ("6",))
PAYLOADS = [
    CommandArguments("r", "7", before=WeightState.CLEARED, tags=frozenset({Tag.WEIGHTS})),
    CommandArguments(
        "r", transfer_mode=TransferMode.GDR, rsync_config={"a": [1]}, after=After.HELD, hold=HOLD
    ),
    CommittedRecord(3, "7", hold=HOLD, load={"transfer_mode": "gdr"}),
    REPORT,
    FailureReport(1, "load", "OSError", "no such file", "at\n", unfit=True),
    AtHand("0f", "update", "load_weights", 60.0),
    Receipt(
        "r", Outcome.UPDATED, 1, 2, "7", None, "m", True, 0.5, 0.25, (REPORT,), tags=("weights",), hold=HOLD
    ),
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: type(payload).__name__)
def test_a_payload_arrives_as_it_was_written(payload: msgspec.Struct) -> None:
    assert decode(type(payload), encode(payload)) == payload


@pytest.mark.parametrize("payload", PAYLOADS[:-1], ids=lambda payload: type(payload).__name__)
def test_a_field_that_this_build_does_not_write_is_refused_by_name(payload: msgspec.Struct) -> None:
    said = {**json.loads(encode(payload)), "newer": 1}
    with pytest.raises(PayloadError, match="newer"):
        decode(type(payload), json.dumps(said).encode())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"request_id": "a", "request_id": "b"}', "the key 'request_id' stands there twice"),
        ('{"request_id": "a", "rsync_config": {"a": {"b": 1, "b": 1}}}', "the key 'b' stands there twice"),
        ('{"request_id": "a", "deadline_s": NaN}', "NaN is not finite"),
        ('{"request_id": "a", "rsync_config": {"a": -1e999}}', "-1e999 is not finite"),
        ('{"request_id": 7}', "Expected `str`, got `int` - at `$.request_id`"),
        ('{"request_id": "a", "reload": 1}', "Expected `bool`, got `int` - at `$.reload`"),
        ('{"request_id": "a", "version": "not a label!"}', "at `$.version`"),
        ('{"request_id": "a", "hold": {"id": "h", "owner": "o", "lease_s": 0}}', "at `$.hold.lease_s`"),
        ('{"version": "7"}', "missing required field `request_id`"),
        ("[]", "Expected `object`"),
        ("{", "JSONDecodeError"),
        ("[" * 100_000, "RecursionError"),
        ("\udcff", "UnicodeDecodeError"),
    ],
)
def test_what_is_read_is_refused_by_its_path(text: str, problem: str) -> None:
    with pytest.raises(PayloadError, match=re.escape(problem)):
        decode(CommandArguments, text.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (RankReport(0, bytes=np.int64(3)), "numpy.int64 that JSON has not - at `$.bytes`"),
        (
            RankReport(0, facts={"load_s": np.float64(3)}),
            "numpy.float64 that JSON has not - at `$.facts.load_s`",
        ),
        (RankReport(0, pause_s=math.nan), "at `$.pause_s`"),
        (RankReport(0, facts={"a": [1, {"b": math.inf}]}), "at `$.facts.a[1].b`"),
        (RankReport(0, actions=(ActionSeconds("load", np.float32(1)),)), "at `$.actions[0].seconds`"),
        (RankReport(0, version=7), "Expected `str | null`, got `int` - at `$.version`"),  # type: ignore[arg-type] # on purpose
        (CommandArguments("r", deadline_s=math.inf), "at `$.deadline_s`"),
        (CommandArguments("r", hold=Hold("h", "o", lease_s=-1)), "at `$.hold.lease_s`"),
    ],
)
def test_what_the_code_builds_itself_is_refused_by_its_path(payload: msgspec.Struct, problem: str) -> None:
    """A constructor of msgspec checks nothing."""
    with pytest.raises(PayloadError, match=re.escape(problem)):
        encode(payload)


def test_a_text_or_a_number_of_a_type_of_ones_own_is_written_as_what_it_is() -> None:
    label, number = type("Label", (str,), {})("r"), type("Seconds", (float,), {})(2.5)
    written = CommandArguments(label, deadline_s=number, rsync_config={"a": label})
    assert decode(CommandArguments, encode(written)) == CommandArguments(
        "r", deadline_s=2.5, rsync_config={"a": "r"}
    )


def test_a_receipt_of_a_newer_server_is_read_without_what_it_adds_and_a_wrong_one_is_not() -> None:
    said = json.loads(json.dumps(PAYLOADS[-1].to_mapping()))
    said["ranks"][0]["newer"] = said["ranks"][0]["actions"][0]["newer"] = said["newer"] = 1
    assert Receipt.from_mapping(said) == PAYLOADS[-1]
    with pytest.raises(PayloadError, match=r"at `\$.ranks\[0\].bytes`"):
        Receipt.from_mapping({**said, "ranks": [{**said["ranks"][0], "bytes": "3"}]})
