"""What FastDeploy's configuration and environment say, as wsm reads them."""

from __future__ import annotations

import enum
import json
from types import SimpleNamespace

import pytest

from wsm.config import ConfigurationError, config_from_mapping
from wsm.errors import BadInputError
from wsm.fastdeploy._configuration import read
from wsm.strategies import SnapshotSource

SEED = """{"transfer_mode": "gdr", "gpu_direct": true,
"gdr_mtp_chunk_size": 1, "gdr_prefetch_queue_size": 2}"""


class SpecMethod(enum.Enum):
    MTP = "mtp"


def told(strategy="ipc_snapshot", *, environment=None, rsync_config=None, parallel=None, **more):
    """Return what is read off a configuration with the attributes that FastDeploy's has."""
    parallel_config = {
        "tensor_parallel_rank": 1,
        "tensor_parallel_size": 2,
        "expert_parallel_rank": 0,
        "expert_parallel_size": 1,
        "enable_expert_parallel": False,
        "data_parallel_rank": 0,
        "local_data_parallel_id": 0,
        "engine_worker_queue_port": [8002],
        **(parallel or {}),
    }
    load_config = SimpleNamespace(dynamic_load_weight=True, load_strategy=strategy, rsync_config=rsync_config)
    fd_config = SimpleNamespace(
        model_config=SimpleNamespace(model="/models/policy"),
        load_config=load_config,
        parallel_config=SimpleNamespace(**parallel_config),
        **{name: SimpleNamespace(**values) for name, values in more.items()},
    )
    return read(fd_config, load_config, environment or {})


def built(facts, ranks=2):
    return config_from_mapping({"name": "g", "ranks": ranks, **facts.options})


def test_the_defaults_are_fastdeploys():
    facts = told()
    assert (facts.port, facts.tensor_parallel_rank, facts.tensor_parallel_size) == ("8002", 1, 2)
    config = built(facts)
    found = (facts.graphs, facts.drafts, facts.asks_cache_process, config.releases_cache)
    assert not any(found)
    assert config.shut_down_groups  # without expert parallelism
    assert config.unknown_tensors == "ignore"
    assert config.snapshot.directory == "/models/policy"
    assert config.snapshot.first_rank == 0
    assert (config.snapshot.shared_directory, config.snapshot.allow_pickle) == ("/shared_ipc_meta", True)


@pytest.mark.parametrize(
    ("experts", "said", "shuts_down"),
    [(False, None, True), (True, None, False), (True, True, True), (False, False, False)],
)
def test_groups_are_shut_down_unless_experts_are_spread_or_the_flag_says_otherwise(experts, said, shuts_down):
    parallel = {"enable_expert_parallel": experts, "expert_parallel_size": 2 if experts else 1}
    facts = told(parallel={**parallel, "shutdown_comm_group_if_worker_idle": said})
    assert built(facts).shut_down_groups is shuts_down
    assert facts.expert_parallel is experts


@pytest.mark.parametrize("said", [None, True])
def test_a_worker_of_one_rank_has_no_group_to_shut_down(said):
    parallel = {"tensor_parallel_rank": 0, "tensor_parallel_size": 1}
    facts = told(parallel={**parallel, "shutdown_comm_group_if_worker_idle": said})
    assert not built(facts, ranks=1).shut_down_groups


def test_files_are_named_by_the_rank_in_the_whole_job_and_the_device():
    environment = {"CUDA_VISIBLE_DEVICES": "4,5,6,7", "FLAGS_selected_gpus": "3"}
    snapshot = built(told(environment=environment, parallel={"data_parallel_rank": 3})).snapshot
    source = snapshot.source(SnapshotSource, 1, 2)
    assert (source.rank, source.resolved_device_id(environment), source.world_size) == (7, 7, None)
    with pytest.raises(BadInputError, match="UUID"):
        told(environment={"CUDA_VISIBLE_DEVICES": "GPU-1a2b"})


@pytest.mark.parametrize("part", [0, 3])
def test_a_part_of_several_takes_its_shards_of_a_version_that_is_published_for_the_whole_job(part):
    parallel = {"data_parallel_size": 4, "data_parallel_rank": part}
    source = built(told(parallel=parallel)).snapshot.source(SnapshotSource, 1, 2)
    assert (source.rank, source.world_size) == (2 * part + 1, None)


def test_the_ranks_of_expert_parallelism_are_one_group():
    parallel = {"enable_expert_parallel": True, "expert_parallel_size": 4, "data_parallel_rank": 1}
    snapshot = built(told(parallel={**parallel, "data_parallel_size": 2}), ranks=4).snapshot
    assert snapshot.first_rank == 0
    assert snapshot.source(SnapshotSource, 3, 4).world_size == 4


@pytest.mark.parametrize(
    ("ports", "part", "port"),
    [([8001, 8002], 1, "8002"), ("8001,8002", 1, "8002"), (8001, 0, "8001"), (["8001"], 1, "8001")],
)
def test_words_end_with_the_port_of_the_ranks_own_part(ports, part, port):
    assert told(parallel={"engine_worker_queue_port": ports, "local_data_parallel_id": part}).port == port
    named = told(parallel={"engine_worker_queue_port": ports, "local_engine_worker_queue_port": 9009})
    assert named.port == "9009"


def test_shared_tensors_come_from_fastdeploys_directory_in_its_own_format():
    ipc = built(told("ipc")).ipc
    assert (ipc.directory, ipc.allow_pickle) == ("/shared_ipc_meta", True)


@pytest.mark.parametrize("rsync_config", [SEED, json.loads(SEED)])
def test_the_rsync_config_of_fastdeploy_7951_is_read_as_it_stands(rsync_config):
    facts = told("rsync", rsync_config=rsync_config)
    config = built(facts)
    assert (config.strategy, config.rsync.mode, config.rsync.verify_checksum) == ("rsync", "gdr", False)
    assert (facts.mtp_chunk_size, config.releases_cache) == (1, False)
    assert built(told("rsync")).rsync.mode == "host"


@pytest.mark.parametrize("variable", ["FD_USE_CHECKPOINT_TRANSFER", "FD_USE_GDR_CHECKPOINT_TRANSFER"])
def test_the_newer_interface_goes_by_the_load_strategy(variable):
    direct = told("rsync", environment={variable: "1"}, rsync_config={"gdr_release_cache": True})
    assert (built(direct).strategy, built(direct).rsync.mode) == ("rsync", "gdr")
    assert built(direct).releases_cache
    shared = told("ipc_snapshot", environment={variable: "1"})
    assert (built(shared).strategy, built(shared).rsync.mode) == ("gdr", "ipc")
    assert built(shared).releases_cache
    assert built(told("rsync", environment={variable: "0"})).rsync.mode == "host"


def test_what_a_runner_has_is_read_in_either_generation():
    facts = told(
        cache_config={"num_cpu_blocks": 4, "kvcache_storage_backend": None},
        speculative_config={"method": SpecMethod.MTP},
        graph_opt_config={"use_cudagraph": True},
        routing_replay_config={"enable_routing_replay": True},
    )
    assert facts.asks_cache_process
    assert facts.drafts
    assert facts.graphs
    assert facts.routing_replay
    assert told(speculative_config={"method": "mtp"}).drafts
    assert not told(speculative_config={"method": "ngram"}).drafts
    assert told(cache_config={"num_cpu_blocks": 0, "kvcache_storage_backend": "mooncake"}).asks_cache_process


@pytest.mark.parametrize("strategy", ["normal", "meta", None])
def test_a_strategy_that_changes_no_weights_is_refused_by_the_option_that_sets_it(strategy):
    with pytest.raises(ConfigurationError, match="--load-strategy, one of ipc_snapshot, ipc, rsync"):
        told(strategy)


def test_what_fastdeploy_always_has_and_what_cannot_be_read_is_a_typed_error():
    with pytest.raises(ConfigurationError, match=r"has no parallel_config\.tensor_parallel_size"):
        read(SimpleNamespace(), SimpleNamespace(load_strategy="ipc"), {})
    for rsync_config in ("{", "[]", 7):
        with pytest.raises(ConfigurationError, match="rsync_config"):
            told("rsync", rsync_config=rsync_config)
