"""Stand-ins of FastDeploy's model runners of each generation and device, written after what those have.

Each has every call that its build has, by name and signature, and writes down what was called.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from wsm.actions.surfaces import GroupKind


def worker_config(model, port, *, strategy="ipc_snapshot", rsync=None, **parallel):
    """FastDeploy's configuration of a worker of one rank; `parallel` replaces fields of parallel_config."""
    of_one_rank = {
        "tensor_parallel_rank": 0,
        "tensor_parallel_size": 1,
        "enable_expert_parallel": False,
        "tp_group": None,
        "engine_worker_queue_port": port,
        "shutdown_comm_group_if_worker_idle": False,
    }
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**{**of_one_rank, **parallel}),
        load_config=SimpleNamespace(load_strategy=strategy, rsync_config=rsync),
        model_config=SimpleNamespace(model=str(model)),
    )


class Flags:
    """Stop flags; the flag of a slot with a request is down."""

    def __init__(self) -> None:
        self.values = np.ones((4, 1), dtype=bool)

    def numpy(self):
        return self.values

    def __setitem__(self, index, value) -> None:
        self.values[index] = value


class SharedInputs:
    """Shared inputs of 2026: items, and ``reset_share_inputs``."""

    def __init__(self, calls: list[str]) -> None:
        self.items = {"stop_flags": Flags()}
        self._calls = calls

    def __contains__(self, key) -> bool:
        return key in self.items

    def __getitem__(self, key):
        return self.items[key]

    def __setitem__(self, key, value) -> None:
        self.items[key] = value

    def pop(self, key, default=None):
        return self.items.pop(key, default)

    def reset_share_inputs(self) -> None:
        self._calls.append("reset_share_inputs")


class CacheTensor:
    shape = (64,)

    def element_size(self) -> int:
        return 2


class Model:
    """A model with graphs; builds spell the call like this."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def clear_grpah_opt_backend(self) -> None:
        self._calls.append("clear_grpah_opt_backend")


class Groups:
    """A worker's communicators, which write down what is done to them."""

    def __init__(self, calls: list[str]) -> None:
        self._calls, self._up = calls, {GroupKind.WORLD, GroupKind.TP, GroupKind.EP}

    def kinds(self):
        return (GroupKind.WORLD, GroupKind.TP, GroupKind.EP)

    def alive(self, kind) -> bool:
        return kind in self._up

    def group(self, kind):
        return kind if kind in self._up else None

    def barrier(self, kind) -> None:
        pass

    def shut_down(self, kind) -> None:
        self._up.discard(kind)
        self._calls.append(f"shut down {kind.value}")

    def restart(self, kind, incarnation) -> None:
        self._up.add(kind)
        self._calls.append(f"restart {kind.value}")


class Buffers:
    """FastDeploy's ``DeepEPBufferManager``."""

    calls: list[str]

    @classmethod
    def clear_buffer(cls) -> None:
        cls.calls.append("clear_buffer")

    @classmethod
    def recreate_buffer(cls) -> None:
        cls.calls.append("recreate_buffer")


class HpuRunner:
    """It makes the manager, and has no call for a change."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.model = Model(self.calls)
        self.share_inputs = {"stop_flags": Flags()}
        self.fd_config = SimpleNamespace(load_config=SimpleNamespace(dynamic_load_weight=True))

    def load_model(self) -> None:
        self.calls.append("load_model")

    def clear_cache(self) -> None:
        self.calls.append("clear_cache")
        self.share_inputs.pop("caches", None)

    def initialize_kv_cache(self, profile: bool = False) -> None:
        self.calls.append("initialize_kv_cache")
        self.share_inputs["caches"] = [CacheTensor()]

    def capture_model(self) -> None:
        self.calls.append("capture_model")


class Runner2025(HpuRunner):
    """The gpu runner of December 2025, with those of DCU and Iluvatar; metax's is alike."""

    num_gpu_blocks = 4

    def clear_requests(self) -> None:
        self.calls.append("clear_requests")
        self.share_inputs["stop_flags"][:] = True

    def clear_parameters(self, pid) -> None:
        raise AssertionError("wsm runs units, never the runner's own clear")

    def update_parameters(self, pid) -> None:
        raise AssertionError("wsm runs units, never the runner's own update")


class GcuRunner(Runner2025):
    """Its blocks have another name, and its own update never finalizes."""

    num_gcu_blocks = 4
    num_gpu_blocks = property()


class Proposer:
    """MTP's of 2026; a cache that is gone already cannot be cleared again."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls
        self.model = Model(calls)
        self.model_inputs = SharedInputs(calls)
        self.model_inputs.reset_model_inputs = lambda: calls.append("reset_model_inputs")
        self.model_inputs["caches"] = [CacheTensor()]

    def clear_mtp_cache(self, profile=False) -> None:
        self._calls.append("clear_mtp_cache")
        del self.model_inputs.items["caches"]

    def initialize_kv_cache(self, main_model_num_blocks, profile=False) -> None:
        self._calls.append(f"mtp.initialize_kv_cache {main_model_num_blocks}")
        self.model_inputs["caches"] = [CacheTensor()]


class Runner2026(Runner2025):
    """The gpu runner of 2026."""

    def __init__(self) -> None:
        super().__init__()
        self.share_inputs = SharedInputs(self.calls)
        self.proposer = Proposer(self.calls)

    def initialize_routing_replay_manager(self) -> None:
        self.routing_replay_manager = SimpleNamespace(
            clear_all_request=lambda: self.calls.append("clear_all_request")
        )


class RunnerV1(Runner2025):
    """Model runner v1: slots are counts of tokens; the cache lies on the runner, and its clear keeps that."""

    def __init__(self) -> None:
        super().__init__()
        del self.share_inputs
        self.request_state = SimpleNamespace(num_tokens_per_seq=np.zeros(4, dtype=np.int32))
        self.caches = None

    def clear_requests(self) -> None:
        self.calls.append("clear_requests")

    def clear_cache(self, profile: bool = False) -> None:
        self.calls.append("clear_cache")

    def initialize_kv_cache(self, profile: bool = False) -> None:
        self.calls.append("initialize_kv_cache")
        self.caches = [CacheTensor()]


class ControlledRunner(Runner2026):
    """The gpu runner of 2026 with its control requests: what they call of it and of the manager, in order.

    ``passes(point)`` is called where a test may let it fail; with `whole` it has MTP and expert parallelism.
    """

    def __init__(self, passes, *, whole: bool = False) -> None:
        super().__init__()
        self.passes = passes
        self.whole = whole
        self.use_cudagraph = True
        self.is_weight_sleeping = self.is_kvcache_sleeping = False
        self.dynamic_weight_manager = None

    @property
    def is_sleeping(self) -> bool:
        return self.is_weight_sleeping or self.is_kvcache_sleeping

    def load_model(self) -> None:
        self.calls.append("load_model")

    def update_weights(self, version=None, verify_checksum=False):
        self.passes("update begins")
        result = self.dynamic_weight_manager.update_weights_by_rdma(version, verify_checksum)
        self.passes("update ends")
        self.dynamic_weight_manager.finalize_update()
        return result

    def sleep(self, tags):
        tags = tags.split(",")
        self.passes("sleep begins")
        if "weight" in tags:
            if self.is_weight_sleeping:
                return
            self.model.clear_grpah_opt_backend()
            if self.whole:
                self.dynamic_weight_manager.clear_deepep_buffer()
            self.dynamic_weight_manager.clear_model_weight()
            if self.whole:
                self.dynamic_weight_manager.clear_communication_group()
            self.is_weight_sleeping = True
        self.passes("sleep is half done")
        if "kv_cache" in tags:
            if self.is_kvcache_sleeping:
                return
            if self.whole:
                self.proposer.clear_mtp_cache()
            self.clear_cache()
            self.is_kvcache_sleeping = True
        self.passes("sleep ends")

    def wakeup(self, tags):
        if tags == "weight" and self.use_cudagraph and self.is_kvcache_sleeping:
            raise RuntimeError("wake up [kv_cache] first")
        self.share_inputs.reset_share_inputs()
        if self.whole:
            self.proposer.model_inputs.reset_model_inputs()
        tags = tags.split(",")
        if "kv_cache" in tags:
            if not self.is_kvcache_sleeping:
                return
            if self.whole:
                self.proposer.initialize_kv_cache(main_model_num_blocks=self.num_gpu_blocks)
            self.initialize_kv_cache()
            self.is_kvcache_sleeping = False
        self.passes("wakeup is half done")
        if "weight" in tags:
            if not self.is_weight_sleeping:
                return
            if self.whole:
                self.dynamic_weight_manager.restart_communication_group()
                self.dynamic_weight_manager.recreate_deepep_buffer()
            self.dynamic_weight_manager.reload_model_weights()
            self.capture_model()
            self.is_weight_sleeping = False
        self.passes("wakeup ends")
