"""A group's segment in the hands of its owner: created or adopted, with its first epoch in the command word.

The owner is the process that starts the group: a supervisor, or rank 0 where there is none. Knows no states.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wsm import log
from wsm.config import WsmConfig
from wsm.signals.layout import SETTINGS_KEY
from wsm.signals.segment import Segment, SegmentImage, owner_said
from wsm.states import journal as kinds
from wsm.states.epochs import first_epoch


def own_group(config: WsmConfig, *, directory: str | Path | None = None) -> Segment:
    """Create the group's segment, or adopt the one whose owner died.

    Parameters
    ----------
    config : WsmConfig
        The group's configuration; its `run_id` is drawn here if it is empty.
    directory : path or None
        Where the segment lies; ``/dev/shm`` by default.

    Raises
    ------
    wsm.signals.errors.SegmentOwnedError
        If its owner lives.
    wsm.signals.errors.SignalError
        If what is there cannot be adopted, or there is no room.
    """
    segment = Segment.create_or_adopt(
        config.name,
        world_size=config.ranks,
        helpers=int(config.kv_cache_process),
        run_id=config.run_id or uuid.uuid4().hex,
        configuration_digest=config.group_digest(),
        directory=directory,
    )
    if segment.words[segment.layout.command] == 0:
        segment.words[segment.layout.command] = first_epoch().pack()
        _begin_journal(segment, config.journal_directory)
    # Every controller finds the group's journals by this; paths are those of this host.
    journals = config.journal_directory
    settings = {"journal_directory": None if journals is None else str(Path(journals).absolute())}
    segment.settings.write_over(*SETTINGS_KEY, json.dumps(settings).encode())
    event = log.SEGMENT_ADOPTED if segment.adopted else log.SEGMENT_CREATED
    log.logger("group", group=config.name).info(event, path=str(segment.path), run_id=segment.run_id)
    return segment


def own_new_group(config: WsmConfig, *, directory: str | Path | None = None) -> Segment:
    """As :func:`own_group`, for a process that is about to start all ranks.

    A segment whose owner died is left to the ranks of that owner, which end with it; new ranks get a new one.
    """
    segment = own_group(config, directory=directory)
    if segment.adopted:
        segment.unlink()
        segment.close()
        segment = own_group(config, directory=directory)
    return segment


def _begin_journal(segment: Segment, directory: str | None) -> None:
    """Write down that a run begins here: from here on commands are counted anew in the file."""
    from wsm.controller.group_view import ControllerJournal  # noqa: PLC0415 - its package imports this module

    journal = ControllerJournal(segment.controller_journal, directory)
    journal.note(kinds.STARTED, first_epoch(), pid=os.getpid())


def journal_directory_of(segment: Segment | SegmentImage) -> Path | None:
    """Return where a group keeps its journals; None if it keeps none, or its owner said nothing."""
    found = owner_said(segment).get("journal_directory")
    return Path(found) if isinstance(found, str) and found else None


def owner_adds(segment: Segment, **said: Any) -> None:
    """Say something of the whole group, beside what was said under other names. For the owner alone."""
    segment.settings.write_over(*SETTINGS_KEY, json.dumps({**owner_said(segment), **said}).encode())


def owner_awaits(segment: Segment, ranks: Sequence[int], *, where: str, seen: str = "") -> None:
    """Say for which ranks all others wait, and where; none: for none any more."""
    owner_adds(segment, awaited={"ranks": list(ranks), "where": where, "seen": seen} if ranks else None)


def declare_loop(segment: Segment, *, polls: bool, place: str) -> None:
    """Say whether the ranks' loops look at commands of other processes than this one; `place`: where to."""
    owner_adds(segment, loop={"polls": polls, "place": place, "pid": os.getpid()})
