"""A group's segment in the hands of its owner: created or adopted, with its first epoch in the command word.

The owner is the process that starts the group: a supervisor, or rank 0 where there is none.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any, Final

from wsm import log
from wsm.config import WsmConfig
from wsm.journal import entry as kinds
from wsm.signals.owner_settings import OwnerSettings, owner_says
from wsm.signals.segment import Segment
from wsm.states.epochs import first_epoch
from wsm.states.vocabulary import OnFailure

#: Bytes of a configuration that the owner leaves in its slot at most, beside all else that stands there.
MOST_CONFIGURATION: Final = 8 << 10


def own_group(config: WsmConfig, *, directory: str | Path | None = None) -> Segment:
    """Create the group's segment, or adopt the one whose owner died.

    The run's id is drawn here if the configuration says none; without `directory` the segment lies in this
    user's private directory. Raises as :meth:`wsm.signals.segment.Segment.create_or_adopt`: SegmentOwnedError
    if its owner lives, others if what is there cannot be adopted, or there is no room.
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
    kept_in = None if journals is None else str(Path(journals).absolute())
    owner_says(
        segment,
        OwnerSettings(kept_in, OnFailure(config.on_failure), configuration=_left_for_commands(config)),
    )
    event = "segment.adopted" if segment.adopted else "segment.created"
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


def _left_for_commands(config: WsmConfig) -> dict[str, Any]:
    """Return the configuration as the owner leaves it for commands; empty where the slot cannot hold it."""
    try:
        plain = config.as_mapping()
    except (TypeError, ValueError):  # JSON cannot hold what a strategy from outside was told
        return {}
    return plain if len(json.dumps(plain)) <= MOST_CONFIGURATION else {}


def _begin_journal(segment: Segment, directory: Path | str | None) -> None:
    """Write down that a run begins here: from here on commands are counted anew in the file."""
    from wsm.controller.group_view import ControllerJournal  # noqa: PLC0415 - its package imports this module

    journal = ControllerJournal(segment.controller_journal, directory)
    journal.note(kinds.STARTED, first_epoch(), pid=os.getpid())
