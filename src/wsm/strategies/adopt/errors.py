"""What can be wrong with a directory that is to be adopted, and with what it would be called.

All are raised before anything became visible; no group was touched. Lists are complete in the attributes
and shortened in the message.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, RefusedError
from wsm.strategies.errors import listed


def checkpoint_missing(*, path: str) -> BadInputError:
    """There is no directory where a caller says that the trainer has written one."""
    return BadInputError(
        f"there is nothing at {path}; adopt a directory before its trainer deletes it, or correct the path",
        code="checkpoint-missing",
        unfit=True,
        path=path,
    )


def no_checkpoint(*, path: str, present: Sequence[str]) -> BadInputError:
    """A directory has no safetensors file; marker files alone are no content."""
    seen = f"; it holds {listed(present)}" if present else "; it is empty"
    return BadInputError(
        f"{path} holds no safetensors file{seen}; write the weights there before they are adopted",
        code="no-checkpoint",
        unfit=True,
        path=path,
        present=tuple(present),
    )


def incomplete_checkpoint(*, path: str, problem: str) -> BadInputError:
    """The files of a directory are not what its own index says."""
    return BadInputError(
        f"the checkpoint in {path} is not whole: {problem}; let the trainer finish it, then adopt it",
        code="incomplete-checkpoint",
        unfit=True,
        path=path,
        problem=problem,
    )


def delta_checkpoint(*, path: str, encoding: str) -> RefusedError:
    """A directory holds what changed since another version, and not a whole model."""
    return RefusedError(
        f"{path} holds the changes since the version before it (delta_encoding {encoding}), and no whole "
        "checkpoint: no rank could prove what it would hold, for they name no digest of what they were made "
        "from; let the trainer write whole checkpoints (slime: --update-weight-mode full), or publish_delta",
        code="delta-checkpoint",
        path=path,
        encoding=encoding,
    )


def checkpoint_changed(*, file: str, problem: str) -> BadInputError:
    """A file was written while it was adopted."""
    return BadInputError(
        f"{file} changed while it was adopted: {problem}; let the trainer finish it, then adopt it",
        code="checkpoint-changed",
        unfit=True,
        file=file,
        problem=problem,
    )


def label_reused(*, label: str, digest: str, known: str) -> RefusedError:
    """Other content was adopted under this label before, and it may not be called otherwise."""
    return RefusedError(
        f"version {label} was other content before (digest {known}, now {digest}), and labels are not "
        "changed (relabel: refuse); let the trainer count on, or adopt it under another label",
        code="label-reused",
        label=label,
        digest=digest,
        known=known,
    )


def placements_unknown(*, path: str, ranks: int) -> RefusedError:
    """A whole model is to be divided, and nothing says how."""
    return RefusedError(
        f"{path} holds a whole model, and nothing says how its tensors lie on {ranks} ranks; name a function "
        "that does (--placements MODULE:FUNCTION), or load it through the models' loaders (strategy gdr)",
        code="placements-unknown",
        path=path,
        ranks=ranks,
    )


def bad_placements(*, hook: str, problem: str) -> BadInputError:
    """What should say how tensors lie on the ranks cannot be used."""
    return BadInputError(
        f"{hook} does not say how tensors lie on the ranks: {problem}; name MODULE:FUNCTION, which returns a "
        "placement for each of the tensors that it is given",
        code="bad-placements",
        unfit=True,
        hook=hook,
        problem=problem,
    )


def nothing_to_adopt_into(*, strategy: str) -> RefusedError:
    """The group loads no files that wsm could take in."""
    return RefusedError(
        f"versions come by {strategy} here, which loads no files that could be adopted; name the version "
        "alone (--adopt none), or configure strategy: ipc_snapshot, or gdr with transport: files",
        code="nothing-to-adopt-into",
        strategy=strategy,
    )
