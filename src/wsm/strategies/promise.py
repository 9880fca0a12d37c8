"""What a publisher promises of a version, whatever way it travels: each rank's tensors and their digests.

A :class:`ShardPromise` is one rank's: whose it is, and every tensor with dtype, shape, placement and the
digest of its bytes. A :class:`Publication` ties those of all ranks together. Each way derives its documents
from them, and adds where the bytes are and nothing else. Files carry them sealed (:class:`Sealed`), with the
digest of their own content in canonical form: keys sorted, no blanks, ASCII. What is not sealed is read by
:func:`read_json`. JSON from elsewhere has one meaning or is refused: parsers take the last of duplicated
keys, and Python's ``NaN``, and lone surrogates that no log can carry. Knows no files and no targets.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from wsm.labels import MAX_LENGTH, Label
from wsm.strategies import errors
from wsm.strategies.digest import DIGEST_LENGTH, digest_of, running_digest, shard_digest
from wsm.strategies.errors import ManifestError, VersionMismatchError
from wsm.strategies.snapshot.placement import Placement
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec
from wsm.typed import resolved


class StrictJsonError(ValueError):
    """The bytes are no JSON document with a single meaning; the text says why."""


def parse(data: bytes) -> Any:
    """Parse a UTF-8 JSON document.

    Raises
    ------
    StrictJsonError
        If it is no JSON, repeats a key, holds NaN, an infinity or a lone surrogate, or is nested too deeply.
    """
    try:
        msgspec.json.decode(data)  # of what it refuses, Python's parser takes NaN and halves of surrogates
        return _DECODER.decode(data.decode())
    except StrictJsonError:
        raise
    except (ValueError, RecursionError) as error:
        raise StrictJsonError(f"it is not JSON ({error})") from error


def is_count(value: object) -> bool:
    """Whether `value` is a non-negative integer; JSON's true and false are none."""
    return type(value) is int and value >= 0


def is_text(value: object) -> bool:
    """Whether `value` is a string that can be written out again (no lone surrogates)."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # set.add returns None by design
        raise StrictJsonError(f"the key {twice!r} occurs twice")
    return found


# Made once: with hooks, json.loads makes one per call, which takes longer than to parse a short message.
_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


def content_digest(fields: Mapping[str, Any]) -> str:
    """Return the digest of the canonical form of `fields`, a ``digest`` among them left out."""
    return digest_of(_canonical({key: value for key, value in fields.items() if key != "digest"}))


def seal(fields: Mapping[str, Any]) -> bytes:
    """Return the canonical document of `fields` with its ``digest`` added."""
    return _canonical({**fields, "digest": content_digest(fields)}) + b"\n"


def unseal(data: bytes, *, file: str, form: str, layout: int) -> dict[str, Any]:
    """Parse a sealed document and check its seal.

    Parameters
    ----------
    data : bytes
        The whole file.
    file : str
        Its name, for messages.
    form, layout : str, int
        What its fields ``format`` and ``layout`` must hold.

    Raises
    ------
    ManifestError
        If it is no such document, or its digest does not match its content.
    """
    try:
        fields: dict[str, Any] = msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise ManifestError(file=file, problem=f"it is not JSON ({error})") from error
    problem = ""
    if not isinstance(fields, dict):
        problem = "it is not a JSON object"
    elif fields.get("format") != form:
        problem = f"its format is not {form!r}"
    elif type(fields.get("layout")) is not int or fields["layout"] != layout:  # JSON's true equals 1
        problem = f"its layout is not {layout}, the one this wsm reads"
    elif not _is_sealed(data, fields.get("digest")):
        problem = "its digest does not match its content, it was damaged or edited"
    if problem:
        raise ManifestError(file=file, problem=problem)
    return fields


def _is_sealed(data: bytes, digest: object) -> bool:
    """Whether the bytes without their ``digest`` have that digest: as good as canonicalising them anew.

    A document that is not in canonical form has another digest than its canonical form, and so is refused.
    """
    if not isinstance(digest, str):
        return False
    # In the order of names each document has a field behind it: its format.
    before, found, after = data.partition(b'"digest":' + json.dumps(digest).encode("ascii") + b",")
    if not found or not data.endswith(b"\n"):
        return False
    running = running_digest()
    running.update(before)
    running.update(memoryview(after)[:-1])
    return running.hexdigest() == digest


def _canonical(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


_HEXADECIMAL = re.compile("[0-9a-f]*")


def are_digests(values: Collection[Any]) -> bool:
    """Whether all of many values are digests; all at once, because there are as many as tensors."""
    return (
        not set(map(type, values)) - {str}
        and not set(map(len, values)) - {DIGEST_LENGTH}
        and _HEXADECIMAL.fullmatch("".join(values)) is not None
    )


Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
FileName = Annotated[str, msgspec.Meta(pattern=r"\A(?!\.{1,2}\Z)[^/\0]+\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=rf"\A[0-9a-f]{{{DIGEST_LENGTH}}}\Z")]
Extents = Annotated[tuple[Count, ...], msgspec.Meta(max_length=64)]
#: One that wsm moves; checked five times as fast as by a pattern.
if TYPE_CHECKING:
    Dtype: TypeAlias = str
else:
    Dtype = Literal[tuple(ITEM_BYTES)]

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
        return content_digest(self._fields())

    def encode(self) -> bytes:
        """Return the bytes of the document's file."""
        return seal(self._fields())

    @classmethod
    def decode(cls: type[SealedT], data: bytes, *, file: str) -> SealedT:  # noqa: PYI019 - Self is of Python 3.11
        """Parse a document's file.

        Raises
        ------
        ManifestError
            If it is damaged, of an unknown layout, says something that is not known here, or contradicts
            itself. Any bytes give this or a document.
        """
        fields = unseal(data, file=file, form=cls.FORMAT, layout=cls.LAYOUT)
        said = {name: value for name, value in fields.items() if name not in _ENVELOPE}
        try:
            for label in ("version", "base_version"):
                if type(number := said.get(label)) is int and 0 <= number < 10**MAX_LENGTH:
                    said[label] = str(number)  # as older documents say it
            derived = {name: said.pop(name, None) for name in cls.DERIVED}
            document = msgspec.convert(said, resolved(cls))
            for field in _fields_of(cls):
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


#: Asked once of each kind of document: msgspec evaluates all annotations for each answer.
_fields_of = cache(msgspec.structs.fields)


def read_json(kind: type[ReadT], data: bytes) -> ReadT:
    """Read a document that carries no seal, where a key that stands twice could mean either value.

    Raises
    ------
    ValueError
        If it is no JSON with one meaning, or not of this kind; the text says why.
    """
    parse(data)
    return msgspec.json.decode(data, type=resolved(kind))


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

    dtype: Dtype
    shape: Extents
    placement: Placement | None = None


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
    return content_digest({"version": version, "publication": publication, "world_size": world_size})
