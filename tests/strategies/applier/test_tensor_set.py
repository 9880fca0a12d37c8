"""A checkpoint's tensors without their bytes, in a text that a record has room for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from wsm.strategies.applier.tensor_set import MAX_TEXT, tensors_in, text_of
from wsm.strategies.digest import digest_of
from wsm.strategies.tensor import ITEM_BYTES, TensorSpec

NAMES = some.text(max_size=6) | some.from_regex(r"layers\.[0-9]{1,2}\.(up|down)\.0?[0-3]", fullmatch=True)
SPECS = some.builds(
    TensorSpec,
    NAMES.filter(lambda name: name.isprintable()),
    some.sampled_from(sorted(ITEM_BYTES)),
    some.lists(some.integers(0, 9), max_size=3).map(tuple),
)


@given(some.lists(SPECS, max_size=40, unique_by=lambda spec: spec.name))
def test_every_set_of_names_comes_back_as_it_was(specs):
    text = text_of(specs)
    assert text is not None
    assert tensors_in(text) == {spec.name: spec for spec in specs}


def experts(count):
    names = [f"layers.{layer}.experts.{expert}.up" for layer in range(count) for expert in range(count)]
    return [TensorSpec(name, "BF16", (7, 8)) for name in names]


def test_names_that_are_patterns_with_ranges_fit_however_many_they_are():
    specs = experts(100)
    text = text_of(specs)
    assert len(text) < 1024
    assert tensors_in(text) == {spec.name: spec for spec in specs}


def test_a_set_without_pattern_that_is_too_long_has_no_text():
    some_of_them = [spec for spec in experts(300) if digest_of(spec.name.encode())[0] in "0123"]
    assert text_of(some_of_them) is None
    assert len(text_of(some_of_them[:500])) <= MAX_TEXT


def test_what_is_no_such_text_is_none():
    for text in ("", "\x00", "x" * 40, "é"):
        assert tensors_in(text) is None
