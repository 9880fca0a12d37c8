"""The demo is played on real servers: vLLM alone answers for neither version, with wsm for one."""

from __future__ import annotations

import pytest

from examples.vllm_demo import __main__ as demo
from tests.vllm.server import shared_memory_of_vllm


@pytest.mark.timeout(900)  # two servers come up in it
def test_the_demo_says_what_its_page_says(capsys, monkeypatch, tmp_path):
    before, drawn = shared_memory_of_vllm(), tmp_path / "demo.svg"
    monkeypatch.setattr("sys.argv", ["vllm_demo", "--svg", str(drawn)])
    demo.main()
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    alone, _, wsm = said.partition("vLLM with wsm")
    assert [line.split("   ")[-1] for line in alone.splitlines() if "answers" in line] == [
        "step-0",
        "neither version",
    ]
    assert "409 refused: incomplete-checkpoint" in wsm
    assert [line.split("   ")[-1] for line in wsm.splitlines() if "answers" in line] == [
        "step-0",
        "step-0",
        "step-1",
        "step-0",
    ]
    assert drawn.read_text().count("<text") == said.count("\n")
    assert shared_memory_of_vllm() <= before
