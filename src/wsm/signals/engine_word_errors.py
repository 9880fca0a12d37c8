"""What can be wrong with FastDeploy's int32 words, which lie outside of the segment."""

from __future__ import annotations

from wsm.errors import BadInputError, RefusedError


class EngineWordMissingError(RefusedError):
    """The engine has not created that word, or has removed it."""

    def __init__(self, *, path: str) -> None:
        super().__init__(
            f"there is no engine word {path}; start the engine first and check the suffix "
            "(its own engine worker queue port, one per data-parallel part)",
            path=path,
        )


class EngineWordExistsError(RefusedError):
    """The word exists already; FastDeploy would unlink it here and split two engines silently."""

    def __init__(self, *, path: str) -> None:
        super().__init__(
            f"the engine word {path} exists already; use another suffix, "
            "or remove the file if no engine with this suffix lives",
            path=path,
        )


class EngineWordSizeError(BadInputError):
    """The file is too small to be an int32 word."""

    def __init__(self, *, path: str, size: int) -> None:
        super().__init__(
            f"the engine word {path} has {size} bytes where an int32 needs 4; "
            "remove the file and restart the engine",
            path=path,
            size=size,
        )


class EngineWordValueError(BadInputError):
    """A value that no int32 holds."""

    def __init__(self, *, path: str, value: int) -> None:
        super().__init__(
            f"{value} does not fit the int32 word {path}; pass a status code", path=path, value=value
        )
