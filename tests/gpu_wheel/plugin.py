"""What pytest needs to run tests on a GPU build of paddle: ``-p tests.gpu_wheel.plugin``.

It lets the build's one warning pass, and on the wheel of 2.6 it expects the failures that
:mod:`tests.gpu_wheel.replacements` declares; pytest lists them at the end, by name and with their reasons.
"""

from __future__ import annotations

import os
import re
import warnings
from typing import Any

import pytest

from tests.gpu_wheel.replacements import LACKING_IN_2_6

#: Said once per process by a GPU build on a machine without a GPU.
_SAID = "You are using GPU version"
_WARNING = f"ignore:{_SAID}"


@pytest.hookimpl(tryfirst=True)  # conftest files of directories that were named import paddle
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    warnings.filterwarnings("ignore", _SAID)  # the filters of the configuration hold from the next step on
    early_config.addinivalue_line("filterwarnings", _WARNING)
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), _WARNING]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not _paddle().__version__.startswith("2.6."):
        return
    for item in items:
        for pattern, reason in LACKING_IN_2_6.items():
            if re.match(pattern, item.nodeid):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def pytest_report_header() -> str:
    paddle = _paddle()
    return f"paddle {paddle.__version__}, compiled with CUDA: {paddle.is_compiled_with_cuda()}"


def _paddle() -> Any:
    """Import paddle at a time when the filters of the configuration may not hold."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", _SAID)
        import paddle  # noqa: PLC0415 - a second of import time, which listing options can do without
    return paddle
