"""The fronts for trainers as they are, one module each; :data:`SURFACES` has them by name.

========================  ================================================================================
module                    responsible for
========================  ================================================================================
:mod:`.fastdeploy`        FastDeploy's legacy GETs and control verbs, in the codes of its generations
:mod:`.sglang`            SGLang's verbs: slime, miles, AReaL, verl
:mod:`.vllm`              vLLM's verbs: TRL, SkyRL
:mod:`.prime_rl`          what prime-rl adds to vLLM's
:mod:`.areal`             what AReaL adds to vLLM's
:mod:`._vllm_verbs`       vLLM's verbs for one owner of holds; the last three share them
:mod:`._verbs`            what all verbs come down to: commands of a group
:mod:`._parts`            an update in parts, which outlives its server
:mod:`._pausing`          what words for halves, a pause and a flush mean
:mod:`._refusals`         the verbs that cannot be honoured, each with its reason and a way out
:mod:`._surface_options`  what a server tells its surfaces
:mod:`.errors`            what a verb can be told beside what its commands say
========================  ================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from wsm.http.commands import AdoptDirectory, AdoptedDirectory
from wsm.http.surface import Surface
from wsm.http.surfaces import areal, fastdeploy, prime_rl, sglang, vllm
from wsm.http.surfaces._surface_options import (
    OpenRequests,
    SurfaceOptions,
    adopting,
    standing,
)

#: What makes each surface, by its name.
SURFACES: Final[Mapping[str, Callable[[SurfaceOptions], Surface]]] = {
    "fastdeploy": fastdeploy.surface,
    "sglang": sglang.surface,
    "vllm": vllm.surface,
    "areal": areal.surface,
    "prime-rl": prime_rl.surface,
}

__all__ = [
    "SURFACES",
    "AdoptDirectory",
    "AdoptedDirectory",
    "OpenRequests",
    "SurfaceOptions",
    "adopting",
    "standing",
]
