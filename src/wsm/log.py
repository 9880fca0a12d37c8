"""Structured logs: constant event names, context bound once, JSON or console on request.

Every line that wsm logs is an event, ``LAYER.PAST_EVENT``, plus keys (``rank``, ``epoch``, ``sequence`` and
what the event is about), so that a search for ``action.failed`` finds all of them, whatever the wording of
the day. An event's name stands once in the sources: where it is said, or below. Events go to the standard
library's loggers ``wsm.*``; without :func:`configure` the host's own handlers and levels apply. structlog,
slow to import, renders what :func:`configure` shows and is imported with its first line. Its global
configuration is neither read nor changed.
"""

from __future__ import annotations

import datetime as dt
import functools
import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TextIO

from wsm.printable import printable, printable_json, printable_lines

if TYPE_CHECKING:
    from structlog.typing import Processor

#: Events that are said at more than one place.
COMMAND_FINISHED: Final = "command.finished"
COMMAND_FAILED: Final = "command.failed"
ACTION_FAILED: Final = "action.failed"
DEADLINE_EXPIRED: Final = "deadline.expired"
DECISION_COMPLETED: Final = "decision.completed"
RECORD_MISSING: Final = "record.missing"
COMMAND_ABANDONED: Final = "command.abandoned"
CONTROLLER_STALLED: Final = "controller.stalled"
JOURNAL_ENDED: Final = "journal.ended"
REQUEST_FAILED: Final = "request.failed"
ENGINE_WORD_ANSWERED: Final = "engine_word.answered"
SNAPSHOT_NOT_REMOVED: Final = "snapshot.not_removed"
TRANSPORT_NOT_CLOSED: Final = "transport.not_closed"
RANK_LOST: Final = "rank.lost"
MEMORY_MEASURED: Final = "memory.measured"

#: The root of every logger of wsm; a host sets its level or handlers as for any library.
ROOT: Final = "wsm"

# Attribute of a log record that holds the event's keys, for handlers that want more than the text.
_FIELDS = "wsm_fields"

logging.getLogger(ROOT).addHandler(logging.NullHandler())


class EventLogger:
    """One layer's logger, with context on every line: structlog's calls, without its import."""

    __slots__ = ("_context", "_target")

    def __init__(self, target: logging.Logger, context: Mapping[str, Any]) -> None:
        self._target = target
        self._context = context

    def say(self, level: int, event: str, **keys: Any) -> None:
        """Say an event with its keys, at a level of :mod:`logging`."""
        if not self._target.isEnabledFor(level):
            return
        fields = {**self._context, **keys}
        text = printable(" ".join([event, *(f"{key}={value}" for key, value in fields.items())]))
        # The record's file and line are those of the caller, one frame up.
        self._target.log(level, "%s", text, extra={_FIELDS: {"event": event, **fields}}, stacklevel=2)

    # For who looks for it; of an ordinary night; to be looked at by day; something was taken away.
    debug = functools.partialmethod(say, logging.DEBUG)
    info = functools.partialmethod(say, logging.INFO)
    warning = functools.partialmethod(say, logging.WARNING)
    error = functools.partialmethod(say, logging.ERROR)


def logger(layer: str, **context: Any) -> EventLogger:
    """Return the standard library's logger ``wsm.LAYER``, with `context` on every line."""
    return EventLogger(logging.getLogger(f"{ROOT}.{layer}"), context)


def configure(*, json: bool = False, level: str = "info", stream: TextIO | None = None) -> None:
    """Send the events of wsm, and only those, to `stream`; replaces what the last call set up.

    For programs that are wsm; a host that has logging of its own need not call it.

    Parameters
    ----------
    json : bool
        One JSON object per line instead of text for people.
    level : str
        Least level to show: ``debug``, ``info``, ``warning`` or ``error``; ValueError for another.
    stream : text file, optional
        Where to; standard error by default, as standard output belongs to results.
    """
    target = sys.stderr if stream is None else stream
    root = logging.getLogger(ROOT)
    root.setLevel(level.upper())
    for handler in [handler for handler in root.handlers if isinstance(handler, _EventHandler)]:
        root.removeHandler(handler)
    handler = _EventHandler(target)
    handler.setFormatter(_EventFormatter(json=json, colors=target.isatty()))
    root.addHandler(handler)
    root.propagate = False  # the host's root handlers would print every line a second time


if TYPE_CHECKING:
    _TextHandler = logging.StreamHandler[TextIO]
else:
    # Python 3.10 knows the parameter only while types are checked.
    _TextHandler = logging.StreamHandler


class _EventHandler(_TextHandler):
    """The handler that :func:`configure` adds, recognisable so that a second call can replace it."""


class _EventFormatter(logging.Formatter):
    def __init__(self, *, json: bool, colors: bool) -> None:
        super().__init__()
        self._json, self._colors = json, colors
        self._renderer: Processor | None = None

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a record that a foreign logger sent below ``wsm`` gets its text as the event."""
        if self._renderer is None:
            try:
                self._renderer = _renderer(json=self._json, colors=self._colors)
            except (
                ImportError,
                OSError,
            ):  # no descriptor is left to import it with: the next line tries again
                return record.getMessage()
        fields = dict(getattr(record, _FIELDS, {"event": record.getMessage()}))
        moment = dt.datetime.fromtimestamp(record.created, tz=dt.timezone.utc)
        event = {
            "timestamp": moment.isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **fields,
        }
        if not self._json:  # the renderer for people shows other values as Python writes them
            event["event"] = printable_lines(str(event["event"]))
        line = str(self._renderer(None, record.levelname.lower(), event))
        return printable_json(line) if self._json else line


def _renderer(*, json: bool, colors: bool) -> Processor:
    from structlog import dev, processors  # noqa: PLC0415 - a process that shows no line should not wait for it

    if json:
        return processors.JSONRenderer(default=str, ensure_ascii=False)
    return dev.ConsoleRenderer(colors=colors, pad_event_to=24, sort_keys=False)
