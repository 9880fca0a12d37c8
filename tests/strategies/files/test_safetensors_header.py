"""The headers of safetensors files, and the window that goes ahead of a load from them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from bench.page_cache import drop_page_cache
from tests.raising import raising
from wsm.config import ConfigurationError, config_from_mapping
from wsm.strategies import TensorSpec, errors
from wsm.strategies.files.safetensors import (
    MAX_HEADER_BYTES,
    PREFIX_BYTES,
    Readahead,
    header_length,
    lay_out,
    parse_header,
)
from wsm.strategies.tensor import ITEM_BYTES, OTHER_DTYPES
from wsm.worker.loading import Sources


def test_a_dtype_has_the_bits_that_its_name_says():
    named = {name: re.search(r"\d+", name) for name in ITEM_BYTES if name != "BOOL"}
    assert {name: int(bits.group()) for name, bits in named.items()} == {
        name: 8 * ITEM_BYTES[name] for name in named
    }


def parse(data: bytes):
    length = header_length(data[:PREFIX_BYTES], file="f", file_bytes=len(data))
    return parse_header(data[PREFIX_BYTES : PREFIX_BYTES + length], file="f", file_bytes=len(data))


def file_with(header, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(begin, end, shape=None, dtype="U8", **more):
    return {
        "dtype": dtype,
        "shape": [end - begin] if shape is None else shape,
        "data_offsets": [begin, end],
        **more,
    }


def test_a_good_header_gives_tensors_in_file_order_and_the_metadata():
    header = parse(
        file_with({"__metadata__": {"k": "v"}, "b": tensor(2, 6, [2], "BF16"), "a": tensor(0, 2)}, b"x" * 6)
    )
    assert [(spec.name, spec.dtype) for spec in header.specs] == [("a", "U8"), ("b", "BF16")]
    assert header.begins == (0, 2)
    assert header.metadata == {"k": "v"}


def test_scalars_and_tensors_of_size_zero_are_fine():
    header = parse(file_with({"z": tensor(4, 4, [0, 3], "F32"), "s": tensor(0, 4, [], "F32")}, b"x" * 4))
    assert {spec.name: spec.nbytes for spec in header.specs} == {"s": 4, "z": 0}


def test_a_header_with_blanks_behind_it_is_fine():
    assert parse(file_with(json.dumps({"a": tensor(0, 1)}).encode() + b"    ", b"x")).data_begin > 0


BAD = {
    "empty file": (b"", "its 0 bytes are too few"),
    "too short": (b"\x01\0\0", "too few"),
    "header longer than the file": (file_with({"a": tensor(0, 4)})[:20], "longer than the file"),
    "header beyond the limit": ((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}", "larger than"),
    "wrong magic": (file_with(b"[]"), "does not begin with"),
    "blank first": (file_with(b" {}"), "does not begin with"),
    "not UTF-8": (file_with(b'{"\xff": 1}'), "utf-8"),
    "not JSON": (file_with(b"{]"), "not JSON"),
    "nested too deeply": (file_with(b'{"a":' + b"[" * 200_000), "nested too deeply|not JSON"),
    "duplicated name": (
        file_with(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":1}', b"x"),
        "'a' occurs twice",
    ),
    "NaN": (file_with(b'{"a": NaN}'), "not JSON"),
    "field missing": (
        file_with({"a": {"dtype": "U8", "shape": [1]}}),
        "'a': .*missing.*`data_offsets`",
    ),
    "field unknown": (
        file_with({"a": tensor(0, 1, stride=[1])}, b"x"),
        "'a': .*unknown field",
    ),
    "unknown dtype": (file_with({"a": tensor(0, 1, dtype="F5")}, b"x"), "unsupported dtype 'F5'"),
    "extent is negative": (file_with({"a": tensor(0, 1, [-1])}, b"x"), r">= 0 - at `\$.shape"),
    "extent is true": (file_with({"a": tensor(0, 1, [True])}, b"x"), "`int`, got `bool`"),
    "too many dimensions": (file_with({"a": tensor(0, 1, [1] * 65)}, b"x"), "length <= 64"),
    "offset is negative": (file_with({"a": tensor(-1, 0, [1])}, b"x"), r">= 0 - at `\$.data_offsets"),
    "offsets go backwards": (file_with({"a": tensor(2, 1, [1])}, b"xx"), "cannot lie at 2..1"),
    "size does not fit": (file_with({"a": tensor(0, 5, [2], "F32")}, b"x" * 5), "cannot lie at 0..5"),
    "overlap": (file_with({"a": tensor(0, 4), "b": tensor(2, 6)}, b"x" * 6), "'b' overlaps"),
    "same place": (file_with({"a": tensor(0, 4), "b": tensor(0, 4)}, b"x" * 4), "'b' overlaps"),
    "gap": (file_with({"a": tensor(0, 4), "b": tensor(5, 6)}, b"x" * 6), "'b' leaves a gap"),
    "gap at the beginning": (file_with({"a": tensor(1, 2)}, b"xx"), "'a' leaves a gap"),
    "lone surrogate": (
        file_with(b'{"\\ud800": {"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
        "surrogate",
    ),
    "metadata holds a number": (file_with({"__metadata__": {"k": 1}}), "__metadata__"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_header_is_refused_with_what_is_wrong(name):
    data, problem = BAD[name]
    with raising(errors.bad_safetensors, match=problem) as caught:
        parse(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", sorted(OTHER_DTYPES))
def test_a_dtype_that_wsm_does_not_move_is_no_damage_of_the_file(dtype):
    with raising("dtype-not-moved", match=f"is a good safetensors file, .* {dtype}, which 'a' has"):
        parse(file_with({"a": tensor(0, 1, dtype=dtype)}, b"x"))


def test_scales_of_one_byte_are_moved_and_metadata_may_be_null():
    header = parse(file_with({"__metadata__": None, "a": tensor(0, 2, [2], "F8_E8M0")}, b"xx"))
    assert header.specs == (TensorSpec("a", "F8_E8M0", (2,)),)
    assert header.metadata == {}


@pytest.mark.parametrize(("data", "kind"), [(b"xxx", "truncated"), (b"xxxxx", "longer than announced")])
def test_data_of_another_size_than_announced_is_refused(data, kind):
    with raising(errors.bad_file_size, match=kind):
        parse(file_with({"a": tensor(0, 4)}, data))


def test_what_we_write_is_what_the_safetensors_library_reads():
    specs = [
        TensorSpec("a", "F32", (2, 3)),
        TensorSpec("ü", "I64", ()),
        TensorSpec("z", "F16", (0,)),
    ]
    data = lay_out(specs, {"k": "v"})[0] + bytes(range(32))
    read = dict(safetensors.deserialize(data))
    assert {name: (item["dtype"], tuple(item["shape"])) for name, item in read.items()} == {
        spec.name: (spec.dtype, spec.shape) for spec in specs
    }
    assert bytes(read["ü"]["data"]) == bytes(range(24, 32))
    assert (len(data) - 32) % 64 == 0


def test_what_we_write_is_what_python_s_own_json_would_write():
    specs = [
        TensorSpec('a"\\\n', "F32", (2, 3)),
        TensorSpec("ü\u2028", "I64", ()),
        TensorSpec("c", "F16", (0,)),
    ]
    fields = {
        "__metadata__": {"k": 'v"'},
        'a"\\\n': {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "ü\u2028": {"dtype": "I64", "shape": [], "data_offsets": [24, 32]},
        "c": {"dtype": "F16", "shape": [0], "data_offsets": [32, 32]},
    }
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    assert lay_out(specs, {"k": 'v"'})[0][PREFIX_BYTES:].rstrip(b" ") == text


# -- the window that goes ahead of a load ----------------------------------------------------------------


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=5),
    st.integers(1, 60),
    st.integers(1, 20),
)
def test_every_byte_is_asked_for_once_and_before_it_is_read_and_within_the_window(sizes, window, chunk):
    asked: list[tuple[int, int]] = []
    ahead = Readahead(
        sizes,
        window,
        lambda file, offset, length: asked.extend((file, byte) for byte in range(offset, offset + length)),
    )
    order = [(file, byte) for file, size in enumerate(sizes) for byte in range(size)]
    for at in range(0, len(order), chunk):
        ahead.reached(*order[at])
        assert order[at] in asked
        assert len(asked) <= at + window
    assert asked == sorted(set(asked))
    assert set(asked) <= set(order)
    if window >= 2 * chunk:
        assert asked == order


def test_reading_out_of_order_asks_for_nothing_twice():
    asked = []
    ahead = Readahead([100], 40, lambda file, offset, length: asked.append((offset, length)))
    for offset in (0, 80, 10, 90, 50):
        ahead.reached(0, offset)
    assert asked == [(0, 40), (80, 20)]


def test_a_load_asks_the_kernel_for_all_its_parts(snapshot, monkeypatch):
    snapshot.publish(1)
    drop_page_cache(snapshot.root)
    asked = {}

    def advise(descriptor, offset, length, advice):
        assert advice == os.POSIX_FADV_WILLNEED
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        asked[path] = asked.get(path, 0) + length

    monkeypatch.setattr(os, "posix_fadvise", advise)
    report = snapshot.brings(readahead_bytes=1 << 30)
    assert sorted(asked) == sorted(report.files)
    assert sum(asked.values()) <= sum(Path(file).stat().st_size for file in report.files)

    asked.clear()
    snapshot.brings()
    assert asked == {}


def test_a_file_system_without_advice_is_read_all_the_same(snapshot, monkeypatch):
    def refuse(*_):
        raise OSError(95, "not supported")

    snapshot.publish(1)
    monkeypatch.setattr(os, "posix_fadvise", refuse)
    snapshot.brings(readahead_bytes=1 << 20)


def test_the_configuration_says_how_far_ahead():
    group = {"name": "g", "ranks": 1, "snapshot": {"readahead_bytes": 1 << 26}}
    assert Sources(config_from_mapping(group)).of(0).readahead_bytes == 1 << 26
    group["snapshot"]["readahead_bytes"] = -1
    with pytest.raises(ConfigurationError, match="readahead_bytes"):
        config_from_mapping(group)
