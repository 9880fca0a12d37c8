"""What a trainer's verb can be told beside what its commands say."""

from __future__ import annotations

from wsm.errors import GroupError, RefusedError, coded


def no_update_begun(*, verb: str, begin: str) -> RefusedError:
    """A part of an update in parts comes without its beginning."""
    return RefusedError(
        f"{verb} belongs to an update that {begin} begins, and none is begun here; nothing was changed",
        code="no-update-begun",
        verb=verb,
    )


@coded("nothing-prepared")
def nothing_prepared(*, verb: str) -> RefusedError:
    """An update in parts is to be finished, and brought no weights."""
    return RefusedError(
        f"{verb} has nothing to decide: since the update was begun no weights were accepted, so the group "
        "serves what it did; send them by path first"
    )


@coded("prepared-already")
def prepared_already(*, version: str | None) -> RefusedError:
    """An update in parts brings a second version before the first one is decided."""
    return RefusedError(
        f"version {version} is prepared, and this update is to be finished, or begun anew, before another"
    )


@coded("label-differs")
def label_differs(*, asked: str, held: str | None) -> RefusedError:
    """A caller gives a label to weights that are there; a label is never changed without its content."""
    held_text = "no version" if held is None else f"version {held!r}"
    return RefusedError(
        f"the group has {held_text}, not {asked!r}, and a label is not changed without its content; "
        f"update to {asked!r}"
    )


@coded("not-flushed")
def not_flushed(*, why: str) -> RefusedError:
    """The KV cache cannot be flushed now."""
    return RefusedError(f"the KV cache is not flushed: {why}; ask again later")


@coded("engine-refused")
def engine_refused(*, path: str, why: str) -> GroupError:
    """The engine behind a server does not do its own part of a verb."""
    return GroupError(f"the engine does not do its part, {path}: {why}; see the engine's log, and ask again")


def not_paused() -> RefusedError:
    """FastDeploy's update in place needs a paused engine."""
    return RefusedError(
        "Pause LLM Engine first before calling updating weights: POST /v1/pause", code="not-paused"
    )


def not_this_worker(*, url: str, own: str) -> RefusedError:
    """Another worker is to be registered here."""
    return RefusedError(
        f"this server is the one worker {own} and routes to no other; {url} is not registered",
        code="not-this-worker",
        url=url,
    )
