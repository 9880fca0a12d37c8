"""The strategy that the documentation writes is one: registered, it loads, and is held to what all are."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from wsm.errors import WsmError
from wsm.strategies import STRATEGIES, MemoryTarget, TensorSpec, inspect, load
from wsm.strategies.errors import CoverageError, UnreadableFileError, VersionMismatchError
from wsm.strategies.observer import UNOBSERVED
from wsm.strategies.offer import ManifestScope, Offer, OfferedTensor
from wsm.strategies.trainer.tensors import bytes_of, specs_of

PAGE = Path(__file__).parents[2] / "docs" / "strategies.md"
ARRAYS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(4)}
SPECS = (TensorSpec("w", "F32", (2, 3)), TensorSpec("steps", "I64", ()))

#: What the code on the page uses without saying where it is from.
NAMES = {
    "ManifestScope": ManifestScope,
    "Offer": Offer,
    "OfferedTensor": OfferedTensor,
    "UNOBSERVED": UNOBSERVED,
    "UnreadableFileError": UnreadableFileError,
    "VersionMismatchError": VersionMismatchError,
    "bytes_of": bytes_of,
    "contextmanager": contextmanager,
    "dataclass": dataclass,
    "np": np,
    "specs_of": specs_of,
}


@pytest.fixture
def npz(monkeypatch):
    """The source type of the page's strategy, once that is registered."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text().partition("## Write one")[2], re.DOTALL)
    found = {**NAMES, "__name__": __name__}
    exec(compile(code, str(PAGE), "exec"), found)  # noqa: S102 - the page is what is tested
    monkeypatch.setitem(STRATEGIES, "npz", found["Npz"]())
    return found["NpzSource"]


def test_it_loads_a_version_and_reports_it(npz, tmp_path):
    np.savez(tmp_path / "v.npz", version=7, **ARRAYS)
    source, target = npz(str(tmp_path / "v.npz")), MemoryTarget(SPECS)
    assert inspect(source, name="npz", target=target).version == 7
    report = load(source, target, name="npz", version=7)
    assert (report.strategy, report.version, report.tensors, report.bytes) == ("npz", 7, 2, 32)
    assert all(target.readable(name) == array.tobytes() for name, array in ARRAYS.items())


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"version": 8, **ARRAYS}, VersionMismatchError),
        ({"version": 7, "w": ARRAYS["w"]}, CoverageError),
        (ARRAYS, UnreadableFileError),
        (b"no weights today", UnreadableFileError),
    ],
    ids=["another version", "a tensor is missing", "no version", "something else"],
)
def test_what_is_wrong_is_refused_by_its_file_before_anything_is_touched(npz, tmp_path, content, error):
    file = tmp_path / "v.npz"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        np.savez(file, **content)
    tainted = []
    with pytest.raises(WsmError, match=re.escape(str(file))) as caught:
        load(npz(str(file)), MemoryTarget(SPECS), name="npz", version=7, taint=lambda: tainted.append(1))
    assert isinstance(caught.value, error)
    assert not tainted
