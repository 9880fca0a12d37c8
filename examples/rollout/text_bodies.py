"""What trainers ask of ``/generate`` and ``/v1/completions``, and what they are answered. Pure.

The reference group samples by temperature, seed and stop tokens alone. Every other field that would change
the tokens is taken where its value changes nothing, and refused by its name where it does: no trainer
learns from tokens that were sampled otherwise than it asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from examples.rollout.request import FinishReason, Generation
from examples.rollout.text_requests import TextAsk
from wsm.http import errors
from wsm.http.bodies import as_struct, texts_of, without_nulls

#: From a version's label to what a trainer calls it; None: it calls another so by now.
Word: TypeAlias = Callable[[str | None], str | None]

#: Values that leave the tokens as they are; of other fields only null, false, 0 and what is empty.
_NEUTRAL: Mapping[str, tuple[float, ...]] = {
    "top_p": (1,),
    "top_k": (-1,),
    "repetition_penalty": (1,),
    "n": (1,),
    "best_of": (1,),
    "length_penalty": (1,),
    "logprob_start_len": (-1,),
}
#: They say something of text, of which there is none here, or nothing of the tokens.
_IGNORED = frozenset(
    {
        *("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim"),
        *("include_stop_str_in_output", "detokenize", "return_logprob", "return_text_in_logprobs"),
        *("return_token_ids", "return_completion_token_ids", "return_tokens_as_token_ids", "model"),
        *("user", "priority", "session_id"),
        *("data_parallel_rank", "bootstrap_room", "log_metrics", "stream_options", "request_id", "rid"),
    }
)
#: A choice among so many is one among all: no vocabulary is larger.
_EVERY_TOKEN = 1 << 20
_MAX_BATCH = 4096


_Count: TypeAlias = Annotated[int, Meta(ge=1)]
_Seed: TypeAlias = Annotated[int, Meta(ge=0)]
_Temperature: TypeAlias = Annotated[float, Meta(ge=0, le=1e6)]
_Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]


class _SamplingParams(msgspec.Struct):
    max_new_tokens: _Count = 128
    temperature: _Temperature = 1.0
    sampling_seed: _Seed | None = None
    stop_token_ids: tuple[int, ...] = ()


class _GenerateBody(msgspec.Struct):
    input_ids: list[int | list[int]]
    sampling_params: _SamplingParams = msgspec.field(default_factory=_SamplingParams)
    rid: list[_Name] | _Name = []
    stream: bool = False


class _CompletionsBody(msgspec.Struct):
    prompt: list[int | list[int]]
    max_tokens: _Count = 16
    temperature: _Temperature = 1.0
    seed: _Seed | None = None
    stop_token_ids: tuple[int, ...] = ()
    request_id: list[_Name] | _Name = []
    stream: bool = False


@dataclass(frozen=True)
class TextRequest:
    """A request, read.

    Parameters
    ----------
    ask : TextAsk
        What the group is asked for.
    names : tuple of str
        What the caller calls the request; empty where it has not said.
    batch : bool
        Whether the answers are a list.
    stream : bool
        Whether they are told as they grow.
    """

    ask: TextAsk
    names: tuple[str, ...]
    batch: bool
    stream: bool


def sglang_request(body: Mapping[str, Any]) -> TextRequest:
    """Read the body of SGLang's ``/generate``.

    Raises
    ------
    BadInputError (``bad-body``)
        By the field, if it is not what it must be, or asks for what is not here.
    """
    said = without_nulls(body)
    asked = as_struct(said, _GenerateBody)
    how = asked.sampling_params
    prompts, batch = _prompts("input_ids", asked.input_ids)
    _require_neutral(said, {"input_ids", "sampling_params", "stream"})
    taken = {"temperature", "max_new_tokens", "stop_token_ids", "sampling_seed"}
    _require_neutral(said.get("sampling_params", {}), taken, within="sampling_params.")
    ask = TextAsk(prompts, how.max_new_tokens, how.temperature, how.sampling_seed, how.stop_token_ids)
    return TextRequest(ask, texts_of(asked.rid) or (), batch, asked.stream)


def completions_request(body: Mapping[str, Any]) -> TextRequest:
    """Read the body of ``/v1/completions``.

    Raises
    ------
    BadInputError (``bad-body``)
        As :func:`sglang_request`.
    """
    said = without_nulls(body)
    asked = as_struct(said, _CompletionsBody)
    prompts, batch = _prompts("prompt", asked.prompt)
    if said.get("logprobs", 0) not in (False, True, 0):
        raise errors.bad_body(field="logprobs", problem="only 0 is possible: of the chosen tokens alone")
    taken = {"prompt", "max_tokens", "temperature", "seed", "stop_token_ids", "stream", "logprobs"}
    _require_neutral(said, taken)
    ask = TextAsk(prompts, asked.max_tokens, asked.temperature, asked.seed, asked.stop_token_ids)
    return TextRequest(ask, texts_of(asked.request_id) or (), batch, asked.stream)


def sglang_answer(
    answer: Generation,
    *,
    name: str,
    prompt_tokens: int,
    version: str | None,
    seconds: float,
    word: Word,
    ended: bool = True,
) -> dict[str, Any]:
    """Return one answer as ``/generate`` gives it; `version` is what the group serves where no token says."""
    return {
        "text": text_of(answer.tokens),
        "output_ids": list(answer.tokens),
        "meta_info": {
            "id": name,
            "finish_reason": _sglang_reason(answer) if ended else None,
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(answer.tokens),
            "cached_tokens": answer.cached_tokens,
            **_versions(answer, version, word),
            "mixed_tokens": list(answer.mixed),
            "input_token_logprobs": [],
            "output_token_logprobs": [
                [logprob, token, None] for token, logprob in zip(answer.tokens, answer.logprobs, strict=True)
            ],
            "e2e_latency": seconds,
        },
    }


def completion_choice(
    index: int,
    answer: Generation,
    *,
    prompt: Sequence[int],
    version: str | None,
    word: Word,
    ended: bool = True,
) -> dict[str, Any]:
    """Return one choice as ``/v1/completions`` gives it, with vLLM's and FastDeploy's names for token ids."""
    stopped = ended and answer.finish_reason is FinishReason.STOP
    reason = {FinishReason.ABORTED: "abort"}.get(answer.finish_reason, answer.finish_reason.value)
    return {
        "index": index,
        "text": text_of(answer.tokens),
        "token_ids": list(answer.tokens),
        "completion_token_ids": list(answer.tokens),
        "prompt_token_ids": list(prompt),
        "logprobs": {
            "tokens": [f"token_id:{token}" for token in answer.tokens],
            "token_logprobs": list(answer.logprobs),
            "top_logprobs": None,
            "text_offset": [],
        },
        "finish_reason": reason if ended else None,
        "stop_reason": answer.tokens[-1] if stopped else None,
        "mixed_tokens": list(answer.mixed),
        **_versions(answer, version, word),
    }


def completions_answer(
    choices: Sequence[Mapping[str, Any]], *, name: str, model: object, created: int, usage: bool = True
) -> dict[str, Any]:
    """Return the body of ``/v1/completions``, whole or a part of a stream."""
    said: dict[str, Any] = {
        "id": name,
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": list(choices),
    }
    if usage:
        prompt = sum(len(choice["prompt_token_ids"]) for choice in choices)
        completion = sum(len(choice["token_ids"]) for choice in choices)
        said["usage"] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
    return said


def text_of(tokens: Sequence[int]) -> str:
    """Return the tokens in decimal: the group has no tokenizer, and its model no words."""
    return " ".join(map(str, tokens))


def _versions(answer: Generation, version: str | None, word: Word) -> dict[str, Any]:
    """Return which weights made an answer: by the trainer's word, also of each token, and by label."""
    last = answer.versions[-1] if answer.versions else version
    words = [word(each) for each in answer.versions]
    return {"weight_version": word(last), "wsm_version": last, "token_versions": words}


def _sglang_reason(answer: Generation) -> dict[str, Any]:
    if answer.finish_reason is FinishReason.STOP:
        return {"type": "stop", "matched": answer.tokens[-1]}
    if answer.finish_reason is FinishReason.LENGTH:
        return {"type": "length", "length": len(answer.tokens)}
    # Clients know by these words that there is no token at all.
    message = "Aborted" if answer.tokens else "Abort before prefill"
    return {"type": "abort", "message": message, "status_code": None, "err_type": None}


def _require_neutral(said: Mapping[str, Any], taken: set[str], within: str = "") -> None:
    for name, value in said.items():
        if name in taken or name in _IGNORED or value in _NEUTRAL.get(name, ()) or _is_empty(value):
            continue
        if name == "top_k" and type(value) is int and value >= _EVERY_TOKEN:
            continue
        problem = f"the reference group samples by temperature, seed and stop tokens, and it is {value!a:.80}"
        raise errors.bad_body(field=f"{within}{name}", problem=problem)


def _is_empty(value: Any) -> bool:
    return value is False or (type(value) in (int, float) and value == 0) or value in ("", [], {})


def _prompts(field: str, said: list[int | list[int]]) -> tuple[tuple[tuple[int, ...], ...], bool]:
    lists = [tuple(each) for each in said if isinstance(each, list)]
    tokens = tuple(each for each in said if isinstance(each, int))
    if not said or len(lists) > _MAX_BATCH or (lists and (tokens or not all(lists))):
        problem = f"it must be token ids, or up to {_MAX_BATCH} lists of them: there is no tokenizer"
        raise errors.bad_body(field=field, problem=problem)
    return (tuple(lists), True) if lists else ((tokens,), False)
