"""KV caches, those of the auxiliary models (MTP) too, and the allocator's: freed, rebuilt, forgotten."""

from __future__ import annotations

from collections.abc import Iterator

from wsm.actions.base import Action, ActionContext
from wsm.actions.measuring import measure_before
from wsm.actions.surfaces import CountedKVCacheSurface, KeepingKVCacheSurface, KVCacheSurface, require
from wsm.states.vocabulary import KVPolicy


class _OfCaches(Action):
    """What actions on KV caches share. The auxiliary models' come first, as FastDeploy lays them out."""

    of_main = True
    of_auxiliaries = False

    def _caches(self, context: ActionContext) -> Iterator[tuple[str, KVCacheSurface]]:
        for auxiliary in context.runner.auxiliaries if self.of_auxiliaries else ():
            yield auxiliary.name, auxiliary.kv_cache
        if self.of_main:
            yield "the main model", require(context.runner.kv_cache, name="kv_cache", action=self.name)

    def _fact(self, name: str) -> str:
        return name if self.of_main else f"auxiliary_{name}"

    def _release(self, context: ActionContext) -> int:
        return sum(cache.release() for _, cache in self._caches(context))

    def _expect_memory(self, context: ActionContext, *, held: bool) -> None:
        for owner, cache in self._caches(context):
            left = cache.allocated_bytes()
            expected = "an allocated KV cache" if held else "0 bytes of KV cache"
            self._expect(bool(left) is held, expected, f"{left} bytes held by {owner}")


class ReleaseKVCache(_OfCaches):
    """Free the cache and forget the prefix tree. What it held cannot come back, so it counts as touching."""

    purpose = "free the KV cache and its prefix tree"
    touches_weights = True

    def run(self, context: ActionContext) -> None:
        measure_before(context)
        context.done.weights_touched = True
        fact = self._fact("kv_released_bytes")
        context.facts[fact] = context.facts.get(fact, 0) + self._release(context)

    def probe(self, context: ActionContext) -> None:
        self._expect_memory(context, held=False)


class ReleaseAuxiliaryCache(ReleaseKVCache):
    purpose = "free the auxiliary models' KV caches"
    of_main, of_auxiliaries = False, True


class RebuildKVCache(_OfCaches):
    """Allocate an empty cache.

    `is_collective`: a process beside all ranks is asked for it, which answers once every rank has its own.
    """

    purpose = "allocate an empty KV cache"

    def __init__(self, *, is_collective: bool = False) -> None:
        self.collective = is_collective

    def run(self, context: ActionContext) -> None:
        """Rebuild; local, unless `is_collective`. Reports ``kv_bytes``."""
        built = sum(cache.rebuild() for _, cache in self._caches(context))
        context.facts[self._fact("kv_bytes")] = built

    def probe(self, context: ActionContext) -> None:
        self._expect_memory(context, held=True)

    def undo(self, context: ActionContext) -> None:
        self._release(context)


class RebuildAuxiliaryCache(RebuildKVCache):
    purpose = "allocate the auxiliary models' KV caches"
    of_main, of_auxiliaries = False, True


def carry_over(cache: KVCacheSurface, policy: KVPolicy, *, action: str) -> int | None:
    """Do to one cache what the KV policy says about blocks of the weights that are replaced. Local.

    Returns how many blocks are kept; None where the cache cannot tell. Raises InternalError
    (``surface-missing``) if it is to tell blocks of running requests from others, and cannot.
    """
    if policy is KVPolicy.DROP:
        cache.forget()
        return 0
    keeping = cache if isinstance(cache, KeepingKVCacheSurface) else None
    if policy is KVPolicy.KEEP_IN_FLIGHT:
        return require(keeping, name="kv_cache.forget_idle", action=action).forget_idle()
    return None if keeping is None else keeping.keep_all()


class ForgetKVCache(_OfCaches):
    """Drop the content of every block and the prefix tree, except for what the command keeps."""

    purpose = "forget KV blocks of the old weights, unless kept"

    def __init__(self, *, weights_go: bool = False) -> None:
        self._weights_go = weights_go

    def run(self, context: ActionContext) -> None:
        """Do what the policy says. Local. Reports ``kv_policy`` and, if known, ``kv_blocks_kept``."""
        keeps = self._keeps(context)
        policy = KVPolicy.KEEP if keeps else context.kv_policy
        for _, cache in self._caches(context):
            kept = None if keeps else carry_over(cache, policy, action=self.name)
            if kept is not None and self.of_main:
                context.facts["kv_blocks_kept"] = kept
        if self.of_main:
            context.facts["kv_policy"] = policy.value

    def probe(self, context: ActionContext) -> None:
        """Ask a cache that counts what it offers; KEEP_IN_FLIGHT forgets nothing that requests hold."""
        if context.kv_policy is KVPolicy.KEEP or self._keeps(context):
            return
        for _, cache in self._caches(context):
            found = cache.findable_blocks() if isinstance(cache, CountedKVCacheSurface) else 0
            self._expect(
                not found, "no block of the old weights that a new request can find", f"{found} blocks"
            )

    def _keeps(self, context: ActionContext) -> bool:
        """Whether nothing at all is done to the blocks that are in a cache.

        So it is where the weights go alone and the command keeps the blocks, since the next load tells whose
        they are; and where that load brings the very weights that computed them.
        """
        if self._weights_go:
            return context.kv_policy is KVPolicy.KEEP
        return context.kept_digest is not None and context.kept_digest == context.facts.get("digest")


class ForgetAuxiliaryCache(ForgetKVCache):
    purpose = "forget the auxiliary models' KV blocks, unless kept"
    of_main, of_auxiliaries = False, True


class FreeCachesForLoad(_OfCaches):
    """Free every KV cache for the time of a load in place, whose bytes need the room.

    FastDeploy does so where trainer and ranks share a device (IPC), or ``gdr_release_cache`` says so.
    """

    purpose = "give every KV cache's memory back, for the time of the load"
    of_auxiliaries = True

    def run(self, context: ActionContext) -> None:
        self._release(context)
        context.runner.memory.empty_cache()

    def probe(self, context: ActionContext) -> None:
        self._expect_memory(context, held=False)

    def undo(self, context: ActionContext) -> None:
        for _, cache in self._caches(context):
            cache.rebuild()


class RebuildCachesAfterLoad(_OfCaches):
    purpose = "allocate the KV caches again, empty"
    of_auxiliaries = True

    def run(self, context: ActionContext) -> None:
        for _, cache in self._caches(context):
            context.facts["kv_bytes"] = cache.rebuild()

    def probe(self, context: ActionContext) -> None:
        self._expect_memory(context, held=True)


class ResetAuxiliaryInputs(Action):
    purpose = "forget the auxiliary models' cached inputs"

    def run(self, context: ActionContext) -> None:
        for auxiliary in context.runner.auxiliaries:
            auxiliary.reset_inputs()


class EmptyAllocatorCache(Action):
    purpose = "return cached free blocks to the device"

    def run(self, context: ActionContext) -> None:
        context.runner.memory.empty_cache()
