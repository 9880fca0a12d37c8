"""The last actions of a plan: is the memory free, are the weights the right ones, and what to declare.

A release is believed after the resident bytes fell, a load after the resident bytes were read again and give
the source's digest; FastDeploy's check asks only "is it initialized". The worker publishes a status word
after a plan's last action, so CLEARED means "the memory is free" (FastDeploy published it before the KV cache
was freed) and PREPARED means "loaded, verified, ready to step".
"""

from __future__ import annotations

from wsm.actions.base import Action, ActionContext
from wsm.actions.errors import PostconditionError
from wsm.actions.measuring import (
    NOT_MEASURED,
    AddressContract,
    MemoryProof,
    ResidentDigest,
    log_memory,
    resident_bytes,
)
from wsm.states.vocabulary import ALL_TAGS, Tag
from wsm.strategies.tensor import WeightTarget

#: Facts that name bytes which a clear says it has let go.
RELEASED_FACTS = ("weights_released_bytes", "kv_released_bytes", "auxiliary_kv_released_bytes")


class VerifyCleared(Action):
    """What `tags` name holds no memory, and the memory is measurably free."""

    purpose = "measure that the memory is free"

    def __init__(self, proof: MemoryProof, tags: frozenset[Tag] = ALL_TAGS) -> None:
        self._proof = proof
        self._tags = tags

    def run(self, context: ActionContext) -> None:
        """Measure. Local. Reports ``resident_bytes_after``, ``dropped_bytes`` and ``drop_measurable``.

        What cannot be measured now is None, and fails nothing, unless an earlier clear was refuted.
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
            why = context.facts.get(NOT_MEASURED)
            expected = f"{ceiling} bytes resident at most, where an earlier clear found more"
            self._expect(ceiling is None, expected, f"no measurement ({why}); clear again")
            return
        if ceiling is not None and after > ceiling:
            self._proof.refuted(ceiling)
            expected = f"{ceiling} bytes resident at most, of {before} before"
            found = f"{after}; a view or an alias of what was released is still alive"
            raise PostconditionError(action=self.name, expected=expected, found=found)
        self._proof.proven()

    def _expect_nothing_held(self, context: ActionContext) -> None:
        for name in context.runner.weights.held() if Tag.WEIGHTS in self._tags else ():
            self._expect(False, "no tensor held", f"{name!r} held")
        if Tag.KV_CACHE not in self._tags:
            return
        caches = [(auxiliary.name, auxiliary.kv_cache) for auxiliary in context.runner.auxiliaries]
        if context.runner.kv_cache is not None:
            caches.append(("the main model", context.runner.kv_cache))
        for owner, cache in caches:
            left = cache.allocated_bytes()
            self._expect(not left, "0 bytes of KV cache", f"{left} held by {owner}")


class VerifyingBytes(Action):
    deadline_s = 300.0

    def __init__(self, digest: ResidentDigest) -> None:
        self._digest = digest

    def _compare(self, target: WeightTarget, context: ActionContext) -> None:
        found = self._digest(target, context.progress)
        self._expect(found == context.facts["digest"], f"digest {context.facts['digest']}", found)


class VerifyLoaded(VerifyingBytes):
    purpose = "compare the resident bytes with the manifest"

    def __init__(self, digest: ResidentDigest, contract: AddressContract | None = None) -> None:
        super().__init__(digest)
        self._contract = contract

    def run(self, context: ActionContext) -> None:
        weights = context.runner.weights
        self._compare(weights, context)
        if self._contract is not None:
            self._contract.check(weights)


class DeclareCleared(Action):
    purpose = "declare what was freed"

    def run(self, context: ActionContext) -> None:
        runner, groups = context.runner, context.runner.groups
        up = [] if groups is None else [kind.value for kind in groups.kinds() if groups.alive(kind)]
        context.facts["groups_up"] = up
        context.facts["deepep_up"] = runner.deepep is not None and runner.deepep.allocated()
        log_memory(context, "clear")


class DeclarePrepared(Action):
    """What was asked for is there and verified; only the group's decision is missing.

    `has_weights`: the receipt names weights, loaded now or held all along.
    """

    purpose = "declare the version that is ready"
    measured_after = "update"

    def __init__(self, *, has_weights: bool = True) -> None:
        self._has_weights = has_weights

    def run(self, context: ActionContext) -> None:
        if self._has_weights:
            version = context.facts["version"]
            self._expect(
                context.version in (None, version), f"version {context.version}", f"version {version}"
            )
            context.look_again()
        log_memory(context, self.measured_after)


class DeclareStaged(DeclarePrepared):
    purpose = "declare the version that is staged"
    measured_after = "staging"
