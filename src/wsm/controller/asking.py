"""What a caller asks for, as the arguments of a command: refused here where it contradicts itself. Pure.

Knows no group: what a group of its own cannot do is found out later, by :mod:`.opening` and by the ranks.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection

from wsm.command import CommandArguments, PartialUpdateRefusedError, checked_request_id, checked_tags
from wsm.controller.errors import HotFallbackError, TagsContradictError, UnknownTransferModeError
from wsm.receipt import named
from wsm.states.vocabulary import ALL_TAGS, HotFallback, InFlightPolicy, KVPolicy, Tag, TransferMode
from wsm.strategies.files.version_file import check_version


def clear_arguments(
    request_id: str | None, *, tags: Collection[Tag], in_flight: InFlightPolicy, kv_policy: KVPolicy
) -> CommandArguments:
    """Return the arguments of a clear; those of :meth:`wsm.Controller.clear`.

    Raises
    ------
    wsm.command.TagsError, RequestIdError
        If the tags are none, or the request id cannot name a request.
    """
    return CommandArguments(
        _request_id(request_id),
        in_flight=in_flight,
        kv_policy=kv_policy,
        tags=checked_tags(tags),
        clears=True,
    )


def update_arguments(
    request_id: str | None,
    version: int | None,
    *,
    tags: Collection[Tag],
    hot: bool,
    hot_fallback: HotFallback | str,
    in_flight: InFlightPolicy | None,
    kv_policy: KVPolicy,
    force: bool,
    partial: bool,
    transfer_mode: TransferMode | str | None,
) -> CommandArguments:
    """Return the arguments of an update; those of :meth:`wsm.Controller.update`.

    Raises
    ------
    wsm.command.TagsError, TagsContradictError
        If the tags are none, or do not go with the other arguments.
    wsm.command.PartialUpdateRefusedError, RequestIdError
        If a partial update is to be hot, or the request id cannot name a request.
    HotFallbackError, UnknownTransferModeError
        If the fallback or the mode is unknown.
    wsm.strategies.errors.VersionNumberError
        If `version` is none.
    """
    if version is not None:
        check_version(version)
    wanted = checked_tags(tags)
    if hot and wanted != ALL_TAGS:
        raise TagsContradictError(tags=named(wanted), argument="hot", why="a hot update replaces both")
    if Tag.WEIGHTS not in wanted:
        of_weights = {"version": version is not None, "force": force, "partial": partial}
        for argument, given in of_weights.items():
            if given:
                raise TagsContradictError(tags=named(wanted), argument=argument, why="no weights are loaded")
    if partial and hot:
        raise PartialUpdateRefusedError(why="a hot update stages every tensor anew")
    return CommandArguments(
        _request_id(request_id),
        version,
        in_flight or (InFlightPolicy.KEEP if hot else InFlightPolicy.ABORT),
        kv_policy,
        hot_fallback=_fallback(hot_fallback),
        tags=wanted,
        reload=force,
        partial=partial,
        transfer_mode=None if transfer_mode is None else _transfer_mode(transfer_mode),
    )


def _request_id(asked: str | None) -> str:
    return uuid.uuid4().hex if asked is None else checked_request_id(asked)


def _fallback(asked: HotFallback | str) -> HotFallback:
    try:
        return HotFallback(asked)
    except ValueError:
        raise HotFallbackError(value=asked, allowed=[each.value for each in HotFallback]) from None


def _transfer_mode(asked: TransferMode | str) -> TransferMode:
    try:
        return TransferMode(asked)
    except ValueError:
        allowed = [each.value for each in TransferMode]
        raise UnknownTransferModeError(value=asked, allowed=allowed) from None
