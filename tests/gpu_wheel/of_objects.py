"""What is called on objects that paddle made, and whose it is: a reading of the source cannot know types.

The tests hold that these are the names that :mod:`tests.gpu_wheel.used_symbols` finds, no more and no fewer,
so that a name that was found on one build is looked for on every other one.
"""

from __future__ import annotations

TENSOR = "paddle.Tensor"
DENSE = "paddle.base.core.LoDTensor"
PLACE = "paddle.base.core.Place"
GROUP = "paddle.distributed.communication.group.Group"
NCCL = "paddle.base.core.ProcessGroupNCCL"
DEVICE = "paddle.base.core.libpaddle._gpuDeviceProperties"
GRAPH = "paddle.device.cuda.graphs.CUDAGraph"

#: Classes of which every public name counts as paddle's where the source uses it, but for the everyday ones.
CLASSES = (TENSOR, DENSE, PLACE, GROUP, DEVICE, GRAPH)

#: Name -> class.
OF_OBJECTS = {
    "_clear_data": TENSOR,
    "_holder_size": TENSOR,
    "_is_initialized": TENSOR,
    "_is_shared_buffer_with": TENSOR,
    "_offset": TENSOR,
    "_share_buffer_to": TENSOR,
    "_share_cuda": DENSE,
    "_slice": TENSOR,
    "backward": TENSOR,
    "capture_begin": GRAPH,
    "capture_end": GRAPH,
    "clear_grad": TENSOR,
    "contiguous": TENSOR,
    "copy_": TENSOR,
    "data_ptr": TENSOR,
    "detach": TENSOR,
    "element_size": TENSOR,
    "expand_as": TENSOR,
    "get_tensor": TENSOR,
    "is_contiguous": TENSOR,
    "is_cpu_place": PLACE,
    "place": TENSOR,
    "process_group": GROUP,
    "replay": GRAPH,
    "shutdown": NCCL,
    "stop_gradient": TENSOR,
    "stride": TENSOR,
    "total_memory": DEVICE,
    "view": TENSOR,
}

#: Attributes of paddle's objects that arrays, sets, events, objects of our own and tensors of torch have as
#: well, and what is asked for with ``getattr`` of other libraries'. Where they are called on paddle's, the
#: suite runs them.
EVERYDAY = frozenset(
    (
        "add",
        "all",
        "astype",
        "byteorder",
        "cast",
        "clip",
        "cpu",
        "data",
        "device",
        "dtype",
        "dynamic_load_weight",
        "exp",
        "flatten",
        "flip",
        "full_tensor",
        "get_name_mappings_to_training",
        "id",
        "is_meta",
        "item",
        "itemsize",
        "layout",
        "log",
        "malloc_trim",
        "mean",
        "mode",
        "model_type",
        "name",
        "ndim",
        "num_tokens_per_seq",
        "numpy",
        "offset",
        "process_final_after_loading",
        "rank",
        "ranks",
        "ravel",
        "request_state",
        "reset",
        "reshape",
        "rows",
        "set",
        "shape",
        "share_inputs",
        "size",
        "speculative_config",
        "split",
        "squeeze",
        "std",
        "sum",
        "take",
        "to",
        "tolist",
        "tp_group",
        "transpose",
        "type",
        "uint8",
        "unsqueeze",
        "update_suspend_routing_replay",
        "value",
        "values",
        "world_size",
    )
)
