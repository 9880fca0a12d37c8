"""FastDeploy's types of what fails in the facade, beside the error's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from wsm.errors import WsmError

_Error = TypeVar("_Error", bound=WsmError)

#: The type that FastDeploy raises, by the code of what has failed; it is RuntimeError for all else.
_TYPES: Mapping[str, type[Exception]] = {
    "snapshot-not-found": FileNotFoundError,
    "metas-not-found": FileNotFoundError,
    "dtype-mismatch": TypeError,
    "shape-mismatch": ValueError,
    "not-covered": ValueError,
    "empty-snapshot": ValueError,
    "configuration": ValueError,
    "bad-device-id": ValueError,
}


def cause_of(error: WsmError) -> str:
    """Return the code of what has failed: on a rank, where the error tells of one."""
    return str(error.context.get("error", error.code))


def as_fastdeploys(error: _Error, cause: str | None = None) -> _Error:
    """Return an error that is of FastDeploy's type, too; its own type, code and facts stay.

    Parameters
    ----------
    error : WsmError
        What a method of the facade raises.
    cause : str or None
        The code of what has failed; None: as the error says.
    """
    cause = cause_of(error) if cause is None else cause
    own, kind = type(error), _TYPES.get(cause, RuntimeError)
    if issubclass(own, kind):
        return error
    pickled = {"code": own.code, "__reduce__": lambda _: (as_fastdeploys, (error, cause))}
    rebuild, said = error.__reduce__()
    made: _Error = rebuild(type(own.__name__, (own, kind), pickled), *said[1:])
    return made
