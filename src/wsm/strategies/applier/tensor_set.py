"""The tensors of a whole checkpoint without their bytes, as a text that is short enough for a group's record.

The names of a model are a few patterns with numbers in them (layers, experts), and its numbers are mostly all
of a range in each place. Patterns and ranges say 90,000 names in 2 KiB.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product, zip_longest

from wsm.strategies.tensor import TensorSpec

#: Characters of the longest text; a report and a record hold it beside all else.
MAX_TEXT = 6 * 1024
_NUMBER = re.compile(r"(\d+)")


def text_of(specs: Iterable[TensorSpec]) -> str | None:
    """Return the tensors in ASCII; None where that is longer than :data:`MAX_TEXT`."""
    groups: dict[tuple[tuple[str, ...], str, tuple[int, ...]], list[Sequence[str]]] = {}
    for spec in specs:
        parts = _NUMBER.split(spec.name)
        groups.setdefault((tuple(parts[::2]), spec.dtype, spec.shape), []).append(parts[1::2])
    rows = []
    for kind, numbers in groups.items():
        ranges = [list(dict.fromkeys(column)) for column in zip(*numbers, strict=True)]
        whole = math.prod(map(len, ranges)) == len(numbers)
        rows.append([*kind, whole, ranges if whole else numbers])
    text = base64.b85encode(zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 9)).decode()
    return text if len(text) <= MAX_TEXT else None


@functools.lru_cache(maxsize=4)
def tensors_in(text: str) -> Mapping[str, TensorSpec] | None:
    """Return the tensors of such a text, by name; None if it cannot be read, as one of another build."""
    found: dict[str, TensorSpec] = {}
    try:
        for texts, dtype, shape, whole, said in json.loads(zlib.decompress(base64.b85decode(text))):
            for numbers in product(*said) if whole else said:
                name = "".join(chain(*zip_longest(texts, numbers, fillvalue="")))
                found[name] = TensorSpec(name, dtype, tuple(shape))
    except (ValueError, TypeError, zlib.error):
        return None
    return found
