"""What a command's arguments and the reports of its ranks say: its version, and the record of its commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from msgspec import structs

from wsm.command import CommandArguments, RankReport, ReportFormatError
from wsm.committed_record import CommittedRecord, CommittedRecordError, content_digest
from wsm.controller.group_view import GroupView
from wsm.states import holding
from wsm.states.holding import UNKNOWN_HOLD, Hold
from wsm.states.view import View
from wsm.states.vocabulary import After, Tag
from wsm.states.words import StatusCode


def loads(arguments: CommandArguments) -> bool:
    """Whether a commit of the command brings weights."""
    return Tag.WEIGHTS in arguments.tags and not arguments.of_admission


def known_arguments(group: GroupView, view: View) -> CommandArguments:
    """Return the arguments of the command at hand; where they are damaged, what the ranks have said of them.

    That is what it loads, and whether the group is held behind it. A hold is without a name then.
    """
    found = group.arguments(view.command)
    if found is not None:
        return found
    gone = CommandArguments("its arguments are gone")
    for report in _reports(group, view):
        if report.held is not None:
            after = After.HELD if report.held else After.SERVE
            if report.loads:
                return structs.replace(gone, after=after)
            # A KV cache alone has been worked at by actions; a hold or a release has built none.
            built = "kv_bytes" in report.facts
            tags = frozenset({Tag.KV_CACHE}) if built else frozenset[Tag]()
            return structs.replace(gone, after=after, tags=tags, of_admission=not built)
    return gone


def _reports(group: GroupView, view: View) -> Iterator[RankReport]:
    """Iterate over the reports of the command; a committed rank has overwritten the PREPARED one."""
    for rank in range(group.participants):
        for code in (StatusCode.PREPARED, StatusCode.DONE_COMMITTED):
            with suppress(ReportFormatError):
                report = group.report(rank, view.command, code)
                if report is not None:
                    yield report


def commanded_version(group: GroupView, view: View, arguments: CommandArguments) -> str | None:
    """Return the version that a decided commit brings; None while neither arguments nor a report says it.

    That is the one that was asked for, or else the one that the ranks found and agreed on.
    """
    if not loads(arguments):
        return group.committed(view).version  # what was committed stays; it may be none that is held now
    if arguments.version is not None:
        return arguments.version
    return next((report.version for report in _reports(group, view) if report.version is not None), None)


def brought(group: GroupView, view: View, arguments: CommandArguments) -> tuple[str | None, bool]:
    """Return the version that a decided commit brings, and whether that is known by now."""
    with suppress(CommittedRecordError):
        version = commanded_version(group, view, arguments)
        return version, version is not None or not loads(arguments)
    return None, True


def committed_by(
    group: GroupView, view: View, version: str | None, arguments: CommandArguments
) -> CommittedRecord:
    """Return the record of a decided commit; one that loads nothing keeps what was loaded before."""
    sequence = view.command.sequence
    hold: Hold | None = None
    if holding.held_after(arguments.after, held=view.committed.held):
        hold = arguments.hold or group.hold(view) or UNKNOWN_HOLD
    if not loads(arguments):
        return structs.replace(group.committed(view), sequence=sequence, version=version, hold=hold)
    reports = {report.rank: report for report in _reports(group, view)}
    digests, sets = set[str](), set[str | None]()
    for report in reports.values():
        if report.manifest_digest is not None:
            digests.add(report.manifest_digest)
            said = report.facts.get("tensor_set")
            sets.add(said if isinstance(said, str) else None)
    before = group.known_record(view)
    if sets <= {None}:  # it did not go through models of the kind that need one
        sets = {before.tensor_set}
    load = arguments.load_options()
    if arguments.partial:  # a restore loads what it was put on as well
        with suppress(CommittedRecordError):
            load = {**group.committed(view).load, **load}
    meant = content_digest(list(reports.values()), version, before)
    other, known = meant not in (None, before.content_digest), group.known_hold(view)
    closed = holding.keeps_closed(known, version, loads=True, restores=arguments.restores, other=other)
    if hold is not None and closed is None:
        hold = structs.replace(hold, closed=None)
    return CommittedRecord(
        sequence,
        version,
        digests.pop() if len(digests) == 1 else None,
        sequence,
        hold,
        load=load,
        tensor_set=sets.pop() if len(sets) == 1 else None,
        content_digest=meant,
    )
