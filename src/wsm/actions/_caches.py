"""KV caches, those of the auxiliary models (MTP) too, and the allocator's cache: freed, rebuilt, forgotten.

It must not know what a block holds, and measures nothing; :mod:`wsm.actions._verify` does, after this.
"""

from __future__ import annotations

from wsm.actions import names
from wsm.actions.base import Action, ActionContext
from wsm.actions.errors import PostconditionError, surface_missing
from wsm.actions.measuring import measure_before
from wsm.actions.surfaces import CountedKVCacheSurface, KeepingKVCacheSurface, KVCacheSurface, require
from wsm.states.vocabulary import KVPolicy


def _cache(context: ActionContext, action: str) -> KVCacheSurface:
    cache = context.runner.kv_cache
    if cache is None:  # the plan was derived for another runner
        raise surface_missing(action=action, surface="kv_cache")
    return cache


class ReleaseKVCache(Action):
    """Free the cache and forget the prefix tree. What it held cannot come back, so it counts as touching."""

    name = names.RELEASE_KV_CACHE
    purpose = "free the KV cache and its prefix tree"
    touches_weights = True

    def run(self, context: ActionContext) -> None:
        """Release. Local, but may wait for another process of this rank to drop its mapping."""
        measure_before(context)
        context.weights_touched = True
        freed = _cache(context, self.name).release()
        context.facts["kv_released_bytes"] = context.facts.get("kv_released_bytes", 0) + freed

    def probe(self, context: ActionContext) -> None:
        """Ask for the bytes still held; PostconditionError unless 0."""
        left = _cache(context, self.name).allocated_bytes()
        if left:
            raise PostconditionError(action=self.name, expected="0 bytes of KV cache", found=f"{left}")


class RebuildKVCache(Action):
    """Allocate an empty cache.

    Parameters
    ----------
    is_collective : bool
        Whether a process beside all ranks is asked for it, which answers once every rank has its own.
    """

    name = names.REBUILD_KV_CACHE
    purpose = "allocate an empty KV cache"

    def __init__(self, *, is_collective: bool = False) -> None:
        self.collective = is_collective

    def run(self, context: ActionContext) -> None:
        """Rebuild; local, unless `is_collective`. Reports ``kv_bytes``."""
        context.facts["kv_bytes"] = _cache(context, self.name).rebuild()

    def probe(self, context: ActionContext) -> None:
        """Ask for the bytes held; PostconditionError if 0."""
        if not _cache(context, self.name).allocated_bytes():
            raise PostconditionError(action=self.name, expected="an allocated KV cache", found="0 bytes")

    def undo(self, context: ActionContext) -> None:
        """Free it again. Local."""
        _cache(context, self.name).release()


def carry_over(cache: KVCacheSurface, policy: KVPolicy, *, action: str) -> int | None:
    """Do to one cache what the KV policy says about blocks of the weights that are replaced. Local.

    Returns
    -------
    int or None
        Blocks that are kept; None where the cache cannot tell.

    Raises
    ------
    InternalError (``surface-missing``)
        If the policy is KEEP_IN_FLIGHT and the cache cannot tell blocks of running requests from others.
    """
    if policy is KVPolicy.DROP:
        cache.forget()
        return 0
    keeping = cache if isinstance(cache, KeepingKVCacheSurface) else None
    if policy is KVPolicy.KEEP_IN_FLIGHT:
        return require(keeping, name="kv_cache.forget_idle", action=action).forget_idle()
    return None if keeping is None else keeping.keep_all()


def keeps_untouched(context: ActionContext, *, weights_go: bool) -> bool:
    """Whether nothing at all is done to the blocks that are in a cache.

    So it is where the weights go alone and the command keeps the blocks: the next load will tell whose they
    are. And where that load brings the very weights that computed them. A reload over weights that are there
    does as its policy says.
    """
    if weights_go:
        return context.kv_policy is KVPolicy.KEEP
    return context.kept_digest is not None and context.kept_digest == context.facts.get("digest")


def require_forgotten(
    cache: KVCacheSurface, context: ActionContext, *, weights_go: bool, action: str
) -> None:
    """See that one cache offers nothing that it had to forget. Local.

    Only of a cache that counts what it offers. The policy KEEP has nothing to be forgotten, and neither has
    KEEP_IN_FLIGHT of what running requests hold.

    Raises
    ------
    PostconditionError
        If a new request could still find blocks.
    """
    if context.kv_policy is KVPolicy.KEEP or keeps_untouched(context, weights_go=weights_go):
        return
    found = cache.findable_blocks() if isinstance(cache, CountedKVCacheSurface) else 0
    if found:
        expected = "no block of the old weights that a new request can find"
        raise PostconditionError(action=action, expected=expected, found=f"{found} blocks")


class ForgetKVCache(Action):
    """Drop the content of every block and the prefix tree, except for what the command keeps.

    Parameters
    ----------
    weights_go : bool
        Whether the weights are given back, and no others come.
    """

    name = names.FORGET_KV_CACHE
    purpose = "forget KV blocks of the old weights, unless kept"

    def __init__(self, *, weights_go: bool = False) -> None:
        self._weights_go = weights_go

    def run(self, context: ActionContext) -> None:
        """Do what the policy says. Local. Reports ``kv_policy``, and ``kv_blocks_kept`` where it is known."""
        if keeps_untouched(context, weights_go=self._weights_go):
            context.facts["kv_policy"] = KVPolicy.KEEP.value
            return
        context.facts["kv_policy"] = context.kv_policy.value
        kept = carry_over(_cache(context, self.name), context.kv_policy, action=self.name)
        if kept is not None:
            context.facts["kv_blocks_kept"] = kept

    def probe(self, context: ActionContext) -> None:
        """Ask for the blocks that can be found still; PostconditionError as :func:`require_forgotten`."""
        cache = _cache(context, self.name)
        require_forgotten(cache, context, weights_go=self._weights_go, action=self.name)


class ReleaseAuxiliaryCache(Action):
    """Free the KV cache of every auxiliary model. It cannot come back, so it counts as touching."""

    name = names.RELEASE_AUXILIARY_CACHE
    purpose = "free the auxiliary models' KV caches"
    touches_weights = True

    def run(self, context: ActionContext) -> None:
        """Release. Local."""
        measure_before(context)
        context.weights_touched = True
        freed = sum(auxiliary.kv_cache.release() for auxiliary in context.runner.auxiliaries)
        context.facts["auxiliary_kv_released_bytes"] = (
            context.facts.get("auxiliary_kv_released_bytes", 0) + freed
        )

    def probe(self, context: ActionContext) -> None:
        """Ask every cache for the bytes still held; PostconditionError names the model that holds some."""
        for auxiliary in context.runner.auxiliaries:
            left = auxiliary.kv_cache.allocated_bytes()
            if left:
                raise PostconditionError(
                    action=self.name, expected="0 bytes", found=f"{left} bytes held by {auxiliary.name}"
                )


class RebuildAuxiliaryCache(Action):
    """Allocate an empty KV cache for every auxiliary model."""

    name = names.REBUILD_AUXILIARY_CACHE
    purpose = "allocate the auxiliary models' KV caches"

    def run(self, context: ActionContext) -> None:
        """Rebuild. Local. Reports ``auxiliary_kv_bytes``."""
        context.facts["auxiliary_kv_bytes"] = sum(
            auxiliary.kv_cache.rebuild() for auxiliary in context.runner.auxiliaries
        )

    def probe(self, context: ActionContext) -> None:
        """Ask every cache for its bytes; PostconditionError names the model that has none."""
        for auxiliary in context.runner.auxiliaries:
            if not auxiliary.kv_cache.allocated_bytes():
                raise PostconditionError(
                    action=self.name, expected="an allocated cache", found=f"0 bytes held by {auxiliary.name}"
                )

    def undo(self, context: ActionContext) -> None:
        """Free them again. Local."""
        for auxiliary in context.runner.auxiliaries:
            auxiliary.kv_cache.release()


class ForgetAuxiliaryCache(Action):
    """Drop the content of every auxiliary cache, except for what the command keeps.

    Parameters
    ----------
    weights_go : bool
        Whether the weights are given back, and no others come.
    """

    name = names.FORGET_AUXILIARY_CACHE
    purpose = "forget the auxiliary models' KV blocks, unless kept"

    def __init__(self, *, weights_go: bool = False) -> None:
        self._weights_go = weights_go

    def run(self, context: ActionContext) -> None:
        """Do what the policy says, as for the main cache. Local."""
        if keeps_untouched(context, weights_go=self._weights_go):
            return
        for auxiliary in context.runner.auxiliaries:
            carry_over(auxiliary.kv_cache, context.kv_policy, action=self.name)

    def probe(self, context: ActionContext) -> None:
        """Ask every cache for the blocks that can be found still; PostconditionError if one offers any."""
        for auxiliary in context.runner.auxiliaries:
            cache = auxiliary.kv_cache
            require_forgotten(cache, context, weights_go=self._weights_go, action=self.name)


class FreeCachesForLoad(Action):
    """Free every KV cache for the time of a load in place, whose bytes need the room.

    FastDeploy does so where trainer and ranks share a device (IPC), or ``gdr_release_cache`` says so. Blocks
    would be forgotten behind the load anyway, so nothing is lost that could not be allocated again.
    """

    name = names.FREE_CACHES_FOR_LOAD
    purpose = "give every KV cache's memory back, for the time of the load"

    def run(self, context: ActionContext) -> None:
        """Release, the auxiliary models' first, and hand back to the device. Local, as for a clear."""
        for cache in _caches(context, self.name):
            cache.release()
        context.runner.memory.empty_cache()

    def probe(self, context: ActionContext) -> None:
        """Ask for the bytes still held; PostconditionError unless 0."""
        left = sum(cache.allocated_bytes() for cache in _caches(context, self.name))
        if left:
            raise PostconditionError(action=self.name, expected="0 bytes of KV cache", found=f"{left}")

    def undo(self, context: ActionContext) -> None:
        """Allocate them again, empty. Local."""
        for cache in _caches(context, self.name):
            cache.rebuild()


class RebuildCachesAfterLoad(Action):
    """Allocate the caches again that were freed for the load, empty."""

    name = names.REBUILD_CACHES_AFTER_LOAD
    purpose = "allocate the KV caches again, empty"

    def run(self, context: ActionContext) -> None:
        """Rebuild, the auxiliary models' first. Local. Reports ``kv_bytes`` of the main one."""
        for cache in _caches(context, self.name):
            context.facts["kv_bytes"] = cache.rebuild()

    def probe(self, context: ActionContext) -> None:
        """Ask every cache for the bytes held; PostconditionError if one holds none."""
        if not all(cache.allocated_bytes() for cache in _caches(context, self.name)):
            raise PostconditionError(action=self.name, expected="an allocated KV cache", found="0 bytes")


def _caches(context: ActionContext, action: str) -> tuple[KVCacheSurface, ...]:
    """Return every cache, the main one last."""
    return (*(each.kv_cache for each in context.runner.auxiliaries), _cache(context, action))


class ResetAuxiliaryInputs(Action):
    """Forget the input tensors that auxiliary models cached from the last batch."""

    name = names.RESET_AUXILIARY_INPUTS
    purpose = "forget the auxiliary models' cached inputs"

    def run(self, context: ActionContext) -> None:
        """Reset. Local."""
        for auxiliary in context.runner.auxiliaries:
            auxiliary.reset_inputs()


class EmptyAllocatorCache(Action):
    """Return cached free blocks to the device or the operating system."""

    name = names.EMPTY_ALLOCATOR_CACHE
    purpose = "return cached free blocks to the device"

    def run(self, context: ActionContext) -> None:
        """Empty the cache. Local; synchronizes the device."""
        context.runner.memory.empty_cache()
