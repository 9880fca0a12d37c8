"""The surfaces over real engines: paddle's tensors, memory and communicators.

=======================  ===================================================================================
module                   behind it
=======================  ===================================================================================
:mod:`.paddle_weights`   parameters of paddle layers on the host or on a device, and a second version
:mod:`.model_loading`    models that take a checkpoint themselves, with the loader attributes of old ones
:mod:`.memory`           what a process occupies, on the host and on a GPU, and what it may still take
:mod:`.paddle_groups`    communicators: Gloo's (with :mod:`._gloo_sockets`) and those of devices
:mod:`.rendezvous`       where the members of a group find each other
:mod:`.paddle_bytes`     a tensor's memory as bytes, the same on every build of paddle
=======================  ===================================================================================

None of them is imported here, since most bring paddle. Here is what names a call that a build lacks, and a
tensor that a backend does not handle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wsm.errors import BadInputError, UnfitError


def required_call(owner: Any, *spellings: str, needed_for: str) -> Callable[..., Any]:
    """Return the first of `spellings` that `owner` has: where builds spell a call differently, all are given.

    Raises BadInputError (``call-missing``) if it has none of them.
    """
    for spelling in spellings:
        call = getattr(owner, spelling, None)
        if callable(call):
            found: Callable[..., Any] = call
            return found
    name = getattr(owner, "__name__", type(owner).__name__)  # of a class or module its own
    raise call_missing(owner=name, call=" or ".join(spellings), needed_for=needed_for)


def call_missing(*, owner: str, call: str, needed_for: str) -> BadInputError:
    """Return the error of an installed build of paddle or FastDeploy that lacks a call."""
    return BadInputError(
        f"{owner} has no {call}, which {needed_for} needs; install a build that has it, or do without",
        code="call-missing",
        owner=owner,
        call=call,
        needed_for=needed_for,
    )


def unsupported_tensor(*, tensor: str, found: str, supported: str) -> BadInputError:
    """Return the error of a model that holds a tensor which wsm cannot release and load."""
    return UnfitError(
        f"tensor {tensor!r} is {found}; this backend handles {supported}",
        code="unsupported-tensor",
        tensor=tensor,
        found=found,
        supported=supported,
    )
