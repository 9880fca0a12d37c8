"""Tests of the server need vLLM, which `make test` has not; `make test-vllm` has it."""

from __future__ import annotations

import importlib.util

import pytest

from tests.vllm.fake_workers import write_checkpoint

collect_ignore = (
    []
    if importlib.util.find_spec("vllm")
    else [
        f"test_{name}.py"
        for name in ("api_servers", "campaign", "demo", "fleet", "loop", "pushing", "server")
    ]
)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Versions A, B and C of a small model, in directories."""
    from tests.vllm.campaign import write_versions  # noqa: PLC0415 - it needs torch

    directory = tmp_path_factory.mktemp("models")
    write_versions(directory)
    return directory


@pytest.fixture
def one(tmp_path):
    return write_checkpoint(tmp_path / "one", 1.0)


@pytest.fixture
def two(tmp_path):
    return write_checkpoint(tmp_path / "two", 2.0)
