"""The one digest of wsm: xxh3-128 of a tensor's bytes, and of a whole shard in any order.

It detects accidents (torn files, mixed versions, flipped bits) at the speed of memory, 30 GB/s on one
thread; it is no cryptographic hash and proves nothing about who wrote the bytes. Every digest in a
manifest, a receipt or a comparison comes from here. Knows no files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Protocol

import xxhash

from wsm.strategies.tensor import TensorSpec

_quoted = json.encoder.encode_basestring_ascii

#: Hexadecimal characters of every digest.
DIGEST_LENGTH = 32


class RunningDigest(Protocol):
    """A digest that is fed piece by piece."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add bytes; the cut into pieces does not matter."""
        ...

    def hexdigest(self) -> str:
        """Return the digest of all bytes so far, 32 lower-case hexadecimal characters."""
        ...


def running_digest() -> RunningDigest:
    """Begin a digest of bytes that arrive in pieces."""
    return xxhash.xxh3_128()


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """Return the digest of `data`, 32 lower-case hexadecimal characters."""
    return xxhash.xxh3_128_hexdigest(data)


def shard_digest(tensors: Iterable[tuple[TensorSpec, str]]) -> str:
    """Return the digest of a set of tensors, whatever the order in which they were seen.

    Parameters
    ----------
    tensors : iterable of (TensorSpec, str)
        Each tensor once, with the digest of its bytes. Name, dtype and shape count as much as the bytes.
    """
    return digest_of(shard_text(tensors))


def shard_text(tensors: Iterable[tuple[TensorSpec, str]]) -> bytes:
    """Return what :func:`shard_digest` is the digest of: a JSON list of [name, dtype, shape, digest]."""
    kinds: dict[tuple[str, tuple[int, ...]], str] = {}
    rows = []
    for spec, digest in tensors:
        key = (spec.dtype, spec.shape)
        kind = kinds.get(key)
        if kind is None:
            kind = kinds[key] = json.dumps([spec.dtype, list(spec.shape)], separators=(",", ":"))[1:-1]
        rows.append(f'[{_quoted(spec.name)},{kind},"{digest}"]')
    rows.sort()
    return f"[{','.join(rows)}]".encode("ascii")
