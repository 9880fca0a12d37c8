"""What a publisher promises of a version, whatever way it travels: each rank's tensors and their digests.

A :class:`ShardPromise` is one rank's: whose it is, and every tensor with dtype, shape, placement and the
digest of its bytes. A :class:`Publication` ties those of all ranks together. Each way derives its documents
from them, and adds where the bytes are and nothing else. Files carry them sealed (:class:`Sealed`); what is
not sealed is read by :func:`read_json`. Knows no files and no targets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import msgspec

from wsm.labels import MAX_LENGTH, Label
from wsm.strategies import documents, errors
from wsm.strategies.digest import DIGEST_LENGTH, digest_of, shard_digest
from wsm.strategies.documents import are_digests
from wsm.strategies.errors import ManifestError, VersionMismatchError
from wsm.strategies.snapshot.placement import Placement
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
FileName = Annotated[str, msgspec.Meta(pattern=r"\A(?!\.{1,2}\Z)[^/\0]+\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=rf"\A[0-9a-f]{{{DIGEST_LENGTH}}}\Z")]

ReadT = TypeVar("ReadT")
SealedT = TypeVar("SealedT", bound="Sealed")
PromiseT = TypeVar("PromiseT", bound="ShardPromise")

_ENVELOPE = ("format", "layout", "digest")


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a document: what is not known is refused, and what is as usual is not written."""


class Sealed(Strict, frozen=True, kw_only=True, dict=True):
    """A document that proves itself: its file carries the digest of its own content.

    Attributes
    ----------
    FORMAT, LAYOUT : str, int
        What kind of document it is, and the number that grows when its fields change their meaning.
    DERIVED : sequence of str
        Properties that its file says besides; one that says them otherwise contradicts itself.
    """

    FORMAT: ClassVar[str]
    LAYOUT: ClassVar[int] = 1
    DERIVED: ClassVar[Sequence[str]] = ()

    @cached_property
    def seal(self) -> str:
        """Digest of the whole document; of one that was read, that of the very bytes that were read."""
        return documents.content_digest(self._fields())

    def encode(self) -> bytes:
        """Return the bytes of the document's file."""
        return documents.seal(self._fields())

    @classmethod
    def decode(cls: type[SealedT], data: bytes, *, file: str) -> SealedT:  # noqa: PYI019 - Self is of Python 3.11
        """Parse a document's file.

        Raises
        ------
        ManifestError
            If it is damaged, of an unknown layout, says something that is not known here, or contradicts
            itself. Any bytes give this or a document.
        """
        fields = documents.unseal(data, file=file, form=cls.FORMAT, layout=cls.LAYOUT)
        said = {name: value for name, value in fields.items() if name not in _ENVELOPE}
        try:
            for label in ("version", "base_version"):
                if type(number := said.get(label)) is int and 0 <= number < 10**MAX_LENGTH:
                    said[label] = str(number)  # as older documents say it
            derived = {name: said.pop(name, None) for name in cls.DERIVED}
            document = msgspec.convert(said, cls)
            for field in msgspec.structs.fields(cls):
                if field.encode_name in said and said[field.encode_name] == field.default:
                    raise msgspec.ValidationError(
                        f"its {field.encode_name} is written only where it is not {field.default!r}"
                    )
            document.check()
            for name, value in derived.items():
                if value != getattr(document, name):
                    raise msgspec.ValidationError(f"its {name} is not that of its tensors")
        except msgspec.MsgspecError as error:
            raise ManifestError(file=file, problem=str(error)) from error
        document.__dict__["seal"] = fields["digest"]
        return document

    def check(self) -> None:
        """Compare the fields of a document that was read; a ValidationError if they contradict each other."""

    def _fields(self) -> dict[str, Any]:
        derived = {name: getattr(self, name) for name in self.DERIVED}
        return {"format": self.FORMAT, "layout": self.LAYOUT, **msgspec.to_builtins(self), **derived}


def read_json(kind: type[ReadT], data: bytes) -> ReadT:
    """Read a document that carries no seal, where a key that stands twice could mean either value.

    Raises
    ------
    ValueError
        If it is no JSON with one meaning, or not of this kind; the text says why.
    """
    documents.parse(data)
    return msgspec.json.decode(data, type=kind)


class ShardIdentity(Sealed, frozen=True, kw_only=True):
    """Whose a shard is.

    Parameters
    ----------
    version : str
        The version that it belongs to.
    rank, world_size : int
        Which rank's it is, of how many.
    publication : str
        Drawn anew for every publication; what belongs together has the same.
    """

    version: Label
    rank: Count
    world_size: Count
    publication: str

    def require(self, version: str | None, rank: int | None, ranks: int | None, *, where: str) -> None:
        """See that it is the shard that was asked for; None stands for any.

        Raises
        ------
        BadInputError (``shard-identity``)
            If it is another rank's, or for another number of ranks.
        VersionMismatchError
            If it is of another version.
        """
        for field, wanted, found in (("rank", rank, self.rank), ("world size", ranks, self.world_size)):
            if wanted is not None and wanted != found:
                raise errors.shard_identity(file=where, field=field, expected=wanted, found=found)
        if version is not None and version != self.version:
            raise VersionMismatchError(requested=version, found=self.version, where=where)


class RankShard(ShardIdentity, frozen=True, kw_only=True):
    """What one rank gets of a publication, in whatever form it comes.

    Parameters
    ----------
    finite : bool
        Whether the publisher promises that there is neither NaN nor infinity in its tensors; loads refuse
        both then.
    """

    finite: bool = False

    def files(self) -> Sequence[tuple[str, int]]:
        """Return name and size of each file that holds its bytes, where it lies in files of its own."""
        return ()

    def lacks(self, wanted: Any) -> Iterator[str]:
        """Iterate over what another one with the same tensors promises and this one does not."""
        if wanted.finite and not self.finite:
            yield "that all is finite"


class PromisedTensor(NamedTuple):
    """One tensor of a shard: what it is, the digest of its bytes, and where it lies in the whole tensor.

    The placement is None where the publisher did not say it.
    """

    spec: TensorSpec
    digest: str
    placement: Placement | None = None


class TensorKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What many tensors of a shard have in common."""

    dtype: str
    shape: Annotated[tuple[Count, ...], msgspec.Meta(max_length=64)]
    placement: Placement | None = None

    def __post_init__(self) -> None:
        """Refuse a dtype that wsm does not move."""
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"{self.dtype!r} is no dtype that wsm moves")


class ShardPromise(RankShard, frozen=True, kw_only=True):
    """What one rank gets.

    Parameters
    ----------
    kinds, rows : tuple
        The tensors as documents say them (:func:`table_of`): a row is a name, which of the kinds, a digest.
    """

    kinds: tuple[TensorKind, ...]
    rows: tuple[tuple[str, Count, str], ...] = msgspec.field(name="tensors")

    @classmethod
    def with_tensors(  # noqa: PYI019 - Self is of Python 3.11
        cls: type[PromiseT], tensors: Iterable[PromisedTensor], **fields: Any
    ) -> PromiseT:
        """Return the promise of these tensors, with the other `fields` by name."""
        held = tuple(tensors)
        promise = cls(**fields, **table_of(held))
        promise.__dict__["tensors"] = held  # which takes longer to put together again
        return promise

    @cached_property
    def tensors(self) -> tuple[PromisedTensor, ...]:
        """The tensors, in the publisher's order."""
        kinds = [(kind.dtype, kind.shape, kind.placement) for kind in self.kinds]
        found = []
        for name, index, digest in self.rows:
            dtype, shape, placement = kinds[index]
            found.append(PromisedTensor(TensorSpec(name, dtype, shape), digest, placement))
        return tuple(found)

    @cached_property
    def content_digest(self) -> str:
        """Digest of the tensors alone: equal weights have an equal one."""
        return shard_digest((spec, digest) for spec, digest, _ in self.tensors)

    @cached_property
    def placed_digest(self) -> str:
        """Digest of the tensors and of where they lie; where no placement is said, that of the tensors."""
        if all(kind.placement is None for kind in self.kinds):
            return self.content_digest
        rows = sorted((name, self.kinds[index], digest) for name, index, digest in self.rows)
        return digest_of(msgspec.json.encode(rows))

    def check(self) -> None:
        """Compare rows and kinds, rank and number of ranks."""
        if self.rank >= self.world_size:
            raise msgspec.ValidationError(f"rank {self.rank} of {self.world_size} ranks")
        if not self.rows:
            raise msgspec.ValidationError("there is no tensor in it")
        names, indexes, digests = zip(*self.rows, strict=True)
        if len(set(names)) != len(names):
            twice = sorted(name for name, count in Counter(names).items() if count > 1)
            raise msgspec.ValidationError(f"it lists a tensor twice: {twice[0]!r}")
        if max(indexes) >= len(self.kinds):
            raise msgspec.ValidationError("a tensor is of a kind that is not listed")
        if not are_digests(digests):
            raise msgspec.ValidationError("a tensor has no digest")


def table_of(tensors: Iterable[PromisedTensor]) -> dict[str, Any]:
    """Return the fields ``kinds`` and ``rows`` of a promise of these tensors."""
    kinds: dict[tuple[str, tuple[int, ...], Placement | None], int] = {}
    rows = tuple(
        (spec.name, kinds.setdefault((spec.dtype, spec.shape, placement), len(kinds)), digest)
        for spec, digest, placement in tensors
    )
    return {"kinds": tuple(TensorKind(*kind) for kind in kinds), "rows": rows}


class PromisedShard(Strict, frozen=True, kw_only=True):
    """One rank's promise, as its publication knows it: the digest of the tensors, and of where they lie.

    The second is None where it is the first, and in documents of an older wsm.
    """

    content_digest: Digest
    placed_digest: Digest | None = None


class Publication(Sealed, frozen=True, kw_only=True):
    """A version for all of its ranks.

    Parameters
    ----------
    version : str
        The version.
    publication : str
        The publication, which all shards name.
    shards : tuple of PromisedShard
        One per rank, in rank order; their number is the world size.
    ordinal : int
        The number of the publication among all into its directory; 0 where an older wsm gave none.
    """

    version: Label
    publication: str
    shards: tuple[PromisedShard, ...]
    ordinal: Count = 0

    @property
    def world_size(self) -> int:
        """Number of ranks that the version was written for."""
        return len(self.shards)

    @cached_property
    def group_digest(self) -> str:
        """Digest of what a group loads: the label, and names, dtypes, shapes, placements and bytes.

        Publications of the same tensors under one label have the same, wherever they lie. Every rank that
        reads the publication reports it, also one that reads slices for other ranks.
        """
        digests = [shard.placed_digest or shard.content_digest for shard in self.shards]
        return digest_of(msgspec.json.encode([self.version, *digests]))

    def same_content(self, other: Publication) -> bool:
        """Whether both describe the same tensors with the same bytes, rank by rank."""
        return self.version == other.version and [shard.content_digest for shard in self.shards] == [
            shard.content_digest for shard in other.shards
        ]

    def check(self) -> None:
        """See that there is a shard."""
        if not self.shards:
            raise msgspec.ValidationError("it lists no shard")


def name_digest(version: str, publication: str, world_size: int) -> str:
    """Return what stands for a group digest where shards come one by one, and their digests with them."""
    return documents.content_digest(
        {"version": version, "publication": publication, "world_size": world_size}
    )
