"""How much memory a foreign package takes beside the model while a stream arrives. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from wsm.strategies.transports.batches import BATCH_BYTES
from wsm.strategies.transports.stream_manifest import StreamManifest


@dataclass(frozen=True)
class PackageBuffers:
    """What a package holds of a stream: so many buffers of a size, as its settings say."""

    count: int
    nbytes: int

    def peak_extra_bytes(self, manifest: StreamManifest | None, *, keep: bool) -> int:
        """Return what is held beside the target at most: in these buffers, and in batches of ours.

        A tensor that is larger than a buffer has to lie somewhere, too; and buffers hold no more than the
        stream brings. What a package takes when it connects is gone by then, so it is not counted twice.

        Parameters
        ----------
        manifest : StreamManifest or None
            What the stream brings, where that is known.
        keep : bool
            Whether nothing is copied, because the package never uses its memory again.
        """
        sizes = [] if manifest is None else [spec.nbytes for spec, _ in manifest.tensors.values()]
        held = self.count * max([self.nbytes, *sizes])
        if manifest is not None:
            held = min(held, sum(sizes))
        return held + (0 if keep else BATCH_BYTES)
