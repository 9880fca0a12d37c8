from __future__ import annotations

import pytest

from tests.incident import incident
from tests.raising import raising
from wsm.strategies import errors
from wsm.strategies.files.shard_source import device_id_from_environment


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 3),
        ({"CUDA_VISIBLE_DEVICES": ""}, 3),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 3),
        ({"CUDA_VISIBLE_DEVICES": "6,7"}, 6),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6", "FLAGS_selected_gpus": "1"}, 5),
        ({"CUDA_VISIBLE_DEVICES": " 4 , 5 ", "FLAGS_selected_gpus": "1"}, 5),
        ({"FLAGS_selected_gpus": "2"}, 2),
        ({"FLAGS_selected_gpus": "0"}, 0),
    ],
)
def test_the_device_is_the_selected_entry_of_the_visible_ones_or_the_rank(environment, expected):
    assert device_id_from_environment(3, environment) == expected


@incident("FastDeploy C2-17")
@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"}, "UUID"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-GPU-8932f937/1/2"}, "MIG"),
        ({"CUDA_VISIBLE_DEVICES": "4,5", "FLAGS_selected_gpus": "2"}, "beyond the 2 entries"),
        ({"CUDA_VISIBLE_DEVICES": "", "FLAGS_selected_gpus": "0"}, "hides all"),
        ({"CUDA_VISIBLE_DEVICES": "-1", "FLAGS_selected_gpus": "0"}, "hides all"),
        ({"CUDA_VISIBLE_DEVICES": "4,5", "FLAGS_selected_gpus": "0,1"}, "not one index"),
        ({"FLAGS_selected_gpus": "first"}, "not one index"),
        ({"CUDA_VISIBLE_DEVICES": "4,,5", "FLAGS_selected_gpus": "1"}, "no number"),
    ],
)
def test_an_environment_without_a_number_is_refused_and_says_what_to_set(environment, problem):
    with raising(errors.bad_device_id, match=problem) as caught:
        device_id_from_environment(3, environment)
    assert "set device_id" in str(caught.value)
