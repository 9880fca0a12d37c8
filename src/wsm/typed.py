"""Whether a value is what an annotation says: the one check of keywords, options, fields and facts.

The annotations of public signatures and the fields of dataclasses are the single source of what a caller may
hand in; msgspec checks them. It does not turn one type into another: no truth value is a number, no number a
text, no text a list of texts; and nothing of numpy is a number. A member of an enumeration may be named by
its value.
"""

from __future__ import annotations

import enum
import functools
import inspect
import itertools
import os
import threading
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, Union

import msgspec
from msgspec import Meta

from wsm.errors import BadInputError

#: Makes the error of a value that is not as annotated, of `call`, `keyword`, `value` and `need`.
Refusal: TypeAlias = Callable[..., BadInputError]

_Typed = TypeVar("_Typed", bound=Callable[..., object])
_Kind = TypeVar("_Kind")

#: Bytes of the longest name that a file system of Linux takes.
_NAME_BYTES = 255

#: Characters of a value that a refusal quotes.
_QUOTED = 200

#: The longest time that anything may be told to wait: thirty years.
LONGEST_S = 1e9

#: What stands in words, records and reports beside other texts.
ShortText: TypeAlias = Annotated[str, Meta(max_length=256, description="characters long")]
#: Annotates what its taker checks itself, with an error that says what is missing in it.
LATER: Final = "looked at later"
#: How long something may take, and how long it may be waited for.
Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=LONGEST_S, description="seconds")]
Wait: TypeAlias = Annotated[float, Meta(ge=0, le=LONGEST_S, description="seconds")]
#: How many of something, where there must be one, and where there may be none.
Count: TypeAlias = Annotated[int, Meta(ge=1)]
CountFrom0: TypeAlias = Annotated[int, Meta(ge=0)]

#: What every number and text keeps to: 64 bits, or finite; and to be written down, as what it says alone.
_LIMITS: Final[Mapping[Any, Mapping[str, Any]]] = {
    int: {"ge": -(1 << 63), "le": (1 << 63) - 1},
    float: {"ge": -1e300, "le": 1e300},
    str: {"pattern": r"\A[^\0\ud800-\udfff]*\Z"},
}


_resolving = threading.Lock()
os.register_at_fork(
    before=_resolving.acquire, after_in_parent=_resolving.release, after_in_child=_resolving.release
)
_resolved: set[object] = set()


def resolved(kind: _Kind) -> _Kind:
    """Return a type that msgspec is to make values of, once msgspec knows its fields.

    msgspec (0.22.0) looks the fields of a struct up at its first use, and what it has found so far is seen by
    other threads: one that uses the struct meanwhile ends the process by SIGSEGV. So a first use is one
    thread's alone.
    """
    if kind not in _resolved:
        with _resolving:
            msgspec.json.Decoder(kind)
            _resolved.add(kind)
    return kind


def bad_keyword(*, call: str, keyword: str, value: object, need: str) -> BadInputError:
    """A keyword of a call, or a field, is not what its annotation says; nothing was done."""
    return BadInputError(
        f"{call}: {keyword} is {shown(value)}; it must be {need}",
        code="bad-keyword",
        keyword=keyword,
        value=value,
        need=need,
    )


def shown(value: object) -> str:
    """Return the beginning of a value's text, whatever it is."""
    try:
        return f"{value!a:.{_QUOTED}}"
    except Exception:  # noqa: BLE001 - an integer of too many digits, or whatever a caller's own type raises
        return f"a {type(value).__name__}"


def fits(annotation: Any, value: Any) -> bool:
    """Whether a value is what `annotation` says (:func:`said` has it in words), or need not be."""
    inner = typing.get_args(annotation)
    kind = typing.get_origin(annotation) or annotation
    if kind in _UNIONS:
        return any(map(fits, _members(inner), itertools.repeat(value)))
    if kind in _LISTS:
        return isinstance(value, _LISTS[kind]) and _fits_list(kind, inner, value)
    if kind is Path:
        return _is_path(value)
    if isinstance(kind, type) and kind not in (Annotated, Any) and not issubclass(kind, _BY_MSGSPEC):
        is_protocol = getattr(kind, "_is_protocol", False)
        return (is_protocol and not getattr(kind, "_is_runtime_protocol", False)) or isinstance(value, kind)
    # What NumPy and others derive from a text cannot be written into a word.
    is_derived = isinstance(value, str) and type(value) is not str and not isinstance(value, enum.Enum)
    try:
        msgspec.convert(value, _limited(annotation))
    except (msgspec.ValidationError, UnicodeEncodeError):
        return False
    return not is_derived and (kind is not Callable or callable(value))


def _fits_list(kind: Any, inner: Sequence[Any], value: Any) -> bool:
    if kind in _MAPPINGS:
        keys, values = map(itertools.repeat, inner or (Any, Any))
        anything = inner[1:] == (Any,)
        return all(map(fits, keys, value)) and (anything or all(map(fits, values, value.values())))
    if isinstance(value, (str, bytes, bytearray, Mapping)):
        return False
    if not inner or not isinstance(value, Collection):
        return True  # an iterator is not used up
    if kind is tuple and inner[-1] is not Ellipsis:
        return len(value) == len(inner) and all(map(fits, inner, value))
    return all(map(fits, itertools.repeat(inner[0]), value))


@functools.cache
def _limited(annotation: Any) -> Any:
    """Return an annotation of a number or a text with the limits that each has."""
    kind, *limits = typing.get_args(annotation) if hasattr(annotation, "__metadata__") else [annotation]
    if LATER in limits:
        return Any
    known = [each for each in limits if isinstance(each, Meta)]
    said: dict[str, Any] = {name: limit for each in known for name, limit in each.__rich_repr__()}
    usual = {} if "gt" in said else _LIMITS.get(kind, {})
    return Annotated[kind, Meta(**{**usual, **said})] if usual or said else kind


@functools.cache
def _members(members: tuple[Any, ...]) -> Sequence[Any]:
    """Return the members of a union; a text beside an enumeration names a member, beside a path it is one."""
    if any(each is Path or (isinstance(each, type) and issubclass(each, enum.Enum)) for each in members):
        return [each for each in members if each is not str]
    return members


def _is_path(value: Any) -> bool:
    """Whether it is a path that can be written down; it may hold what stands for bytes of no character."""
    try:
        written = os.fsencode(value) if isinstance(value, (str, os.PathLike)) else b"\0"
    except UnicodeEncodeError:
        return False
    return b"\0" not in written and max(map(len, written.split(b"/"))) <= _NAME_BYTES


def said(annotation: Any) -> str:
    """Return an annotation in words."""
    inner = typing.get_args(annotation)
    kind = typing.get_origin(annotation) or annotation
    if kind is Annotated:
        return said(inner[0]) + "".join(map(_limits_said, inner[1:]))
    if kind in _UNIONS:
        return " or ".join(dict.fromkeys(map(said, _members(inner))))
    if kind is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if inner and kind in _LISTS:
        of = inner if kind in _MAPPINGS else inner[:1]
        return f"{said(kind)} of {' to '.join(map(said, of))}"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return f"one of {', '.join(str(each.value) for each in kind)}"
    return _WORDS.get(kind) or ("a list" if kind in _LISTS else "") or str(getattr(kind, "__name__", kind))


_WORDS: Mapping[Any, str] = {
    type(None): "None",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    Mapping: "a mapping",
    dict: "a mapping",
    Any: "anything",
    object: "anything",
    Callable: "a callable",
}

_MAPPINGS: Final = (Mapping, dict)
_UNIONS: Final = (Union, types.UnionType)
_BY_MSGSPEC: Final = (int, float, str, enum.Enum, type(None))

#: Of which type a list or mapping is, by its annotation; a text never is a list, nor a mapping one.
_LISTS: Mapping[Any, tuple[type, ...]] = {
    Mapping: (Mapping,),
    dict: (Mapping,),
    list: (list, tuple),
    tuple: (list, tuple),
    frozenset: (frozenset, set),
    Sequence: (Sequence,),
    Collection: (Collection,),
    Iterable: (Iterable,),
}


def _limits_said(of: object) -> str:
    if not isinstance(of, Meta):
        return ""
    limits = (("more than", of.gt), ("from", of.ge), ("to", of.le), ("to", of.max_length))
    words = [f"{word} {limit:g}" for word, limit in limits if limit is not None]
    return " ".join(["", *words, of.description] if of.description else ["", *words])


def require(
    call: str,
    annotations: Mapping[str, Any],
    values: Mapping[str, object],
    refusal: Refusal = bad_keyword,
) -> None:
    """Refuse the first value that is not as annotated: BadInputError, ``bad-keyword`` by default."""
    for name, value in values.items():
        if name in annotations and not fits(annotations[name], value):
            raise refusal(call=call, keyword=name, value=value, need=said(annotations[name]))


#: Returns the evaluated annotations of a function, or of the fields of a dataclass.
annotations_of: Callable[[Any], Mapping[str, Any]] = functools.cache(
    functools.partial(typing.get_type_hints, include_extras=True)
)


def typed(kind: _Typed, refusal: Refusal = bad_keyword) -> _Typed:
    """Let a function, or the constructor of a class, refuse arguments that are not as annotated.

    They raise what `refusal` makes, a BadInputError that names the argument, before anything is done. What
    does not fit the signature is a TypeError, as of any function.
    """
    if not isinstance(kind, type):
        return _checked(kind, kind, kind.__qualname__, refusal)
    called = vars(kind)["__init__"]
    source = kind if is_dataclass(kind) else called
    kind.__init__ = _checked(called, source, kind.__name__, refusal)  # type: ignore[misc] # it stays what it is
    return kind


def typed_calls(kind: _Typed) -> _Typed:
    """Let a class refuse as :func:`typed`, in its constructor and in each of its public methods."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, _checked(method, method, f"{kind.__name__}.{name}", bad_keyword))
    return typed(kind)


def _checked(function: _Typed, source: Any, name: str, refusal: Refusal) -> _Typed:
    signature = inspect.signature(function)
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    usual = {each.name: each.default for each in signature.parameters.values() if each.kind not in several}

    @functools.wraps(function)
    def checked(*args: Any, **named: Any) -> object:
        try:
            given = signature.bind(*args, **named).arguments
        except TypeError:
            return function(*args, **named)
        for parameter in list(given):
            if parameter not in usual or given[parameter] is usual[parameter]:
                del given[parameter]
        require(f"{name}()", annotations_of(source), given, refusal)
        return function(*args, **named)

    return typing.cast("_Typed", checked)
