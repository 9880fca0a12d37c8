"""What is asked of ``/generate`` and ``/v1/completions`` is read field by field: done, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from examples.rollout.request import FinishReason, Generation
from examples.rollout.text_bodies import completions_request, sglang_answer, sglang_request
from examples.rollout.text_requests import TextAsk
from wsm.errors import BadInputError

#: As slime and AReaL send them; sampling that changes nothing is among it.
SLIME = {
    "input_ids": [1, 2],
    "return_logprob": True,
    "sampling_params": {
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": -1,
        "max_new_tokens": 7,
        "stop": None,
        "stop_token_ids": [3, 4],
        "skip_special_tokens": True,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
        "sampling_seed": 5,
        "frequency_penalty": 0.0,
        "ignore_eos": True,
    },
    "image_data": [],
    "stream": False,
}
AREAL = {
    "prompt": [1, 2],
    "top_p": 1.0,
    "top_k": 100_000_000,
    "max_tokens": 7,
    "temperature": 0.5,
    "stop_token_ids": [3, 4],
    "seed": 5,
    "ignore_eos": False,
    "skip_special_tokens": False,
    "return_tokens_as_token_ids": True,
    "logprobs": 0,
    "use_beam_search": False,
    "n": 1,
    "stream": False,
}


def test_what_trainers_send_is_taken_and_means_the_same_by_either_route() -> None:
    expected = TextAsk(((1, 2),), 7, 0.5, 5, (3, 4))
    for read in (sglang_request(SLIME), completions_request(AREAL)):
        assert (read.ask, read.batch, read.stream, read.names) == (expected, False, False, ())
    batch = sglang_request({"input_ids": [[1], [2, 3]], "rid": ["a", "b"], "sampling_params": None})
    assert (batch.ask.prompts, batch.batch, batch.names) == (((1,), (2, 3)), True, ("a", "b"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_p", 0.9),
        ("top_k", 5),
        ("min_p", 0.1),
        ("frequency_penalty", 0.5),
        ("repetition_penalty", 1.1),
        ("n", 2),
        ("stop", ["end"]),
        ("regex", "a+"),
        ("min_new_tokens", 3),
        ("max_new_tokens", 0),
        ("max_new_tokens", "7"),
        ("temperature", -1),
        ("temperature", float("nan")),
        ("temperature", True),
        ("stop_token_ids", 3),
        ("sampling_seed", -1),
        ("custom_params", {"a": 1}),
    ],
)
def test_sampling_that_the_group_cannot_do_is_refused_by_its_field(field: str, value: Any) -> None:
    with pytest.raises(BadInputError) as caught:
        sglang_request({"input_ids": [1], "sampling_params": {field: value}})
    assert caught.value.context["field"] == f"sampling_params.{field}"
    names = {"max_new_tokens": "max_tokens", "sampling_seed": "seed"}
    with pytest.raises(BadInputError) as caught:
        completions_request({"prompt": [1], names.get(field, field): value})
    assert caught.value.context["field"] == names.get(field, field)


@pytest.mark.parametrize(
    "body",
    [
        {"text": "hello"},
        {"input_ids": "hello"},
        {"input_ids": []},
        {"input_ids": [[]]},
        {"input_ids": [1, True]},
        {"input_ids": [1], "return_routed_experts": True},
        {"input_ids": [1], "lora_path": "x"},
        {"input_ids": [1], "top_logprobs_num": 2},
        {"input_ids": [1], "rid": 7},
        {"input_ids": [1], "stream": "yes"},
        {"input_ids": [1], "sampling_params": []},
    ],
)
def test_what_is_no_request_for_text_is_bad_input(body: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        sglang_request(body)


@pytest.mark.parametrize("body", [{}, {"prompt": "hello"}, {"prompt": [1], "logprobs": 5}, {"prompt": ["a"]}])
def test_what_is_no_request_for_a_completion_is_bad_input(body: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        completions_request(body)


def test_an_answer_without_a_token_says_so_and_its_log_probabilities_are_a_list_all_the_same() -> None:
    nothing = Generation("0", (), (), (), FinishReason.ABORTED)
    facts = {"name": "a", "prompt_tokens": 2, "version": "7", "seconds": 0.1, "word": lambda label: label}
    said = sglang_answer(nothing, **facts)["meta_info"]
    assert said["output_token_logprobs"] == said["token_versions"] == []
    assert (said["finish_reason"]["type"], said["weight_version"]) == ("abort", "7")
    assert said["finish_reason"]["message"].startswith("Abort before prefill")
