"""What vLLM is started with: wsm's options among its own, and what wsm cannot keep whole."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from wsm.errors import BadInputError, RefusedError
from wsm.http.bodies import as_struct
from wsm.vllm.versions import EngineTerms

#: Releases of vLLM that this is tested with.
SUPPORTED = ("0.31.", "0.32.")


class ServerOptions(EngineTerms, frozen=True, forbid_unknown_fields=True):
    """What ``--additional-config '{"wsm": {...}}'`` says, besides what every rank is told.

    `roots`: below which versions may lie; without it, the directory that the model lies in. `store`: where
    they are published. `version`: what vLLM was started with; else the name of its directory. `answer_s`:
    in which the ranks answer whatever they are asked; they do between two steps. `committed`: the file that
    says what was committed last, as the body of an update. `push_s`: seconds for each verb of a trainer that
    pushes, and between two. `partial_pushes`: whether it may push a part of the tensors.
    """

    roots: list[str] | None = None
    store: str | None = None
    version: str | None = None
    answer_s: float = 60.0
    committed: str | None = None
    push_s: float = 300.0
    partial_pushes: bool = False


def check_words(words: Sequence[str], *, is_vllm: bool) -> None:
    """Refuse what ``vllm serve`` is told and wsm cannot keep, before a model is loaded.

    `is_vllm`: whether this process is vLLM, where the words are all that it gets but for a file of them.

    Raises
    ------
    BadInputError, RefusedError
        As :func:`options_of` and :func:`require_known`, as far as words say it.
    """
    said = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        said[name.replace("_", "-")] = value if equals else following
    with suppress(ValueError):  # of what is no JSON vLLM says so itself
        options_of(json.loads(said.get("--additional-config", "{}")))
    if is_vllm and not said.keys() & {"--help", "-h", "--config"}:
        groups = said.get("--data-parallel-size", said.get("-dp", ""))
        require_known(
            SimpleNamespace(
                worker_extension_cls=said.get("--worker-extension-cls"),
                data_parallel_size=int(groups) if groups.isdigit() else 1,
                grpc="--grpc" in said,
            )
        )


def options_of(additional: Any) -> ServerOptions:
    """Return what ``--additional-config`` says to wsm.

    Raises
    ------
    BadInputError (``bad-vllm-option``)
        If it says what wsm does not know; what is known is named beside it.
    """
    said = additional.get("wsm", {}) if isinstance(additional, dict) else {}
    try:
        return as_struct(said, ServerOptions)
    except BadInputError as error:
        problem = f"--additional-config: of wsm: {error}"
        raise BadInputError(problem, code="bad-vllm-option", **error.context) from None


def require_known(args: Any) -> None:
    """See that wsm keeps a vLLM of this release, started with these `args`.

    Raises
    ------
    RefusedError (``unsupported-vllm``)
        If not; all that is in the way is named.
    """
    version = importlib.import_module("vllm").__version__
    known = ", ".join(f"{release}*" for release in SUPPORTED)
    problems = {
        f"vLLM is {version}, and wsm knows {known}": not version.startswith(SUPPORTED),
        "--worker-extension-cls wsm.vllm.Worker is missing": not args.worker_extension_cls,
        "--data-parallel-size is more than 1": (args.data_parallel_size or 1) > 1,
        "--grpc has no gate": getattr(args, "grpc", False),
    }
    found = [problem for problem, there in problems.items() if there]
    if found:
        raise RefusedError(f"wsm cannot keep this vLLM whole: {'; '.join(found)}", code="unsupported-vllm")
