"""Options that cannot be, well-typed as they are, are refused with file, section and option."""

from __future__ import annotations

import json

import pytest

from wsm.config import ConfigurationError, WsmConfig, load_config
from wsm.strategies.ipc.source import IpcConfig, IpcSource
from wsm.strategies.snapshot.source import SnapshotConfig
from wsm.worker.loading import Sources


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ranks": 0}, "'ranks' is 0; it must be a whole number from 1 to 1024"),
        ({"load_threads": -1}, "'load_threads' is -1; it must be a whole number from 0"),
        (
            {"snapshot": {"device_ids": [1]}},
            "snapshot: device_ids: 1 ids for 2 ranks; give one per rank",
        ),
        (
            {"snapshot": {"readahead_bytes": -1}},
            "snapshot: 'readahead_bytes' is -1; it must be a whole number from 0",
        ),
        (
            {"snapshot": {"verify": "perhaps"}},
            "snapshot: 'verify' is 'perhaps'; it must be one of required, if_promi",
        ),
        ({"ipc": {"device_ids": [0, 1, 2]}}, "ipc: device_ids: 3 ids for 2 ranks"),
        ({"ipc": {"orphans": "keep"}}, "ipc: 'orphans' is 'keep'; it must be one of copy, refuse"),
        ({"strategy": "ipc_async"}, "ipc_async: address: is missing; give the trainer's"),
        ({"delta": {"fallback": "hope"}}, "delta: 'fallback' is 'hope'; it must be one of full, refuse"),
        (
            {"engine_words": {"answers": ["all"]}},
            "engine_words: 'answers' is ['all']; it must be a list of one of weights",
        ),
        ({"communicators": {"tp": [[0], [1]]}}, "communicators: no communicator joins the ranks [0] with"),
        ({"mooncake": {"silence_s": 0}}, "mooncake: 'silence_s' is 0; it must be a number more than 0"),
        ({"rsnc": {}}, "'rsnc' is unknown; did you mean 'rsync'?"),
    ],
)
def test_it_is_refused_with_the_file_the_section_and_the_option(tmp_path, options, text):
    file = tmp_path / "wsm.yaml"
    file.write_text(json.dumps({"name": "g", "ranks": 2, **options}))
    with pytest.raises(ConfigurationError) as caught:
        load_config(file)
    assert str(caught.value).startswith(f"configuration {file}: {text}")


def test_what_only_a_user_of_a_section_needs_may_be_absent_elsewhere(tmp_path):
    file = tmp_path / "wsm.yaml"
    file.write_text(json.dumps({"name": "g", "ranks": 2, "strategy": "ipc", "ipc_async": {"connect_s": 3}}))
    assert load_config(file).ipc_async.connect_s == 3


def test_in_code_sections_are_arguments_and_attributes_and_each_rank_gets_its_own_device():
    config = WsmConfig(
        "g", 2, strategy="ipc", ipc=IpcConfig("/d", (5, 7), adopt=False), snapshot=SnapshotConfig("/models")
    )
    assert (config.snapshot.directory, config.ipc.adopt) == ("/models", False)
    assert Sources(config).of(1) == IpcSource("/d", 1, device_id=7, world_size=2, adopt=False)
    with pytest.raises(ConfigurationError, match="configuration ipc: device_ids: 1 ids for 2 ranks"):
        WsmConfig("g", 2, ipc=IpcConfig("/d", (5,)))
