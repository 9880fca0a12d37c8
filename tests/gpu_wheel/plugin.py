"""What pytest needs to run the suite on the GPU wheel of paddle 2.6: ``-p tests.gpu_wheel.plugin``.

It lets the wheel's one warning pass, and expects the failures that :mod:`tests.gpu_wheel.replacements`
declares; pytest lists them at the end, by name and with their reasons.
"""

from __future__ import annotations

import os
import re
import warnings

import pytest

from tests.gpu_wheel.replacements import LACKING_IN_2_6

#: Said once per process by a GPU build on a machine without a GPU.
_WARNING = "ignore:You are using GPU version"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", _WARNING)
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), _WARNING]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for pattern, reason in LACKING_IN_2_6.items():
            if re.match(pattern, item.nodeid):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def pytest_report_header() -> str:
    with warnings.catch_warnings():  # the filters of the configuration do not hold yet
        warnings.filterwarnings("ignore", "You are using GPU version")
        import paddle  # noqa: PLC0415 - a second of import time, which listing options can do without

    return f"paddle {paddle.__version__}, compiled with CUDA: {paddle.is_compiled_with_cuda()}"
