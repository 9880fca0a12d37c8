"""The two stretches of a hot update's plan: what is staged beside the serving loop, and the flip.

Responsible for presence, as :mod:`wsm.actions.plan` is. A participant that holds a KV cache alone stages
nothing, and takes part so that its blocks go when the weights do.
"""

from __future__ import annotations

from collections.abc import Iterator

from wsm.actions import parts
from wsm.actions.base import Action
from wsm.actions.flipping import FlipWeights
from wsm.actions.options import PlanOptions
from wsm.actions.publication import DeclareStaged
from wsm.actions.routing_replay import ForgetRoutingReplay, ResumeRoutingReplay
from wsm.actions.staging import MakeFlipReady, StageWeights, VerifyStaged
from wsm.actions.staging_memory import PlanStagingMemory


def admission(options: PlanOptions) -> Iterator[Action]:
    """See that a second version fits, before anything else."""
    if not options.cache_only:
        yield PlanStagingMemory()


def staging(options: PlanOptions) -> Iterator[Action]:
    """Stage, verify and make ready, all beside the loop that serves."""
    if not options.cache_only:
        yield StageWeights()
        yield VerifyStaged(options.resident_digest)
        yield MakeFlipReady(options.address_contract)
    yield DeclareStaged(has_weights=not options.cache_only)


def flip(options: PlanOptions) -> Iterator[Action]:
    """Let the staged version take the served one's place, and see to what the old one left behind."""
    yield from parts.settle(options, may_hold=True)
    if options.routing_replay:
        yield ForgetRoutingReplay()
    if not options.cache_only:
        yield FlipWeights(options.address_contract)
    yield from parts.reset_inputs(options)
    yield from parts.forget_blocks(options)
    if options.routing_replay:
        yield ResumeRoutingReplay()
