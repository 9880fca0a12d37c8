"""Failures on a real server, some of which end it: no token is of a version that is not whole and proved."""

from __future__ import annotations

import pytest

from tests.vllm.campaign import DTYPES, play_on_servers


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(3600)  # four servers come up in it; longer: ``python -m tests.vllm.campaign 100 1``
@pytest.mark.parametrize("dtype", DTYPES)
def test_whatever_befalls_a_server_its_tokens_are_of_proved_versions(tmp_path, dtype):
    broken, counts = play_on_servers(tmp_path, 24, 1, dtype)
    assert broken == []
    assert counts["requests answered 200"] > 100
