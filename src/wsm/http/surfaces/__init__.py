"""The fronts for trainers as they are, one module each; :data:`SURFACES` has them by name.

===================  =====================================================================================
module               responsible for
===================  =====================================================================================
:mod:`.fastdeploy`   FastDeploy's legacy GETs and control verbs, in the codes of its generations
:mod:`.sglang`       SGLang's verbs: slime, miles, AReaL, verl
:mod:`.vllm`         vLLM's verbs: TRL, SkyRL; with what AReaL and prime-rl have over them
:mod:`._verbs`       the table of a surface: each verb's route, or why it is refused
:mod:`._call`        what all verbs come down to: commands of a group, and an update in parts
===================  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from wsm.http.commands import AdoptDirectory, AdoptedDirectory
from wsm.http.surface import OpenRequests, Surface, SurfaceOptions, adopting, standing
from wsm.http.surfaces.fastdeploy import FASTDEPLOY
from wsm.http.surfaces.sglang import SGLANG
from wsm.http.surfaces.vllm import AREAL, PRIME_RL, VLLM

#: What makes each surface, by its name.
SURFACES: Final[Mapping[str, Callable[[SurfaceOptions], Surface]]] = {
    table.name: table.surface for table in (FASTDEPLOY, SGLANG, VLLM, AREAL, PRIME_RL)
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
