"""Commands as spans of OpenTelemetry, and the trace that a caller's request belongs to.

Only the API package is used (the extra ``otel``), and only where the application has imported it. Spans are
made when a command is over, of what the journals in the group's segment say of it: one for the command, below
it one per rank, below that one per action. A request over HTTP brings its trace as a header; a caller in
Python is in the span that it has opened.
"""

from __future__ import annotations

import contextlib
import contextvars
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from wsm import log
from wsm.journal import entry as kinds
from wsm.journal.entry import CONTROLLER, JournalEntry
from wsm.journal.spans import TimelineSpan, journal_spans

_API: Final = "opentelemetry.trace"

#: As W3C's Trace Context has it: version, trace, parent, flags; neither is all zeroes, no version is ff.
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

_REQUESTED: contextvars.ContextVar[str | None] = contextvars.ContextVar("wsm_traceparent", default=None)


def checked_traceparent(text: object) -> str | None:
    """Return a header ``traceparent``; None if it is none, for a broken one is to be ignored."""
    return text if isinstance(text, str) and _TRACEPARENT.fullmatch(text) else None


@contextlib.contextmanager
def continued(traceparent: str | None) -> Iterator[None]:
    """Let commands that are asked for inside belong to the trace of a request; a broken header is ignored."""
    token = _REQUESTED.set(checked_traceparent(traceparent))
    try:
        yield
    finally:
        _REQUESTED.reset(token)


def current_traceparent() -> str | None:
    """Return what the caller's trace is: of the request that is answered, or of its span of OpenTelemetry."""
    api = sys.modules.get(_API)
    if _REQUESTED.get() is not None or api is None:
        return _REQUESTED.get()
    found: Any = api.get_current_span().get_span_context()
    if not found.is_valid:
        return None
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags):02x}"


def wanted() -> bool:
    """Whether the application has set up OpenTelemetry in this process."""
    api = sys.modules.get(_API)
    return api is not None and type(api.get_tracer_provider()).__name__ != "ProxyTracerProvider"


def tell_command(entries: Iterable[JournalEntry], *, epoch: int, sequence: int, group: str) -> None:
    """Make the spans of a command that is over. An exporter that fails is logged, and keeps no command up.

    `entries` are those of the controllers and of all ranks, each one's in its own order; of other commands,
    too.
    """
    try:
        mine = [one for one in entries if (one.epoch, one.sequence) == (epoch, sequence)]
        issued = [one for one in mine if one.kind == kinds.COMMAND_ISSUED]
        if issued:
            _tell(issued[-1], mine, group)
    except Exception as error:  # noqa: BLE001 - it is of the application's SDK
        log.logger("traces").warning("spans.not_told", error=repr(error))


def _tell(issued: JournalEntry, entries: Sequence[JournalEntry], group: str) -> None:
    from opentelemetry import trace  # noqa: PLC0415 - an extra
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 - an extra
        TraceContextTextMapPropagator,
    )

    tracer = trace.get_tracer("wsm")
    to_wall_ns = issued.wall_ns - issued.at_ns
    over = [one for one in entries if one.kind == kinds.COMMAND_OVER]
    end_ns = over[-1].at_ns if over else max(one.at_ns for one in entries)
    carried = checked_traceparent(issued.facts.get("traceparent"))
    above = TraceContextTextMapPropagator().extract({} if carried is None else {"traceparent": carried})
    said: dict[str, Any] = {
        "wsm.group": group,
        "wsm.epoch": issued.epoch,
        "wsm.sequence": issued.sequence,
        "wsm.request_id": str(issued.facts.get("request_id")),
        **{f"wsm.{name}": value for one in over for name, value in one.facts.items()},
    }
    operation = str(issued.facts.get("operation", "command")).lower()
    command = tracer.start_span(
        f"wsm.{operation}", context=above, start_time=issued.at_ns + to_wall_ns, attributes=said
    )
    failure = over[-1].facts.get("error") if over else "untold"
    if failure:
        command.set_status(trace.StatusCode.ERROR, str(over[-1].facts.get("outcome") if over else failure))
    below = trace.set_span_in_context(command, above)
    actions: dict[str, list[TimelineSpan]] = {}
    for span in journal_spans(one for one in entries if one.rank != CONTROLLER):
        if span.lane == "actions":
            actions.setdefault(span.track, []).append(span)
    for track, spans in sorted(actions.items()):
        said = {"wsm.group": group, "wsm.rank": int(track.rpartition(" ")[2])}
        first_ns = min(span.start_ns for span in spans)
        rank = tracer.start_span(track, context=below, start_time=first_ns + to_wall_ns, attributes=said)
        inside = trace.set_span_in_context(rank, below)
        for span in spans:
            action = tracer.start_span(
                span.name, context=inside, start_time=span.start_ns + to_wall_ns, attributes=said
            )
            if span.facts.get("error"):
                action.set_status(trace.StatusCode.ERROR, str(span.facts["error"]))
            action.end(end_time=span.end_ns + to_wall_ns)
        rank.end(end_time=max(span.end_ns for span in spans) + to_wall_ns)
    command.end(end_time=max(end_ns, issued.at_ns) + to_wall_ns)
