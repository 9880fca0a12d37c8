"""From receipts and errors of wsm to HTTP: statuses, headers, bodies. Pure; every front says it from here.

A 5xx says that trying again can help, and beside it only the 409 of an update that waits for another. What is
wrong with the caller's input is 400 where its words are, and 422 where its weights are, whoever found it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Send

import wsm
from wsm.errors import BadInputError, GroupError, RefusedError, WsmError
from wsm.receipt import Receipt

#: Seconds after which a caller that met another command, or a recovery, may ask again.
RETRY_AFTER_S: Final = 1

#: Statuses of codes that their family does not answer.
_STATUSES: Final = {
    "command-timeout": 504,
    "unsettled": 504,
    "unsupported": 501,
    "delta-checkpoint": 501,
    "request-unknown": 404,
    "not-found": 404,
    "method-not-allowed": 405,
    "body-too-large": 413,
    "too-many-headers": 431,
    "body-too-slow": 408,
    "unauthorized": 401,
    "forbidden": 403,
    "misdirected": 421,
    "wrong-group": 421,
    "upstream-unreachable": 502,
    "update-in-progress": 409,  # of a vLLM server, which may be asked again; trainers know it so
    "not-prepared": 409,  # so is what the ranks prepare still
    "lease-over": 409,  # to commit it again cannot help; what was prepared is gone
    "segment-missing": 503,  # of a group that is started again
    "segment-truncated": 500,
    "controller-stopped": 503,
    "teardown-failed": 500,
    "server-busy": 503,
    "publisher-busy": 503,  # another process adopts or publishes there, and will be done
    "admission-closed": 503,
    "fleet-stale": 503,
    "weights-not-whole": 503,
}


@dataclass(frozen=True)
class HttpAnswer:
    """What is sent, before any framework has seen it.

    Parameters
    ----------
    status : int
        The status code.
    body : object
        Plain values or a struct, sent as JSON; None: an empty body.
    headers : mapping of str to str
        Beside those that the body asks for.
    """

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class ToldError(msgspec.Struct):
    """An error: its public type, as docs/errors.md lists it, and what it carries."""

    type: str
    code: str
    message: str
    retryable: bool
    context: dict[str, Any]


class FailureAnswer(msgspec.Struct):
    """A request that was refused, or failed."""

    error: ToldError
    request_id: str | None


def json_bytes(content: object) -> bytes:
    """Return JSON; what it does not know becomes text, and a lone surrogate an escape."""
    return json.dumps(content, default=_plain).encode()


def _plain(value: object) -> object:
    if isinstance(value, frozenset | set):
        return sorted(value, key=str)
    return msgspec.to_builtins(value, enc_hook=str)


def status_of(error: BaseException) -> int:
    """Return the status that answers an error."""
    if not isinstance(error, WsmError):
        return 500
    if error.unfit:
        return 422
    by_family = 400 if isinstance(error, BadInputError) else 409 if isinstance(error, RefusedError) else 500
    return _STATUSES.get(error.code, 503 if error.retryable else by_family)


def failed(error: BaseException, *, request_id: str | None = None) -> HttpAnswer:
    """Return the answer to a request that ended in an error."""
    status = status_of(error)
    headers = {} if request_id is None else {"X-Wsm-Request-Id": request_id}
    if status == 503:
        left_s = error.context.get("left_s") if isinstance(error, WsmError) else None
        headers["Retry-After"] = str(max(math.ceil(left_s or 0), RETRY_AFTER_S))
    if isinstance(error, WsmError) and status == 405:
        headers["Allow"] = error.context["allow"]
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = {"error": error_mapping(error), "request_id": request_id}
    return HttpAnswer(status, body, headers)


def response_of(answer: HttpAnswer) -> Response:
    """Return an answer as the framework sends it."""
    if answer.body is None:
        return Response(b"", answer.status, answer.headers)
    return Response(json_bytes(answer.body), answer.status, answer.headers, "application/json")


async def send_failure(error: BaseException, send: Send, headers: Mapping[str, str] | None = None) -> None:
    """Send the answer to an error in the place of one that was not sent."""
    answer = failed(error)
    response = response_of(HttpAnswer(answer.status, answer.body, {**answer.headers, **(headers or {})}))
    await send({"type": "http.response.start", "status": answer.status, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body})


def succeeded(receipt: Receipt) -> HttpAnswer:
    """Return the answer to a command that ended well: its receipt."""
    return HttpAnswer(200, {"receipt": dict(receipt.to_mapping())}, receipt_headers(receipt))


def receipt_headers(receipt: Receipt) -> dict[str, str]:
    """Return what every answer says of the command behind it."""
    said = {
        "X-Wsm-Request-Id": receipt.request_id,
        "X-Wsm-Outcome": receipt.outcome.value,
        "X-Wsm-Version": receipt.version,
    }
    return {name: header_text(value) for name, value in said.items() if value is not None}


def header_text(value: str) -> str:
    """Return a value as a header can carry it: printable ASCII, all else escaped."""
    return value.encode("ascii", "backslashreplace").decode().translate({10: None, 13: None})


def error_mapping(error: BaseException) -> dict[str, Any]:
    """Return an error as plain values, from which :func:`error_of` makes it anew."""
    if not isinstance(error, WsmError):
        sentence = "the server met an error of its own; its log has the traceback"
        family = {"type": "InternalError", "code": "internal"}
        return {**family, "message": sentence, "retryable": True, "context": {}}
    public = next(kind for kind in type(error).__mro__ if hasattr(wsm, kind.__name__))
    return {
        "type": public.__name__,
        "code": error.code,
        "message": str(error),
        "retryable": error.retryable or status_of(error) in (500, 502, 503, 504),
        "context": json.loads(json_bytes(untold(error.context))),
    }


def untold(said: Any) -> Any:
    """Return values without what stays on its host, in logs: it quotes code and output of other processes."""
    if isinstance(said, Mapping):
        return {name: _UNTOLD.get(name, untold(value)) for name, value in said.items()}
    return [untold(each) for each in said] if isinstance(said, list | tuple) else said


_UNTOLD: Final[Mapping[str, object]] = {"remote_traceback": "", "traceback": "", "log": "", "deaths": ()}


def error_of(said: object, *, status: int) -> WsmError:
    """Return the error that a server's answer tells; the family alone where it tells none of ours.

    Parameters
    ----------
    said : object
        The body of the answer, as JSON had it.
    status : int
        Of the answer.
    """
    told = said.get("error") if isinstance(said, dict) else None
    kind: type[WsmError] = GroupError if status >= 500 else RefusedError
    if not isinstance(told, dict) or not isinstance(told.get("message"), str):
        return kind(f"the server answered {status}, and no error of wsm: {said!r}", code="http-status")
    name, code, context = told.get("type"), told.get("code"), told.get("context")
    if isinstance(name, str) and name.endswith("Error"):
        kind = getattr(wsm, name, kind)
    error = kind.__new__(kind)
    own = {str(key): value for key, value in context.items()} if isinstance(context, dict) else {}
    own = {key: value for key, value in own.items() if key not in ("message", "code", "unfit")}
    code = code if isinstance(code, str) else None
    WsmError.__init__(error, told["message"], code=code, unfit=status == 422, **own)
    return error
