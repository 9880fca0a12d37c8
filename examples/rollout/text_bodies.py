"""What trainers ask of ``/generate`` and ``/v1/completions``, and what they are answered. Pure.

The reference group samples by temperature, seed and stop tokens alone. Every other field that would change
the tokens is taken where its value changes nothing, and refused by its name where it does: no trainer
learns from tokens that were sampled otherwise than it asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from examples.rollout.request import FinishReason, Generation
from examples.rollout.text_requests import TextAsk
from wsm.http import errors
from wsm.http.bodies import Fields, number_up_to, token_ids, whole_from

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
    asked = Fields(body)
    parameters = asked.fields("sampling_params") or Fields({})
    prompts, batch = asked.required("input_ids", _prompts)
    _require_neutral(asked, {"input_ids", "sampling_params", "stream"})
    _require_neutral(parameters, {"temperature", "max_new_tokens", "stop_token_ids", "sampling_seed"})
    ask = TextAsk(
        prompts,
        parameters.get("max_new_tokens", whole_from(1)) or 128,
        _temperature(parameters),
        parameters.get("sampling_seed", whole_from(0)),
        parameters.get("stop_token_ids", token_ids) or (),
    )
    return TextRequest(ask, asked.get("rid", _names) or (), batch, asked.flag("stream", otherwise=False))


def completions_request(body: Mapping[str, Any]) -> TextRequest:
    """Read the body of ``/v1/completions``.

    Raises
    ------
    BadInputError (``bad-body``)
        As :func:`sglang_request`.
    """
    asked = Fields(body)
    prompts, batch = asked.required("prompt", _prompts)
    if body.get("logprobs") not in (None, False, True, 0):
        raise errors.bad_body(field="logprobs", problem="only 0 is possible: of the chosen tokens alone")
    taken = {"prompt", "max_tokens", "temperature", "seed", "stop_token_ids", "stream", "logprobs"}
    _require_neutral(asked, taken)
    ask = TextAsk(
        prompts,
        asked.get("max_tokens", whole_from(1)) or 16,
        _temperature(asked),
        asked.get("seed", whole_from(0)),
        asked.get("stop_token_ids", token_ids) or (),
    )
    names = asked.get("request_id", _names) or ()
    return TextRequest(ask, names, batch, asked.flag("stream", otherwise=False))


def sglang_answer(
    answer: Generation, *, name: str, prompt_tokens: int, version: str | None, seconds: float, word: Word
) -> dict[str, Any]:
    """Return one answer as ``/generate`` gives it; `version` is what the group serves where no token says."""
    return {
        "text": text_of(answer.tokens),
        "output_ids": list(answer.tokens),
        "meta_info": {
            "id": name,
            "finish_reason": _sglang_reason(answer),
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


def sglang_part(whole: Generation, **facts: Any) -> dict[str, Any]:
    """Return what a stream says so far: all tokens until now, and no reason to end."""
    said = sglang_answer(whole, version=None, **facts)
    said["meta_info"]["finish_reason"] = None
    return said


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


def _require_neutral(asked: Fields, taken: set[str]) -> None:
    for name in asked.names():
        if name not in taken:
            asked.get(name, partial(_neutral, name))


def _neutral(name: str, value: Any) -> None:
    if name in _IGNORED or value in _NEUTRAL.get(name, ()) or _is_empty(value):
        return
    if name == "top_k" and type(value) is int and value >= _EVERY_TOKEN:
        return
    raise ValueError("the reference group samples by temperature, seed and stop tokens")


def _is_empty(value: Any) -> bool:
    return (
        value is None
        or value is False
        or (type(value) in (int, float) and value == 0)
        or value in ("", [], {})
    )


def _prompts(value: Any) -> tuple[tuple[tuple[int, ...], ...], bool]:
    if (
        isinstance(value, list)
        and 0 < len(value) <= _MAX_BATCH
        and all(isinstance(each, list) for each in value)
    ):
        prompts, batch = tuple(token_ids(prompt) for prompt in value), True
    else:
        prompts, batch = (token_ids(value),), False
    if not all(prompts):
        raise ValueError(f"it must be token ids, or up to {_MAX_BATCH} lists of them: there is no tokenizer")
    return prompts, batch


def _temperature(asked: Fields) -> float:
    value = asked.get("temperature", number_up_to(1e6))
    return 1.0 if value is None else value


def _names(value: Any) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [value]
    if any(not isinstance(name, str) or not 0 < len(name) <= 256 for name in names):
        raise TypeError("it must be a text of up to 256 characters, or several")
    return tuple(names)
