"""What can be wrong with words, segments and signals. Knows no states."""

from __future__ import annotations

from wsm.errors import BadInputError, InternalError


class FieldOverflowError(BadInputError):
    """A field of a word has grown past its width; wrapping would make an old word look new."""

    def __init__(self, *, field: str, value: int, limit: int) -> None:
        super().__init__(
            f"{field} {value} does not fit its field (0..{limit}) and must not wrap; "
            "restart the group, which begins at epoch 1 and sequence 0 again",
            field=field,
            value=value,
            limit=limit,
        )


class WordFormatError(InternalError):
    """A word holds a code that this build does not know: torn, overwritten, or of another build."""

    def __init__(self, *, kind: str, word: int) -> None:
        super().__init__(
            f"the {kind} word {word:#018x} is none that this build of wsm writes; "
            "check that all processes of the group run the same version of wsm",
            kind=kind,
            word=word,
        )
