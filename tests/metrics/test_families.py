"""Every situation of a group as metrics that Prometheus' own parsers read."""

from __future__ import annotations

import random
from contextlib import closing

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from tests.leftovers import group_name
from tests.status.situations import SITUATIONS
from wsm.config import config_from_mapping
from wsm.errors import BadInputError
from wsm.group_segment import own_group
from wsm.journal import entry as kinds
from wsm.journal.entry import CONTROLLER, JournalEntry
from wsm.metrics import Exporter
from wsm.metrics.families import families
from wsm.metrics.history import JournalCounts
from wsm.status import GroupStatus
from wsm.status.rules import find

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def samples(found) -> dict[tuple[str, ...], float]:
    return {
        (
            one.name,
            *(f"{name}={value}" for name, value in sorted(one.labels.items()) if name != "group"),
        ): one.value
        for family in found
        for one in family.samples
    }


def of(facts: GroupStatus) -> dict[tuple[str, ...], float]:
    return samples(families([(facts, JournalCounts())], now_ns=0, started_s=0.0, aliases=["vllm"]))


def test_every_situation_is_told_by_the_rule_that_explain_finds() -> None:
    for name, facts in SITUATIONS.items():
        told = of(facts)
        assert told["wsm_finding_info", f"finding={find(facts).code}"] == 1, name
        assert told["wsm_serving",] == facts.serving, name
        states = [value for key, value in told.items() if key[0] == "wsm_state"]
        assert sum(states) == 2 * len(facts.ranks), name  # one of the weights, one of the KV cache


def test_a_group_that_cannot_be_read_is_down_and_nothing_else() -> None:
    told = of(GroupStatus("policy", problem="there is no such group"))
    assert told["wsm_up",] == 0
    assert told["wsm_finding_info", "finding=unreadable"] == 1
    assert ("wsm_held",) not in told


@pytest.fixture
def segment():
    found = own_group(config_from_mapping({"name": group_name("metrics"), "ranks": 2}))
    with closing(found):
        yield found
        found.unlink()


@pytest.mark.slow
def test_a_scrape_is_text_that_prometheus_reads_whatever_stands_in_the_segment(segment) -> None:
    exporter, draws = Exporter(segment.name, aliases=["vllm"]), random.Random(15)  # noqa: S311 - the same each time
    registry = CollectorRegistry()
    registry.register(exporter)
    for _ in range(30):
        for accept, parse in (("", prometheus), (OPENMETRICS, openmetrics)):
            status, headers, body = exporter.answer(accept)
            assert status == 200
            assert dict(headers)["Content-Type"].startswith(
                "text/plain" if not accept else "application/open"
            )
            assert samples(parse(body.decode()))["wsm_up",] == 1
        # Damage as no rank writes it: a group's name and journals may hold any text.
        word = draws.randrange(segment.layout.command, len(segment.words))
        segment.words[word] = draws.getrandbits(64)
        text = "".join(draws.choices('"\\\n{}=é\x00', k=5))
        line = JournalEntry(kinds.COMMAND_ISSUED, 1, 1, CONTROLLER, 1, 1, {"operation": text}).to_line()
        segment.controller_journal.append(line)


def test_what_is_no_group_or_no_alias_is_refused_at_once() -> None:
    for name, aliases in (("../x", ()), ("policy", ["sglang"])):
        with pytest.raises(BadInputError):
            Exporter(name, aliases=aliases)
