"""What can be wrong with a directory that is to be adopted, and with what it would be called.

All are raised before anything became visible; no group was touched. Lists are complete in the attributes
and shortened in the message.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, coded
from wsm.strategies.errors import listed


@coded("no-checkpoint")
def no_checkpoint(*, path: str, present: Sequence[str]) -> BadInputError:
    """A directory has no safetensors file; marker files alone are no content."""
    seen = f"; it holds {listed(present)}" if present else "; it is empty"
    return BadInputError(
        f"{path} holds no safetensors file{seen}; write the weights there before they are adopted",
        unfit=True,
        present=tuple(present),
    )


@coded("incomplete-checkpoint")
def incomplete_checkpoint(*, path: str, problem: str) -> BadInputError:
    """The files of a directory are not what its index, their names or their headers say; or not yet."""
    return BadInputError(
        f"the checkpoint in {path} is not whole: {problem}; let the trainer finish it, then adopt it",
        unfit=True,
        retryable=True,
    )


@coded("checkpoint-changed")
def checkpoint_changed(*, file: str, problem: str) -> BadInputError:
    """A file was written while it was adopted."""
    return BadInputError(
        f"{file} changed while it was adopted: {problem}; let the trainer finish it, then adopt it",
        unfit=True,
    )


@coded("bad-placements")
def bad_placements(*, hook: str, problem: str) -> BadInputError:
    """What should say how tensors lie on the ranks cannot be used."""
    return BadInputError(
        f"{hook} does not say how tensors lie on the ranks: {problem}; name MODULE:FUNCTION, which returns a "
        "placement for each of the tensors that it is given",
        unfit=True,
    )
