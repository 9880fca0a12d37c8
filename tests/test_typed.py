"""The one check of keywords, options and facts: what fits an annotation, and what is said otherwise."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from tests.raising import raising
from wsm.labels import bad_version
from wsm.states.vocabulary import After, Tag
from wsm.strategies import AdoptSettings, Retention, TensorSpec
from wsm.typed import LATER, Count, Seconds, Wait, bad_keyword, fits, said, typed


@pytest.mark.parametrize(
    ("annotation", "does", "does_not"),
    [
        (int, [0, -1, 2**63 - 1], [True, 1.0, 2**64, 10**5000, "1", None]),
        (float, [0, 0.5], [True, float("nan"), float("inf"), 10**5000, np.float64(1)]),
        (str, ["", "é"], ["\ud800", "a\0b", b"a"]),
        (Path | str, [Path("a"), "\udcff"], ["a\0b", "\ud800", "x" * 256]),
        (Seconds, [0.1, 1e9], [0, -1, 1e10]),
        (Wait, [0], [-1]),
        (Count | None, [1, None], [0]),
        (Collection[Tag | str], [["weights"], {Tag.KV_CACHE}], ["weights", ["weight"], {"weights": 1}, 3]),
        (After | str, [After.HELD, "held"], ["hold", None]),
        (Literal["a", "b"], ["a"], ["c", 1]),
        (tuple[int, ...], [(1, 2), [1], ()], ["a", (1, "a")]),
        (Mapping[str, Any], [{"a": object()}], [{1: 2}, []]),
        (Annotated[int, LATER], ["anything"], []),
        (Annotated[int, "of another's own"], [1], ["a"]),
    ],
    ids=range(14),
)
def test_a_value_fits_its_annotation_or_it_is_said_what_it_must_be(annotation, does, does_not):
    assert [value for value in does if not fits(annotation, value)] == []
    assert [value for value in does_not if fits(annotation, value)] == []
    assert said(annotation)


def test_a_call_refuses_by_name_before_it_is_entered_and_keeps_its_signature():
    entered = []

    @typed
    def call(first: int, *, keys: Collection[str] = ()) -> None:
        entered.append((first, keys))

    call(1, keys=["a"])
    with raising(bad_keyword, match=r"call\(\): keys is 'a'; it must be a list of a text"):
        call(1, keys="a")
    with pytest.raises(TypeError, match="'key'"):
        call(1, key="a")
    assert entered == [(1, ["a"])]


def test_a_text_is_no_list_of_directories_and_a_list_is_a_shape():
    """`roots="/"` let any directory of the host be adopted."""
    with raising(bad_keyword, match="roots"):
        AdoptSettings("/srv", roots="/")
    assert TensorSpec("w", "F32", [4, 4]) == TensorSpec("w", "F32", (4, 4))
    with raising(bad_keyword, match="dtype"):
        TensorSpec("w", "float32", (4,))


def test_what_is_to_be_retained_is_refused_before_anything_is_published():
    """A publisher reported the failure of what it had published and announced."""
    with raising(bad_version):
        Retention(protect=["not a label!"])
    with raising(bad_keyword, match="keep"):
        Retention(keep="2")


#: Each turn makes types that nobody has used yet, and four threads use them at once.
FIRST_USES = """
import sys, threading, types
from wsm import payload

TYPES = '''
from __future__ import annotations
import msgspec

class Inner(msgspec.Struct):
    number: int | None
    texts: list[str]

class Outer(msgspec.Struct):
    first: Inner
    rest: list[Inner] = []
'''

sys.setswitchinterval(1e-6)
for turn in range(50):
    made = sys.modules[f"made_{turn}"] = types.ModuleType(f"made_{turn}")
    exec(TYPES, vars(made))
    begin = threading.Barrier(4)

    def use():
        begin.wait()
        payload.convert(made.Outer, {"first": {"number": 1, "texts": []}})

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.processes
def test_threads_that_use_a_type_first_at_the_same_time_do_not_end_their_process():
    done = subprocess.run([sys.executable, "-c", FIRST_USES], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
