"""Finding NaN and infinity in the bytes of a tensor, chunk by chunk, for publications that promise neither.

The vocabulary of dtypes is wider than numpy's, so bits are compared: a value is not finite if all bits of
its exponent are set (of ``F8_E4M3``, which has no infinity, all bits but the sign; of ``F8_E8M0``, which has
nothing but an exponent, all). Knows no sources and no targets.
"""

from __future__ import annotations

from wsm.strategies.byte_copy import CHUNK_BYTES
from wsm.strategies.errors import trainer_tensor_not_finite
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec

# Type of the bits, and those that are all set in what is not finite.
_BITS = {
    "F8_E4M3": ("u1", 0x7F),
    "F8_E5M2": ("u1", 0x7C),
    "F8_E8M0": ("u1", 0xFF),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
    "F32": ("<u4", 0x7F80_0000),
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
}


def first_not_finite(dtype: str, data: memoryview) -> int | None:
    """Return the index of the first element that is NaN or infinite; None if there is none.

    Parameters
    ----------
    dtype : str
        A key of :data:`wsm.strategies.tensor.ITEM_BYTES`; what is no floating-point type is finite.
    data : memoryview
        Whole elements, flat, format ``B``.
    """
    if dtype not in _BITS or not data:
        return None
    import numpy as np  # noqa: PLC0415 - a quick question on the command line need not wait for it

    kind, mask = _BITS[dtype]
    bits, wanted = np.frombuffer(data, kind), np.array(mask, kind)
    step = CHUNK_BYTES // bits.itemsize
    for begin in range(0, len(bits), step):
        exponents = bits[begin : begin + step] & wanted
        if exponents.max() == wanted:
            return begin + int(np.argmax(exponents == wanted))
    return None


def check_finite(spec: TensorSpec, data: memoryview, begin: int = 0, *, rank: int | None = None) -> None:
    """See that a tensor may be published as finite. Blocks: reads every byte.

    Parameters
    ----------
    spec : TensorSpec
        What it is.
    data : memoryview
        Its bytes, flat, format ``B``, or some of them: whole elements.
    begin : int
        Where these begin in it, in bytes.
    rank : int, optional
        Whose it is, for the error.

    Raises
    ------
    BadInputError (``trainer-tensor``)
        If it holds NaN or infinity; names the first one.
    """
    bad = first_not_finite(spec.dtype, data)
    if bad is not None:
        at = bad + begin // ITEM_BYTES[spec.dtype]
        raise trainer_tensor_not_finite(tensor=spec.name, element=at, rank=rank)
