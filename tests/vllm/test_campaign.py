"""Failures on a real server, some of which end it: no token is of a version that is not whole and proved."""

from __future__ import annotations

import pytest

from tests.vllm.campaign import play_on_servers


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(3600)  # two servers come up in it; longer: ``python -m tests.vllm.campaign 100 1``
def test_whatever_befalls_a_server_its_tokens_are_of_proved_versions(tmp_path):
    broken, counts = play_on_servers(tmp_path, 40, seed=1)
    assert broken == []
    assert counts["requests answered 200"] > 100
