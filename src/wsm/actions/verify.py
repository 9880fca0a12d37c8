"""Is it really so? Memory that was said to be free, weights that were said to be loaded.

Responsible for measuring, never for believing a flag: a release is believed after the resident
bytes fell, a load after the resident bytes were read again and give the digest that the source
had. It must not repair anything. FastDeploy's check asks only "is it initialized".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from wsm.actions import names
from wsm.actions.base import Action, ActionContext
from wsm.actions.errors import PostconditionError
from wsm.actions.measuring import NOT_MEASURED, MemoryProof, resident_bytes
from wsm.actions.preconditions import require_digest
from wsm.actions.weights import AddressContract
from wsm.states.vocabulary import ALL_TAGS, Tag
from wsm.strategies.digest import digest_of, shard_digest
from wsm.strategies.tensor import TensorSpec, WeightTarget

#: Facts that name bytes which a clear says it has let go.
RELEASED_FACTS = ("weights_released_bytes", "kv_released_bytes", "auxiliary_kv_released_bytes")

#: Computes the digest of all bytes that a target holds, calling the second argument now and then.
ResidentDigest = Callable[[WeightTarget, Callable[[], None]], str]


def resident_digest(weights: WeightTarget, progress: Callable[[], None]) -> str:
    """Read every tensor in memory and return the shard's digest, as manifests and load reports have it.

    Parameters
    ----------
    weights : WeightTarget
        Holds every tensor.
    progress : callable
        Called after each tensor.
    """
    return shard_digest(resident_tensors(weights, progress))


def resident_tensors(weights: WeightTarget, progress: Callable[[], None]) -> Iterator[tuple[TensorSpec, str]]:
    """Read every tensor in memory; iterate over them with their digests. As :func:`resident_digest`."""
    for name, spec in weights.specs().items():
        yield spec, digest_of(weights.readable(name))
        progress()


class VerifyCleared(Action):
    """Nothing holds memory, and the memory is measurably free.

    Parameters
    ----------
    proof : MemoryProof
        Shared by all plans of an engine.
    tags : frozenset of Tag
        What must hold no memory now; the other half is left alone.
    """

    name = names.VERIFY_CLEARED
    purpose = "measure that the memory is free"

    def __init__(self, proof: MemoryProof, tags: frozenset[Tag] = ALL_TAGS) -> None:
        self._proof = proof
        self._tags = tags

    def run(self, context: ActionContext) -> None:
        """Measure. Local. Reports ``resident_bytes_after``, ``dropped_bytes`` and ``drop_measurable``.

        What cannot be measured now is None, and fails nothing, unless an earlier clear was refuted.

        Raises
        ------
        PostconditionError
            If a tensor or a cache still holds memory, or the resident bytes did not fall enough.
        """
        self._expect_nothing_held(context)
        after = resident_bytes(context)
        before = context.facts.get("resident_bytes_before", after)
        released = sum(context.facts.get(fact, 0) for fact in RELEASED_FACTS)
        ceiling = self._proof.ceiling(None if after is None else before, released)
        context.facts.update(
            resident_bytes_after=after,
            dropped_bytes=None if after is None or before is None else before - after,
            drop_measurable=after is not None and ceiling is not None,
        )
        if after is None:
            if ceiling is not None:
                raise PostconditionError(
                    action=self.name,
                    expected=f"{ceiling} bytes resident at most, where an earlier clear found more",
                    found=f"no measurement ({context.facts[NOT_MEASURED]}); clear again",
                )
            return
        if ceiling is not None and after > ceiling:
            self._proof.refuted(ceiling)
            raise PostconditionError(
                action=self.name,
                expected=f"{ceiling} bytes resident at most, of {before} before",
                found=f"{after}; somebody still holds a view or an alias of what was released",
            )
        self._proof.proven()

    def _expect_nothing_held(self, context: ActionContext) -> None:
        for name in context.runner.weights.held() if Tag.WEIGHTS in self._tags else ():
            raise PostconditionError(action=self.name, expected="no tensor held", found=f"{name!r} held")
        if Tag.KV_CACHE not in self._tags:
            return
        caches = [(auxiliary.name, auxiliary.kv_cache) for auxiliary in context.runner.auxiliaries]
        if context.runner.kv_cache is not None:
            caches.append(("the main model", context.runner.kv_cache))
        for owner, cache in caches:
            left = cache.allocated_bytes()
            if left:
                raise PostconditionError(
                    action=self.name, expected="0 bytes of KV cache", found=f"{left} held by {owner}"
                )


class VerifyLoaded(Action):
    """Every tensor is there, and the bytes in memory are the bytes that the source declared.

    Parameters
    ----------
    digest : callable
        Gives what is comparable with the load's ``digest`` fact.
    contract : AddressContract or None
        Captured addresses that the load must not have moved.
    """

    name = names.VERIFY_LOADED
    purpose = "compare the resident bytes with the manifest"
    deadline_s = 300.0

    def __init__(self, digest: ResidentDigest, contract: AddressContract | None = None) -> None:
        self._digest = digest
        self._contract = contract

    def precondition(self, context: ActionContext) -> None:
        """Refuse to verify what does not say what it should be (PreconditionError)."""
        require_digest(context, action=self.name)

    def run(self, context: ActionContext) -> None:
        """Verify. Local; reads every byte once, at the speed of the memory bus.

        Raises
        ------
        PostconditionError
            If a tensor holds no memory, or the digest of the resident bytes differs.
        StorageMovedError
            If a tensor lies elsewhere than where it was captured.
        """
        weights = context.runner.weights
        held = set(weights.held())
        missing = [spec.name for spec in weights.specs().values() if spec.nbytes and spec.name not in held]
        if missing:
            raise PostconditionError(
                action=self.name,
                expected="every tensor held",
                found=f"{len(missing)} without memory, first {missing[0]!r}",
            )
        digest = self._digest(weights, context.progress)
        if digest != context.facts["digest"]:
            raise PostconditionError(
                action=self.name, expected=f"digest {context.facts['digest']}", found=digest
            )
        if self._contract is not None:
            self._contract.check(weights)
