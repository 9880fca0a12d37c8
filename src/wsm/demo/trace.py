"""The timeline as a Chrome trace, to be opened in Perfetto or ``chrome://tracing``.

One process per track, one thread per lane, one complete slice (``"ph": "X"``) per span. Knows the trace event
format and nothing of wsm.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wsm.demo.timeline import TimelineSpan, extent, lanes, tracks


def chrome_trace(spans: Sequence[TimelineSpan]) -> dict[str, Any]:
    """Return the JSON object of the trace.

    Parameters
    ----------
    spans : sequence of Span
        Spans of one lane follow each other or lie within each other, as the format asks.

    Returns
    -------
    dict
        ``traceEvents`` with times in microseconds since the first span began.
    """
    origin, _ = extent(spans)
    events: list[dict[str, Any]] = []
    place: dict[tuple[str, str], tuple[int, int]] = {}
    for process, track in enumerate(tracks(spans), start=1):
        events += _names(process, 0, process_name=track, process_sort_index=process)
        for thread, lane in enumerate(lanes(spans, track), start=1):
            place[track, lane] = (process, thread)
            events += _names(process, thread, thread_name=lane, thread_sort_index=thread)
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.duration_ns)):
        process, thread = place[span.track, span.lane]
        events.append(
            {
                "ph": "X",
                "name": span.name,
                "cat": span.lane,
                "pid": process,
                "tid": thread,
                "ts": (span.start_ns - origin) / 1e3,
                "dur": span.duration_ns / 1e3,
                "args": dict(span.facts),
            }
        )
    return {"displayTimeUnit": "ms", "traceEvents": events}


def write_trace(path: Path, spans: Sequence[TimelineSpan]) -> None:
    """Write the trace as JSON."""
    path.write_text(json.dumps(chrome_trace(spans), default=str) + "\n", encoding="utf-8")


def _names(process: int, thread: int, **values: str | int) -> list[dict[str, Any]]:
    """Return metadata events; the format keeps a name under ``name`` and an order under ``sort_index``."""
    return [
        {
            "ph": "M",
            "name": event,
            "pid": process,
            "tid": thread,
            "args": {"sort_index" if event.endswith("sort_index") else "name": value},
        }
        for event, value in values.items()
    ]
