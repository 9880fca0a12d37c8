"""What can be wrong with a version that arrives, whatever brings it; and small models to be wrong about."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from installed_paddle import has_float8

from tests.raising import Kind
from wsm.strategies import errors
from wsm.strategies.tensor import TensorSpec

State = dict[str, tuple[TensorSpec, bytes]]

SHAPES = (
    ("embed.weight", "F32", (16, 8)),
    ("layer.0.weight", "BF16", (8, 24)),
    ("layer.0.bias", "F16", (24,)),
    # One state for all strategies, and one of them carries tensors of paddle's.
    *([("layer.1.scale", "F8_E4M3", (5,))] if has_float8() else []),
    ("steps", "I64", ()),
    ("nothing", "F32", (0, 4)),
    ("large.weight", "F32", (640, 1024)),
    ("second.weight", "BF16", (512, 1023)),
    ("head.weight", "F32", (8, 16)),
)


class Wrong(enum.Enum):
    """One way in which a version is wrong."""

    MISSING_NAME = "a tensor of the model is missing"
    UNKNOWN_NAME = "a tensor that the model does not have"
    DUPLICATE_NAME = "a tensor occurs twice"
    OTHER_DTYPE = "a tensor has another dtype"
    OTHER_SHAPE = "a tensor has another shape"
    OTHER_MODEL = "all tensors are of another model"
    OTHER_VERSION = "it holds another version than asked for"
    OTHER_RANK = "it was made for another rank"
    OTHER_WORLD = "it was made for another number of ranks"
    FLIPPED_BIT = "one bit of the data differs"
    FLIPPED_BIT_IN_DESCRIPTION = "one bit of what describes the data differs"
    TRUNCATED = "the end of the data is missing"
    TRUNCATED_DESCRIPTION = "the end of what describes the data is missing"
    GARBAGE = "something else entirely"
    EMPTY = "it holds no tensor"
    NOTHING_THERE = "nothing was ever published"
    TRUNCATED_ON_THE_WAY = "the end of the data goes missing while it is applied"
    PEER_DIES = "who brings the weights is killed on the way"
    PEER_SILENT = "who brings the weights says nothing"
    PEER_ENDLESS = "who brings the weights never ends"


@dataclass(frozen=True)
class Expected:
    """What a load of a wrong version must raise.

    Parameters
    ----------
    error : type or tuple of type
        The types that fit.
    mentions : tuple of str
        What the message must say: the file or peer, and what was expected or found.
    may_touch : bool
        Whether the target's memory may have been written before it was noticed.
    meanwhile : callable, optional
        What happens once the first bytes are applied, where that is what is wrong.
    """

    error: Kind | tuple[Kind, ...]
    mentions: tuple[str, ...] = ()
    may_touch: bool = False
    meanwhile: Callable[[], None] | None = None

    def load_options(self) -> dict[str, Any]:
        """Options of the load in which it happens: on one thread, which has read no further by then."""
        meanwhile = self.meanwhile
        if meanwhile is None:
            return {}
        return {"progress": lambda done, _total: meanwhile() if done else None, "threads": 1}


@functools.cache
def make_state(seed: int, *, finite: bool = False) -> State:
    """A state dict of every kind of tensor; other bytes for every seed, NaN among them unless `finite`."""
    generator = np.random.default_rng(seed)
    # Without the second highest bit of any byte no exponent is all ones, in whatever type.
    mask = np.uint8(0xBF if finite else 0xFF)
    specs = [TensorSpec(name, dtype, shape) for name, dtype, shape in SHAPES]
    return {
        spec.name: (spec, (np.frombuffer(generator.bytes(spec.nbytes), "u1") & mask).tobytes())
        for spec in specs
    }


def wrong_state(state: State, wrong: Wrong) -> State:
    """The state with what `wrong` changes in it, where that is a matter of names, dtypes and shapes."""
    changed = dict(state)
    if wrong is Wrong.MISSING_NAME:
        del changed["layer.0.bias"]
    elif wrong is Wrong.UNKNOWN_NAME:
        changed["stranger"] = (TensorSpec("stranger", "U8", (2,)), b"ab")
    elif wrong is Wrong.OTHER_DTYPE:
        changed["layer.0.bias"] = (TensorSpec("layer.0.bias", "BF16", (24,)), bytes(48))
    elif wrong is Wrong.OTHER_SHAPE:
        changed["layer.0.bias"] = (TensorSpec("layer.0.bias", "F16", (24, 1)), bytes(48))
    elif wrong is Wrong.OTHER_MODEL:
        changed = {"w": (TensorSpec("w", "F32", (2, 2)), bytes(16))}
    return changed


#: What the applier says about names, dtypes and shapes, the same for all strategies.
BY_STATE = {
    Wrong.MISSING_NAME: Expected(errors.not_covered, ("1 missing", "'layer.0.bias'")),
    Wrong.UNKNOWN_NAME: Expected(errors.not_covered, ("1 unknown", "'stranger'")),
    Wrong.OTHER_DTYPE: Expected("dtype-mismatch", ("'layer.0.bias'", "BF16", "F16")),
    Wrong.OTHER_SHAPE: Expected("shape-mismatch", ("'layer.0.bias'", "(24, 1)", "(24,)")),
    Wrong.OTHER_MODEL: Expected(errors.not_covered, (f"{len(SHAPES)} missing", "1 unknown: 'w'")),
}
