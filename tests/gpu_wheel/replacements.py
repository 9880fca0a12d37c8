"""What a paddle build lacks of what the library uses, and what happens there instead; tests check it.

``CPU`` stands for every build without CUDA, ``2.6`` for paddlepaddle-gpu 2.6.2.
"""

from __future__ import annotations

CPU, GPU_2_6 = "CPU", "2.6"

#: Symbol -> (builds that lack it, what happens instead).
REPLACEMENTS: dict[str, tuple[frozenset[str], str]] = {
    "paddle.Tensor._holder_size": (
        frozenset({GPU_2_6}),
        "paddle_bytes.memory_is_enough takes a slice, which compares the size",
    ),
    "paddle.distributed.shutdown_process_group": (
        frozenset({GPU_2_6}),
        "DeviceGroups refuses with BadInputError before anything begins",
    ),
    "paddle.distributed.restart_process_group": (
        frozenset({GPU_2_6}),
        "DeviceGroups refuses with BadInputError before anything begins",
    ),
    "paddle.base.core.ProcessGroupNCCL.shutdown": (
        frozenset({CPU, GPU_2_6}),
        "DeviceGroups refuses with BadInputError before anything begins",
    ),
    "paddle.base.core.DenseTensor": (
        frozenset({GPU_2_6}),
        "pickled_metas asks for LoDTensor first, which is the same class",
    ),
    "paddle.base.core.LoDTensor._new_shared_cuda": (
        frozenset({CPU}),
        "metas of device memory are refused with code bad-device-meta",
    ),
    "paddle.base.core.LoDTensor._share_cuda": (
        frozenset({CPU}),
        "SharedDeviceTensors refuses to publish with code bad-device-meta",
    ),
    **dict.fromkeys(
        (
            "paddle.device.memory_reserved",
            "paddle.device.memory_allocated",
            "paddle.device.empty_cache",
        ),
        (frozenset({CPU, GPU_2_6}), "DeviceMemory asks paddle.device.cuda, where that is there"),
    ),
    "paddle.base.core.libpaddle._gpuDeviceProperties.total_memory": (
        frozenset({CPU}),
        "DeviceMemory refuses with BadInputError before anything is measured",
    ),
}

#: Tests that the GPU wheel of 2.6 cannot pass because paddle 2.6 lacks what they are about: a pattern that
#: their ids match, and why. Each is run and must fail there; one that passes is an error in this table.
LACKING_IN_2_6: dict[str, str] = {
    r"tests/actions/test_paddle_weights\.py::.*float8_": "paddle 2.6 has no float8",
    r"tests/strategies/files/test_pickle\.py::test_float8_has_lost": "paddle 2.6 has no float8",
    r"tests/strategies/files/test_pickle\.py::test_paddles_own_reader": (
        "its paddle.load reads no safetensors"
    ),
    r"tests/strategies/ipc/test_pickled_metas\.py::test_(a_pickle_is_refused_u|an_allowed|its_version)": (
        "its metas of host memory have five fields, not the seven of FastDeploy's builds"
    ),
    r"tests/strategies/ipc/test_shared_tensors\.py::test_the_numbers_are_those_of_paddle": (
        "its metas of host memory have five fields, not the seven of FastDeploy's builds"
    ),
    r"tests/gpu/test_weights_of_a_device\.py::test_every_dtype.*float8": "paddle 2.6 has no float8",
    r"tests/gpu/test_groups_of_two_ranks\.py::.*\[gpu\]": "it has no shutdown_process_group for NCCL",
    r"tests/demo/test_trainer\.py::test_a_mixture_of_experts_can_be_trained": (
        "it cannot go back through a gather of no rows, which an expert without tokens is"
    ),
}
