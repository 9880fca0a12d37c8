"""The fronts for trainers as they are, one module each; :data:`SURFACES` has them by name.

===================  =====================================================================================
module               responsible for
===================  =====================================================================================
:mod:`.fastdeploy`   FastDeploy's legacy GETs and control verbs, in the codes of its generations
:mod:`.sglang`       SGLang's verbs: slime, miles, AReaL, verl
:mod:`.vllm`         vLLM's verbs: TRL, SkyRL
:mod:`.prime_rl`     what prime-rl adds to vLLM's
:mod:`.areal`        what AReaL adds to vLLM's
:mod:`._verbs`       the table of a surface: from each verb's function to its route, described by its types
:mod:`._call`        what all verbs come down to: commands of a group, and an update in parts
:mod:`._reasons`     why verbs cannot be honoured, each reason with a way out
:mod:`._options`     what a server tells its surfaces
===================  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from wsm.http.commands import AdoptDirectory, AdoptedDirectory
from wsm.http.surface import Surface
from wsm.http.surfaces._options import OpenRequests, SurfaceOptions, adopting, standing
from wsm.http.surfaces.areal import AREAL
from wsm.http.surfaces.fastdeploy import FASTDEPLOY
from wsm.http.surfaces.prime_rl import PRIME_RL
from wsm.http.surfaces.sglang import SGLANG
from wsm.http.surfaces.vllm import VLLM

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
