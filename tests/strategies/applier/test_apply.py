"""The applier: checks before the first byte, taint before the first touch, nothing past a cancellation.

Also where tensors are known only as they come, where they are a part of the model, and under several names.
"""

from __future__ import annotations

import pytest
from stamped import apply_tensors, of_bytes

from tests.incident import incident
from tests.raising import raising
from wsm import TensorReleasedError
from wsm.errors import WsmError
from wsm.strategies import MemoryTarget, TensorSpec, errors
from wsm.strategies.applier.coverage import RunningCoverage, check_coverage
from wsm.strategies.byte_copy import CHUNK_BYTES
from wsm.strategies.digest import digest_of
from wsm.strategies.observer import LoadObserver
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor


def offered(name, data, *, dtype="U8", shape=None, digest=None, events=None):
    def read_into(offset, destination):
        if events is not None:
            events.append(f"read {name} at {offset}")
        destination[:] = data[offset : offset + len(destination)]

    spec = TensorSpec(name, dtype, (len(data),) if shape is None else shape)
    return OfferedTensor(spec, "somewhere", read_into, digest)


class LoggingTarget(MemoryTarget):
    def __init__(self, specs, events):
        super().__init__(specs)
        self._events = events

    def writable(self, name):
        self._events.append(f"writable {name}")
        return super().writable(name)


A, B = TensorSpec("a", "U8", (3,)), TensorSpec("b", "U8", (2,))


def test_the_target_is_tainted_before_its_memory_is_asked_for_and_once_only():
    events = []
    target = LoggingTarget([A, B], events)
    observer = LoadObserver(taint=lambda: events.append("taint"))
    apply_tensors([offered("a", b"111", events=events), offered("b", b"22", events=events)], target, observer)
    assert events == ["taint", "writable a", "read a at 0", "writable b", "read b at 0"]


def test_one_error_lists_everything_that_is_missing_unknown_and_duplicate():
    specs = {name: TensorSpec(name, "U8", (1,)) for name in "abcdefghijklm"}
    files = {"b": "sound"}
    rows = [(TensorSpec(name, "U8", (1,)), files.get(name, "f")) for name in ("a", "a", "b", "x", "y")]
    with raising(errors.not_covered) as caught:
        check_coverage(rows, specs)
    assert caught.value.missing == tuple("cdefghijklm")
    assert caught.value.unknown == ("x", "y")
    assert caught.value.duplicate == ("a",)
    assert "sound" not in str(caught.value), "that file has nothing wrong"
    for text in ("11 missing: 'c', 'd'", "and 5 more", "2 unknown: 'x', 'y'", "1 duplicate: 'a'"):
        assert text in str(caught.value)


@incident("FastDeploy#6052")
def test_all_mismatches_are_listed_with_both_sides_and_their_file():
    wanted = {"a": TensorSpec("a", "F32", (2,)), "b": TensorSpec("b", "F32", (2,))}
    rows = [(TensorSpec("a", "BF16", (2,)), "f1"), (TensorSpec("b", "F16", (2,)), "f2")]
    with raising("dtype-mismatch") as dtypes:
        check_coverage(rows, wanted)
    assert dtypes.value.mismatches == (("a", "F32", "BF16", "f1"), ("b", "F32", "F16", "f2"))
    with raising("shape-mismatch", match=r"'a' has shape \(2, 1\) in f1, the model has \(2,\)"):
        check_coverage([(TensorSpec("a", "F32", (2, 1)), "f1")], {"a": wanted["a"]})


def test_unknown_names_may_be_allowed_by_name_and_are_not_read():
    events = []
    target = MemoryTarget([A])
    applied = apply_tensors(
        [offered("a", b"111"), offered("extra", b"9", events=events)],
        target,
        LoadObserver(),
        allowed_unknown=["extra"],
    )
    assert applied.tensors == 1
    assert events == []


def test_a_tensor_of_no_bytes_is_asked_of_no_source():
    events = []
    target = MemoryTarget([TensorSpec("empty", "U8", (0,)), A])
    apply_tensors([offered("empty", b"", events=events), offered("a", b"111")], target, LoadObserver())
    assert events == []


@pytest.mark.parametrize("after", [1, CHUNK_BYTES])
def test_a_cancellation_stops_between_tensors_and_between_chunks(after):
    size = 2 * CHUNK_BYTES
    done = 0

    def progress(so_far, total):
        nonlocal done
        done = so_far
        assert total == size + 1

    observer = LoadObserver(progress=progress, cancelled=lambda: done >= after)
    target = MemoryTarget([TensorSpec("s", "U8", (1,)), TensorSpec("l", "U8", (size,))])
    with raising(errors.LoadCancelledError) as caught:
        apply_tensors([offered("s", b"1"), offered("l", bytes(size))], target, observer)
    assert caught.value.touched
    assert caught.value.tensors_applied == 1
    assert done < size


@pytest.mark.parametrize(
    ("memory", "problem"),
    [
        (memoryview(bytes(3)), "read-only"),
        (memoryview(bytearray(4)), "4 bytes instead of 3"),
        (memoryview(bytearray(3)).cast("b"), "not a flat view"),
        (memoryview(bytearray(6))[::2], "not a flat view"),
    ],
)
def test_a_target_that_breaks_its_own_contract_is_an_internal_error(memory, problem):
    class Broken(MemoryTarget):
        def writable(self, name):
            return memory

    with raising("target-contract", match=problem):
        apply_tensors([offered("a", b"111")], Broken([A]), LoadObserver())


def test_a_memory_target_holds_what_was_written_until_it_is_released():
    target = MemoryTarget([A, TensorSpec("z", "F32", (0,))])
    with raising(TensorReleasedError):
        target.readable("a")
    target.writable("a")[:] = b"123"
    target.writable("z")
    assert list(target.held()) == ["a"]
    assert target.readable("a").readonly
    assert target.release() == 3
    assert target.release() == 0
    assert list(target.held()) == []


def kept(name, data, memory, *, digest=None):
    def never_read(offset, destination):
        raise AssertionError(f"{name} was copied")

    spec = TensorSpec(name, "U8", (len(data),))
    return OfferedTensor(spec, "somewhere", never_read, digest, memory=lambda: memoryview(memory))


def test_memory_that_may_be_kept_is_kept_by_a_released_tensor_and_digested_where_it_lies():
    memory = bytearray(b"111")
    target = MemoryTarget([A], adopting=True)
    applied = apply_tensors([kept("a", b"111", memory, digest=digest_of(b"111"))], target, LoadObserver())
    assert (applied.adopted_bytes, applied.bytes, applied.verified) == (3, 3, 1)
    memory[0:1] = b"2"
    assert bytes(target.readable("a")) == b"211"


@pytest.mark.parametrize("target", [MemoryTarget([A]), MemoryTarget([A], adopting=True)])
def test_bytes_are_copied_into_a_tensor_that_holds_memory_or_keeps_none(target):
    target.writable("a")[:] = b"old"
    if target.adopts("a"):
        pytest.fail("a tensor that holds memory may have been captured by its address")
    offer = OfferedTensor(A, "somewhere", offered("a", b"111").read_into, memory=lambda: memoryview(b"111"))
    applied = apply_tensors([offer], target, LoadObserver())
    assert applied.adopted_bytes == 0
    assert bytes(target.readable("a")) == b"111"


def test_memory_with_a_wrong_digest_is_never_kept():
    target = MemoryTarget([A], adopting=True)
    with raising(errors.DigestMismatchError):
        apply_tensors(
            [kept("a", b"111", bytearray(b"111"), digest=digest_of(b"222"))], target, LoadObserver()
        )
    assert list(target.held()) == []


def test_bytes_with_a_wrong_digest_are_never_moved_elsewhere():
    moved = []

    class Elsewhere(MemoryTarget):
        def written(self, name):
            moved.append(name)

    tensors = [offered("a", b"111", digest=digest_of(b"111")), offered("b", b"22", digest=digest_of(b"23"))]
    with raising(errors.DigestMismatchError):
        apply_tensors(tensors, Elsewhere([A, B]), LoadObserver())
    assert moved == ["a"]


def test_a_source_that_promises_digests_piece_by_piece_sees_every_piece_end():
    data = bytes(range(256)) * (CHUNK_BYTES // 128)
    piece = CHUNK_BYTES - 1
    seen = []

    def check_chunk(end, digest):
        seen.append(end)
        assert digest.hexdigest() == digest_of(data[:end])

    spec = TensorSpec("a", "U8", (len(data),))
    offer = OfferedTensor(
        spec, "somewhere", offered("a", data).read_into, piece_bytes=piece, check_chunk=check_chunk
    )
    target = MemoryTarget([spec])
    applied = apply_tensors([offer], target, LoadObserver())
    assert bytes(target.readable("a")) == data
    assert {end for end in seen if end % piece == 0} == set(range(piece, len(data), piece))
    assert seen[-1] == len(data)
    assert applied.verified == 1


# -- tensors that are known only as they come ------------------------------------------------------------


class Rank:
    """A target with weights, and whether anybody was told that they are no longer whole."""

    def __init__(self):
        self.target = MemoryTarget([A, B])
        self.target.writable("a")[:] = b"old"
        self.target.writable("b")[:] = b"ol"
        self.tainted = 0

    def apply(self, tensors, **options):
        observer = LoadObserver(taint=self._taint, progress=options.pop("progress", lambda *_: None))
        return apply_tensors(iter(tensors), self.target, observer, declared=False, **options)

    def holds(self, a, b):
        return (bytes(self.target.readable("a")), bytes(self.target.readable("b"))) == (a, b)

    def _taint(self):
        self.tainted += 1


def test_memory_is_used_again_for_the_next_tensor_once_it_is_asked_for():
    def stream():
        buffer = bytearray(3)
        for spec, data in ((A, b"111"), (B, b"22")):
            view = memoryview(buffer)[: len(data)]
            view[:] = data
            yield OfferedTensor.of_bytes(spec, "a stream", view)
            buffer[:] = b"xxx"

    rank = Rank()
    rank.apply(stream())
    assert rank.holds(b"111", b"22")


WRONGS = [
    (of_bytes("c", b"3"), errors.not_covered, "1 unknown: 'c'"),
    (of_bytes("b", b"22", dtype="I8"), "dtype-mismatch", "'b' has dtype I8 in a stream"),
    (of_bytes("b", b"22", shape=(2, 1)), "shape-mismatch", r"'b' has shape \(2, 1\) in a stream"),
]


@pytest.mark.parametrize(
    ("wrong", "error", "text"), [*WRONGS, (of_bytes("a", b"333"), errors.not_covered, "1 duplicate: 'a'")]
)
def test_a_later_tensor_that_does_not_fit_is_not_written_and_the_error_says_touched(wrong, error, text):
    rank = Rank()
    with raising(error, match=text) as caught:
        rank.apply([of_bytes("a", b"111"), wrong])
    assert caught.value.touched
    assert "ended part way" in str(caught.value)
    assert rank.tainted == 1
    assert rank.holds(b"111", b"ol")


@pytest.mark.parametrize("wrong", [*(row[0] for row in WRONGS), of_bytes("a", b"333"), None])
def test_where_the_stream_is_collected_first_nothing_that_is_wrong_with_it_touches_the_target(wrong):
    rank = Rank()
    with pytest.raises(WsmError) as caught:
        rank.apply([of_bytes("a", b"111"), *([] if wrong is None else [wrong])], collects=True)
    assert not caught.value.context["touched"]
    assert "ended part way" not in str(caught.value)
    assert (rank.tainted, rank.holds(b"old", b"ol")) == (0, True)


def test_bytes_that_are_not_what_was_promised_are_found_while_they_are_collected():
    rank = Rank()
    lie = of_bytes("b", b"22", digest=digest_of(b"23"))
    with raising(errors.DigestMismatchError) as caught:
        rank.apply([of_bytes("a", b"111"), lie], collects=True)
    assert (caught.value.touched, rank.tainted, rank.holds(b"old", b"ol")) == (False, 0, True)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_stream_that_was_collected_is_applied_like_any_other_and_its_memory_may_be_used_again(threads):
    def stream():
        buffer = bytearray(3)
        for spec, data, digest in ((B, b"22", digest_of(b"22")), (A, b"111", None)):
            buffer[: len(data)] = data
            yield OfferedTensor.of_bytes(spec, "a stream", memoryview(buffer)[: len(data)], digest)
            buffer[:] = b"xxx"

    rank, seen = Rank(), []
    applied = rank.apply(
        stream(), collects=True, threads=threads, progress=lambda *pair: seen.append((*pair, rank.tainted))
    )
    assert rank.holds(b"111", b"22")
    assert (applied.bytes, applied.tensors, applied.verified) == (5, 2, 1)
    assert seen == [(0, 5, 0), (0, 5, 0), (2, 5, 1), (5, 5, 1)]  # it shows that it lives while it collects


def test_what_is_allowed_by_name_is_left_out_and_does_not_count_as_touching():
    rank = Rank()
    applied = rank.apply(
        [of_bytes("x", b"9"), of_bytes("a", b"111"), of_bytes("b", b"22")], allowed_unknown=["x"]
    )
    assert applied.tensors == 2
    coverage = RunningCoverage({"a": A}, allowed_unknown=["x"])
    assert not coverage.admits(TensorSpec("x", "U8", (1,)), "a stream")
    with raising(errors.not_covered):
        coverage.finish()


def test_an_error_of_the_stream_ends_the_load_as_it_is():
    def stream():
        yield of_bytes("a", b"111")
        raise ConnectionResetError("gone")

    rank = Rank()
    with pytest.raises(ConnectionResetError, match="gone"):
        rank.apply(stream())
    assert rank.tainted == 1


def test_an_undeclared_offer_does_not_say_how_much_it_holds():
    tensor = of_bytes("a", b"111")
    declared = Offer(None, (tensor,), (), None, ManifestScope.LOADED)
    assert (declared.known, declared.nbytes) == ((tensor,), 3)
    stream = Offer(None, iter([tensor]), (), None, ManifestScope.LOADED, declared=False)
    assert (stream.known, stream.nbytes) == (None, None)
    assert list(stream.tensors) == [tensor]


# -- a part of the model ---------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [True, False])
def test_a_tensor_that_is_not_brought_and_holds_nothing_is_an_error_before_anything_is_touched(declared):
    tainted = []
    target = MemoryTarget([A, B])
    target.writable("b")[:] = b"ol"
    with raising("partial-load-refused", match="leaves 'a' as it is") as caught:
        apply_tensors(
            iter([of_bytes("b", b"22")]),
            target,
            LoadObserver(taint=lambda: tainted.append(True)),
            declared=declared,
            partial=True,
        )
    assert caught.value.tensor == "a"
    assert tainted == []
    assert bytes(target.readable("b")) == b"ol"


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    ("tensors", "text"),
    [([], "2 missing"), ([of_bytes("c", b"1")], "1 unknown"), ([of_bytes("b", b"22")] * 2, "1 duplicate")],
)
def test_a_partial_load_is_strict_about_everything_else(declared, tensors, text):
    with raising(errors.not_covered, match=text):
        apply_tensors(iter(tensors), Rank().target, LoadObserver(), declared=declared, partial=True)


def test_a_whole_version_may_come_as_a_partial_load():
    rank = Rank()
    tensors = [of_bytes("a", b"111"), of_bytes("b", b"22")]
    assert apply_tensors(tensors, rank.target, LoadObserver(), partial=True).missing == ()
    assert rank.holds(b"111", b"22")


# -- one tensor under several names ----------------------------------------------------------------------


EMBED = TensorSpec("embed", "U8", (6,))
BIAS = TensorSpec("bias", "U8", (2,))
TIED = {"head": "embed", "draft.head": "embed"}


def tied_target():
    return MemoryTarget([EMBED, BIAS], tied=TIED)


def apply(tensors, into=None, **options):
    into = into or tied_target()
    how = options.pop("declared", True)
    options.update(declared=how is True, collects=how == "collected")
    return apply_tensors(tensors if how is True else iter(tensors), into, LoadObserver(), **options), into


EVERYHOW = pytest.mark.parametrize("declared", [True, False, "collected"])


@EVERYHOW
def test_bytes_that_nobody_promised_are_compared_as_they_come(declared):
    into, data = (
        MemoryTarget([TensorSpec("w", "U8", (CHUNK_BYTES + 5,))], tied={"v": "w"}),
        bytes(CHUNK_BYTES + 4),
    )
    apply([of_bytes("w", data + b"1"), of_bytes("v", data + b"1")], into, declared=declared)
    with raising("tied-tensors-differ") as caught:
        apply([of_bytes("w", data + b"1"), of_bytes("v", data + b"2")], into, declared=declared)
    assert caught.value.touched
    assert (caught.value.tensor, caught.value.name, caught.value.origin) == ("w", "v", "a stream")


def test_digests_that_were_promised_are_compared_before_anything_is_touched():
    tensors = [
        of_bytes(name, data, digest=digest_of(data))
        for name, data in (("embed", b"111222"), ("head", b"111223"))
    ]
    into, tainted = tied_target(), []
    with raising("tied-tensors-differ") as caught:
        apply_tensors(
            [*tensors, of_bytes("bias", b"34")], into, LoadObserver(taint=lambda: tainted.append(1))
        )
    assert not caught.value.touched
    assert not tainted
    assert list(into.held()) == []


@EVERYHOW
@pytest.mark.parametrize(
    ("again", "error"),
    [
        (of_bytes("head", b"111222", shape=(2, 3)), "shape-mismatch"),
        (of_bytes("head", b"111222", dtype="I8"), "dtype-mismatch"),
    ],
)
def test_another_shape_or_dtype_under_another_name_is_refused(again, error, declared):
    with raising(error, match="'embed'") as caught:
        apply([of_bytes("embed", b"111222"), again, of_bytes("bias", b"34")], declared=declared)
    assert caught.value.touched is not declared


@EVERYHOW
def test_one_name_twice_is_still_a_duplicate(declared):
    with raising(errors.not_covered) as caught:
        apply([*[of_bytes("head", b"111222")] * 2, of_bytes("bias", b"34")], declared=declared)
    assert caught.value.duplicate == ("embed",)


@EVERYHOW
def test_a_name_that_is_allowed_to_be_there_for_nothing_is_left_out(declared):
    tensors = [of_bytes("embed", b"111222"), of_bytes("head", b"other!"), of_bytes("bias", b"34")]
    _, into = apply(tensors, declared=declared, allowed_unknown=["head"])
    assert into.readable("embed") == b"111222"


def test_what_was_promised_for_a_stream_may_name_both():
    promised = [TensorSpec("head", "U8", (6,)), EMBED, BIAS]
    tensors = [of_bytes("embed", b"111222"), of_bytes("head", b"111222"), of_bytes("bias", b"34")]
    _, into = apply(tensors, declared=False, promised=promised)
    assert into.readable("embed") == b"111222"
    wrong = [TensorSpec("head", "U8", (6, 1)), EMBED, BIAS]
    with raising("shape-mismatch") as caught:
        apply(tensors, declared=False, promised=wrong)
    assert not caught.value.touched


@EVERYHOW
def test_a_partial_load_may_bring_a_tied_tensor_alone(declared):
    _, into = apply([of_bytes("embed", b"111222"), of_bytes("bias", b"34")])
    applied, _ = apply([of_bytes("head", b"333444")], into, declared=declared, partial=True)
    assert applied.missing == ("bias",)
    assert into.readable("embed") == b"333444"
