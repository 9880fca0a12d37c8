"""The surfaces of an engine of torch: its weights and its memory. Here alone torch is imported.

=======================  ===================================================================================
module                   behind it
=======================  ===================================================================================
:mod:`.weights`          parameters and persistent buffers of modules, on any device, and a second version
:mod:`.memory`           what a device holds, and what may still be taken of it
=======================  ===================================================================================

docs/torch.md shows a whole loop. Scheduler, KV cache, graphs and communicators are the engine's own.
"""

from wsm.torch.memory import TorchDeviceMemory, memory_on
from wsm.torch.weights import TorchStaging, TorchWeights

__all__ = ["TorchDeviceMemory", "TorchStaging", "TorchWeights", "memory_on"]
