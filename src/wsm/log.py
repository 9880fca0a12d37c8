"""Structured logs: constant event names, context bound once, JSON or console on request.

Every line that wsm logs is one of the events below plus keys (``rank``, ``epoch``, ``sequence`` and what the
event is about), so that a search for ``action.failed`` finds all of them, whatever the wording of the day.
Events go to the standard library's loggers ``wsm.*``; without :func:`configure` the host's own handlers and
levels apply. structlog, slow to import, renders what :func:`configure` shows and is imported with its first
line. Its global configuration is neither read nor changed.
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

TRANSITION_COMMITTED: Final = "transition.committed"

COMMAND_ISSUED: Final = "command.issued"
COMMAND_SEEN: Final = "command.seen"
COMMAND_DECIDED: Final = "command.decided"
COMMAND_FINISHED: Final = "command.finished"
COMMAND_FAILED: Final = "command.failed"

ACTION_STARTED: Final = "action.started"
ACTION_FINISHED: Final = "action.finished"
ACTION_FAILED: Final = "action.failed"
ACTION_UNDONE: Final = "action.undone"

ACTION_OVERDUE: Final = "action.overdue"

STEP_BROKEN: Final = "step.broken"
DEADLINE_EXPIRED: Final = "deadline.expired"

SEGMENT_CREATED: Final = "segment.created"
SEGMENT_ADOPTED: Final = "segment.adopted"
SEGMENT_RECREATED: Final = "segment.recreated"
DECISION_COMPLETED: Final = "decision.completed"
RECORD_MISSING: Final = "record.missing"
COMMAND_ABANDONED: Final = "command.abandoned"
LEASE_RAN_OUT: Final = "lease.ran_out"
LEASE_ENDED: Final = "lease.ended"
LEASE_ENDED_EARLY: Final = "lease.ended_early"
CONTROLLER_ENDED: Final = "controller.ended"
CONTROLLER_STALLED: Final = "controller.stalled"
EPOCH_BEGUN: Final = "epoch.begun"

JOURNAL_ENDED: Final = "journal.ended"
SPANS_NOT_TOLD: Final = "spans.not_told"
RECEIPTS_ENDED: Final = "receipts.ended"
REQUEST_FAILED: Final = "request.failed"
HOLD_CLOSED: Final = "hold.closed"
NETWORKS_TRUSTED: Final = "networks.trusted"
PEER_REFUSED: Final = "peer.refused"
VERB_UNSUPPORTED: Final = "verb.unsupported"

ENGINE_WORD_SEEN: Final = "engine_word.seen"
ENGINE_WORD_ANSWERED: Final = "engine_word.answered"
ENGINE_WORD_CONFLICT: Final = "engine_word.conflict"

ADOPTED: Final = "adopted"
ADOPTIONS_UNREADABLE: Final = "adoptions.unreadable"
VERSION_FILE_IGNORED: Final = "version_file.ignored"
VERSION_FILE_READ_OTHERWISE: Final = "version_file.read_otherwise"
TENSORS_IGNORED: Final = "tensors.ignored"
SNAPSHOT_PART_IGNORED: Final = "snapshot.part_ignored"
SNAPSHOT_PARTS_MISSING: Final = "snapshot.parts_missing"
SNAPSHOT_RESLICED: Final = "snapshot.resliced"
SNAPSHOT_SLICES_UNUSABLE: Final = "snapshot.slices_unusable"
SNAPSHOT_NOT_REMOVED: Final = "snapshot.not_removed"
SNAPSHOT_REMOVED_UNDER_READERS: Final = "snapshot.removed_under_readers"
SHARED_MEMORY_ORPHANED: Final = "shared_memory.orphaned"
STREAM_MESSAGE_IGNORED: Final = "stream.message_ignored"
ENGINE_REACHABLE: Final = "engine.reachable"
MEMORY_WRITABLE: Final = "memory.writable"
TRANSPORT_NOT_CLOSED: Final = "transport.not_closed"
TRANSPORT_OPTION_UNKNOWN: Final = "transport.option_unknown"
TRANSPORT_OPTION_UNUSED: Final = "transport.option_unused"
TRANSPORT_OPTIONS_DROPPED: Final = "transport.options_dropped"
TRANSFER_UNCHECKED: Final = "transfer.unchecked"
VERSION_TRANSFERRED: Final = "version.transferred"

GROUPS_INTERRUPTED: Final = "groups.interrupted"

GROUP_STARTED: Final = "group.started"
GROUP_STOPPED: Final = "group.stopped"
RANK_LOST: Final = "rank.lost"
RANK_STOPPED: Final = "rank.stopped"
RANK_STARTED: Final = "rank.started"
GROUP_RECOVERED: Final = "group.recovered"
GROUP_RESTORE_FAILED: Final = "group.restore_failed"
GROUP_NOT_RESTORED: Final = "group.not_restored"
GROUP_FAULTED: Final = "group.faulted"
GROUP_REPAIRED: Final = "group.repaired"
GROUP_GIVEN_UP: Final = "group.given_up"
LOAD_BEGUN: Final = "load.begun"
LOAD_ENDED: Final = "load.ended"
DELTA_ROUTE: Final = "delta.route"
CLIENT_GONE: Final = "client.gone"
FASTDEPLOY_SAYS: Final = "fastdeploy.says"
PARAMETER_COPIED: Final = "parameter.copied"
DEVICE_MEMORY: Final = "device.memory"
MEMORY_MEASURED: Final = "memory.measured"

#: The root of every logger of wsm; a host sets its level or handlers as for any library.
ROOT: Final = "wsm"

# Attribute of a log record that holds the event's keys, for handlers that want more than the text.
_FIELDS = "wsm_fields"

logging.getLogger(ROOT).addHandler(logging.NullHandler())
if logging.getLogger("transitions").level == logging.NOTSET:
    # It reports every callback at INFO; a host that wants that sets the level before or after, and it holds.
    logging.getLogger("transitions").setLevel(logging.WARNING)


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
