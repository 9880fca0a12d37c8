"""The last actions of a plan: is the memory free, are the weights the right ones, and what to declare.

Responsible for measuring, never for believing a flag: a release is believed after the resident bytes fell,
a load after the resident bytes were read again and give the digest that the source had. FastDeploy's check
asks only "is it initialized". It must not repair anything.

The worker publishes a status word after a plan's last action and never earlier, so that CLEARED means "the
memory is free" (FastDeploy published it before the KV cache was freed) and PREPARED means "loaded,
verified, ready to step". A plan whose facts are incomplete is not ended.
"""

from __future__ import annotations

from wsm.actions import names
from wsm.actions.base import Action, ActionContext, require_digest
from wsm.actions.errors import PostconditionError
from wsm.actions.measuring import (
    NOT_MEASURED,
    AddressContract,
    MemoryProof,
    ResidentDigest,
    log_memory,
    resident_bytes,
)
from wsm.actions.surfaces import GroupKind
from wsm.states.vocabulary import ALL_TAGS, Tag

#: Facts that name bytes which a clear says it has let go.
RELEASED_FACTS = ("weights_released_bytes", "kv_released_bytes", "auxiliary_kv_released_bytes")


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
                found=f"{after}; a view or an alias of what was released is still alive",
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
        GroupError (``storage-moved``)
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


#: What every load must have reported by the time the rank says PREPARED.
PREPARED_FACTS = ("version", "manifest_digest", "digest", "bytes", "tensors")

#: What every clear must have measured by the time the rank says CLEARED.
CLEARED_FACTS = ("resident_bytes_after", "dropped_bytes", "drop_measurable")


def _expect_facts(context: ActionContext, wanted: tuple[str, ...], action: str) -> None:
    """Refuse a command whose facts lack one of `wanted`, or tell of another version than was asked for."""
    if not context.facts.keys() >= set(wanted):
        missing = [fact for fact in wanted if fact not in context.facts]
        raise PostconditionError(
            action=action, expected="facts for the receipt", found=f"no {', '.join(missing)}"
        )
    if "version" in wanted and context.version not in (None, context.facts["version"]):
        raise PostconditionError(
            action=action,
            expected=f"version {context.version}",
            found=f"version {context.facts['version']}",
        )


class DeclareCleared(Action):
    """Everything is released and measured; say what is still up."""

    name = names.DECLARE_CLEARED
    purpose = "declare what was freed"

    def run(self, context: ActionContext) -> None:
        """Complete the facts: ``groups_up`` (kinds) and ``deepep_up``. Local.

        Raises
        ------
        PostconditionError
            If nothing was measured.
        """
        _expect_facts(context, CLEARED_FACTS, self.name)
        runner = context.runner
        kinds: list[GroupKind] = [] if runner.groups is None else list(runner.groups.kinds())
        context.facts["groups_up"] = [
            kind.value for kind in kinds if runner.groups is not None and runner.groups.alive(kind)
        ]
        context.facts["deepep_up"] = runner.deepep is not None and runner.deepep.allocated()
        log_memory(context, "clear")


class DeclareStaged(Action):
    """The new version lies beside the served one, verified and ready to flip; the decision is missing.

    Parameters
    ----------
    has_weights : bool
        Whether this participant stages any.
    """

    name = names.DECLARE_STAGED
    purpose = "declare the version that is staged"

    def __init__(self, *, has_weights: bool = True) -> None:
        self._has_weights = has_weights

    def run(self, context: ActionContext) -> None:
        """As :meth:`DeclarePrepared.run`. Local."""
        if self._has_weights:
            _expect_facts(context, PREPARED_FACTS, self.name)
            context.look_again()
        log_memory(context, "staging")


class DeclarePrepared(Action):
    """What was asked for is there and verified; only the group's decision is missing.

    Parameters
    ----------
    has_weights : bool
        Whether there are weights then, loaded now or held all along, that the receipt must name.
    """

    name = names.DECLARE_PREPARED
    purpose = "declare the version that is ready"

    def __init__(self, *, has_weights: bool = True) -> None:
        self._has_weights = has_weights

    def run(self, context: ActionContext) -> None:
        """Check that the load is fully described, and that it is the version that was asked for. Local.

        Raises
        ------
        PostconditionError
            If a fact is missing or another version was loaded.
        BadInputError
            If what names no version has changed since the command began (``source-changed``).
        """
        if self._has_weights:
            _expect_facts(context, PREPARED_FACTS, self.name)
            context.look_again()
        log_memory(context, "update")
