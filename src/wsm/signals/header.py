"""The constant part of a segment: what it is and of which group. Written once, before anyone sees it.

Everything that changes later (who owns it, the words) lies outside and has its own protection. The
checks go from what every build of wsm understands (magic, layout version) to what only this one does,
so that each mistake gets the error that names it.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from wsm.signals import errors
from wsm.signals.errors import SegmentTruncatedError
from wsm.signals.layout import HEADER_BYTES, LAYOUT_VERSION, layout_of

MAGIC = b"WSMGROUP"
MAX_RUN_ID_BYTES = 128

# magic, layout version, world size, helpers, run id length, total length, configuration digest, run id
_CONSTANT = struct.Struct(f"<8s4IQQ{MAX_RUN_ID_BYTES}s")
_CHECKSUM = struct.Struct("<I")


class Header(NamedTuple):
    """The facts of a group that never change while its segment exists.

    ``configuration_digest`` is an unsigned 64-bit digest of whatever all processes of the group must
    agree on; this package only compares it.
    """

    world_size: int
    helpers: int
    run_id: str
    configuration_digest: int

    def pack(self) -> bytes:
        """Return the bytes of the header, checksum included.

        Raises
        ------
        BadInputError
            If a field does not fit.
        """
        run_id = self.run_id.encode()
        if len(run_id) > MAX_RUN_ID_BYTES:
            raise errors.segment_shape(
                field="run id", value=self.run_id, limit=f"at most {MAX_RUN_ID_BYTES} bytes of UTF-8"
            )
        if not 0 <= self.configuration_digest < 1 << 64:
            raise errors.segment_shape(
                field="configuration digest",
                value=self.configuration_digest,
                limit="an unsigned 64-bit number",
            )
        constant = _CONSTANT.pack(
            MAGIC,
            LAYOUT_VERSION,
            self.world_size,
            self.helpers,
            len(run_id),
            layout_of(self.world_size, self.helpers).total_bytes,
            self.configuration_digest,
            run_id,
        )
        return constant + _CHECKSUM.pack(zlib.crc32(constant))

    @classmethod
    def unpack(cls, data: bytes, *, path: Path, file_bytes: int) -> Header:
        """Read the first bytes of the file `path`, which has `file_bytes` bytes.

        Raises
        ------
        BadInputError, SegmentTruncatedError
            If it is no segment, of another build, cut short, or damaged.
        """
        magic = data[: len(MAGIC)]
        if data and not MAGIC.startswith(magic):
            raise errors.not_a_segment(path=str(path), magic=magic)
        if len(data) < HEADER_BYTES:
            raise SegmentTruncatedError(path=str(path), size=file_bytes, needed_bytes=HEADER_BYTES)
        _, version, world_size, helpers, run_id_bytes, total, digest, run_id = _CONSTANT.unpack_from(data)
        if version != LAYOUT_VERSION:
            raise errors.layout_version_mismatch(path=str(path), found=version, expected=LAYOUT_VERSION)
        (found,) = _CHECKSUM.unpack_from(data, _CONSTANT.size)
        expected = zlib.crc32(data[: _CONSTANT.size])
        if found != expected:
            raise errors.header_damaged(path=str(path), found=found, expected=expected)
        if file_bytes < total:
            raise SegmentTruncatedError(path=str(path), size=file_bytes, needed_bytes=total)
        return cls(world_size, helpers, run_id[:run_id_bytes].decode(), digest)
