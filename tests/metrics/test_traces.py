"""Commands as spans of OpenTelemetry's own SDK, below the span or request that asked for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from wsm import traces

HEADER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

#: An application with an SDK; a process of its own, since a provider is set once.
APPLICATION = """
import json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from wsm import traces
from wsm.strategies.tensor import TensorSpec
from wsm.testing import InMemoryRunner, LocalGroup

told, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(told))
trace.set_tracer_provider(provider)
with LocalGroup(lambda rank: InMemoryRunner([TensorSpec("layer", "F32", (4,))]), sys.argv[1]) as group:
    with trace.get_tracer("trainer").start_as_current_span("step"):
        group.update(1)
    with traces.continued(sys.argv[2]):
        group.clear()
print(json.dumps([
    [one.name, one.context.span_id, one.parent and one.parent.span_id, f"{one.context.trace_id:032x}",
     one.start_time, one.end_time, dict(one.attributes)] for one in told.get_finished_spans()
]))
"""


@pytest.mark.parametrize(
    "text", ["", "00-xyz", HEADER.upper(), HEADER[:-1], HEADER.replace("b7ad6b7169203331", "0" * 16), None, 7]
)
def test_a_broken_header_is_ignored(text) -> None:
    with traces.continued(text):
        assert traces._REQUESTED.get() is None
    with traces.continued(HEADER):
        assert traces.current_traceparent() == HEADER


@pytest.mark.slow
def test_a_command_is_a_span_below_its_caller_s_and_above_those_of_ranks_and_actions(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", APPLICATION, str(tmp_path), HEADER], capture_output=True, text=True, check=True
    )
    spans = json.loads(done.stdout.splitlines()[-1])
    named = {one[0]: one for one in spans if one[0].startswith(("wsm.", "step"))}
    update, clear = named["wsm.update"], named["wsm.clear"]
    assert (update[2], update[3]) == (named["step"][1], named["step"][3])
    assert (f"{clear[2]:016x}", clear[3]) == ("b7ad6b7169203331", "0af7651916cd43dd8448eb211c80319c")
    assert (update[6]["wsm.ended"], update[6]["wsm.sequence"]) == ("updated", 1)
    ranks = [one for one in spans if one[2] == update[1]]
    assert [one[0] for one in ranks] == ["rank 0", "rank 1"]
    for rank in ranks:
        actions = [one for one in spans if one[2] == rank[1]]
        assert "load_weights" in [one[0] for one in actions]
        for action in actions:
            assert rank[4] <= action[4] <= action[5] <= rank[5]
            assert action[6]["wsm.rank"] == rank[6]["wsm.rank"]
