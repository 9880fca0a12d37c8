"""By which way a rank comes to a version: from what it holds or from whole files, and over which deltas.

The shortest way wins: nothing but one delta; several, if the rank missed some; the whole version; an earlier
whole version and the deltas since. Every joint is checked by digests before a byte moves: what a delta
leads to must be what the next one was made against. Applies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from wsm.strategies import errors as strategies_errors
from wsm.strategies.delta._manifest import DeltaShard
from wsm.strategies.delta._published import content_digests, version_with_digest, whole_manifest
from wsm.strategies.delta._reader import OpenDelta, open_delta
from wsm.strategies.delta.errors import DeltaBaseError, DeltaLayoutError, delta_not_found
from wsm.strategies.delta.source import DeltaSource
from wsm.strategies.digest import shard_digest
from wsm.strategies.errors import SnapshotNotFoundError
from wsm.strategies.files.snapshot_names import DELTAS_DIRECTORY, VERSIONS_DIRECTORY
from wsm.strategies.offer import Offer
from wsm.strategies.snapshot.ipc_snapshot import IpcSnapshot
from wsm.strategies.snapshot.source import SnapshotSource

#: Digests of a rank's tensors by name; None where it holds none.
Held = Mapping[str, str] | None


@dataclass(frozen=True)
class Route:
    """A way to a version.

    Parameters
    ----------
    links : sequence of OpenDelta
        The deltas to put on top of what it begins with, in that order; none where it is the version already.
    whole : Offer or None
        The whole snapshot that it begins with; None: what the target holds.
    last : OpenDelta or None
        The delta that leads to the version, whether it is needed or not; None if there is none.
    """

    links: Sequence[OpenDelta]
    whole: Offer | None
    last: OpenDelta | None


def links_to(source: DeltaSource, version: str, stack: ExitStack) -> list[OpenDelta]:
    """Open the deltas that lead to `version`, as far back as they follow from each other; oldest first.

    Raises
    ------
    DeltaLayoutError
        If the one that leads to it was made for another number of ranks. Nothing was changed.
    wsm.strategies.errors.BadInputError
        If one of them is damaged, or another rank's. Nothing was changed.
    """
    links: list[OpenDelta] = []
    seen: set[str] = set()
    while len(links) < source.max_chain and version not in seen:
        seen.add(version)
        try:
            link = open_delta(source, version, stack)
        except DeltaLayoutError:
            if not links:
                raise
            break  # what lies before was another layout's; a whole version of this one may begin the way
        if link is None or (links and links[0].shard.base_digest != link.shard.content_digest):
            break
        links.insert(0, link)
        version = link.shard.base_version
    return links


def find_route(
    source: DeltaSource,
    version: str,
    stack: ExitStack,
    held: Callable[[DeltaShard], Held],
) -> Route:
    """Find the way to `version` for a rank. Blocks on metadata, and as long as `held` does.

    Parameters
    ----------
    source : DeltaSource
        Where to look.
    version : str
        The version.
    stack : ExitStack
        Closes what is opened.
    held : callable
        Returns the digests of what the rank holds, of the tensors of the given delta that it has. Called only
        if there is a delta.

    Raises
    ------
    DeltaLayoutError
        If the version is a delta for another number of ranks, and there are no whole files of it that this
        one can be cut from.
    DeltaBaseError
        If the version is a delta, and the rank neither holds its base nor may load whole files instead.
    BadInputError
        If nothing is published under that number.
    wsm.strategies.errors.BadInputError
        If what is published is damaged.
    """
    try:
        links = links_to(source, version, stack)
    except DeltaLayoutError as error:
        return Route((), whole_for_this_layout(source, error, stack), None)
    if not links:
        whole = whole_offer(source, version, stack)
        if whole is None:
            raise delta_not_found(version=version, rank=source.rank, looked_at=places(source, version))
        return Route((), whole, None)
    _check_one_content(source, links[-1])
    holds = held(links[-1].shard)
    if holds is not None:
        for index in range(len(links), -1, -1):
            if _is_held(links, index, holds):
                return Route(links[index:], None, links[-1])
    if source.fallback == "full":
        for index in range(len(links), -1, -1):
            label, digest = _joint(links, index)
            whole = whole_offer(source, label, stack)
            if whole is not None and offered_digest(whole) == digest:
                return Route(links[index:], whole, links[-1])
    raise _refusal(source, links, holds)


def whole_for_this_layout(source: DeltaSource, error: DeltaLayoutError, stack: ExitStack) -> Offer:
    """Open whole files of a version whose delta is another layout's: all ranks of the group do the same.

    Raises
    ------
    DeltaLayoutError
        If there are none, or the source is not to load them.
    wsm.strategies.errors.BadInputError
        If they are damaged, or cannot be cut for so many ranks.
    """
    version: str = error.context["version"]
    whole = whole_offer(source, version, stack) if source.fallback == "full" else None
    if whole is None:
        raise error
    return whole


def whole_offer(source: DeltaSource, version: str, stack: ExitStack) -> Offer | None:
    """Open the whole snapshot of `version`; None if there is none.

    Raises
    ------
    wsm.strategies.errors.BadInputError
        If it is damaged, or another rank's.
    """
    snapshot = SnapshotSource(
        source.directory,
        source.rank,
        device_id=source.device_id,
        world_size=source.world_size,
        shared_directory=None,
    )
    try:
        return stack.enter_context(IpcSnapshot().open(snapshot, version))
    except SnapshotNotFoundError:
        return None


def offered_digest(offer: Offer) -> str | None:
    """Return the digest that an offer promises for all its tensors; None if it does not for one of them."""
    rows = [(tensor.spec, tensor.digest or "") for tensor in offer.tensors]
    return shard_digest(rows) if all(digest for _, digest in rows) else None


def places(source: DeltaSource, version: str) -> list[str]:
    """Return where `version` is looked for, for messages."""
    root = source.directory
    return [f"{root}/{DELTAS_DIRECTORY}/{version}", f"{root}/{VERSIONS_DIRECTORY}/{version}"]


def _check_one_content(source: DeltaSource, link: OpenDelta) -> None:
    """Refuse a label under which two things are published, since it cannot be known which was meant."""
    whole = whole_manifest(Path(source.directory), link.shard.version)
    ours = content_digests(link.manifest)
    if whole is not None and whole.world_size == len(ours) and content_digests(whole) != ours:
        raise strategies_errors.differs_from_manifest(
            file=link.path,
            problem=f"the whole version {link.shard.version} beside it holds other tensors; remove one",
        )


def _joint(links: Sequence[OpenDelta], index: int) -> tuple[str, str]:
    """Return version and digest of what lies before the link `index`; after the last one, where they lead."""
    if index == len(links):
        return links[-1].shard.version, links[-1].shard.content_digest
    return links[index].shard.base_version, links[index].shard.base_digest


def _is_held(links: Sequence[OpenDelta], index: int, held: Mapping[str, str]) -> bool:
    rows = links[min(index, len(links) - 1)].shard.tensors
    after = index == len(links)
    return all(
        held[row.name] == (row.digest if after else row.base_digest) for row in rows if row.name in held
    )


def _refusal(source: DeltaSource, links: Sequence[OpenDelta], held: Held) -> DeltaBaseError:
    shard = links[-1].shard
    found, version, different = None, None, []
    if held is not None:
        rows = [row for row in shard.tensors if row.name in held]
        found = shard_digest((row.spec, held[row.name]) for row in rows)
        version = version_with_digest(Path(source.directory), source.rank, found)
        different = [row.name for row in rows if held[row.name] != row.base_digest]
    if source.fallback == "full":
        whole = ", ".join(
            f"{VERSIONS_DIRECTORY}/{_joint(links, index)[0]}" for index in range(len(links) + 1)
        )
        looked_for = f"no whole snapshot that leads there is in {source.directory} ({whole})"
    else:
        looked_for = "whole files are not loaded instead (fallback: refuse)"
    return DeltaBaseError(
        version=shard.version,
        base_version=shard.base_version,
        base_digest=shard.base_digest,
        found_digest=found,
        found_version=version,
        tensors=different,
        where=links[-1].path,
        looked_for=looked_for,
    )
