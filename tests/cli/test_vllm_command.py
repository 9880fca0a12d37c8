"""``wsm vllm serve``, before a command of vLLM's name that says what it was given."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture
def served(tmp_path):
    stands_in = tmp_path / "vllm"
    stands_in.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        'print(json.dumps([sys.argv[1:], os.environ["VLLM_PLUGINS"], os.environ.get("WSM_FLEET")]))\n'
    )
    stands_in.chmod(0o755)

    def serves(*words, path=str(tmp_path), python=sys.executable, **environment):
        program = [python, "-m", "wsm", "vllm", "serve", *words]
        clean = {name: value for name, value in os.environ.items() if name != "VLLM_PLUGINS"}
        return subprocess.run(
            program, env={**clean, "PATH": path, **environment}, capture_output=True, text=True, check=False
        )

    return serves


EXTENSION = ["--worker-extension-cls", "wsm.vllm.Worker"]


@pytest.mark.slow
def test_vllm_gets_all_words_with_the_plugin_and_the_extension(served):
    ended = served("model", "--port", "8001", "--help")
    words, plugins, _ = json.loads(ended.stdout)
    assert words == ["serve", "model", "--port", "8001", "--help", *EXTENSION]
    assert plugins == "wsm"
    assert "--fleet STORE" in ended.stderr, "what is wsm's own"


@pytest.mark.slow
def test_an_option_that_wsm_does_not_know_is_found_before_vllm_begins(served):
    ended = served("model", "--additional-config", '{"wsm": {"rootz": []}}')
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "rootz" in ended.stderr
    assert "it takes answer_s, committed" in ended.stderr


@pytest.mark.slow
def test_the_store_of_a_fleet_is_handed_on_and_is_no_word_of_vllm(served, tmp_path):
    words, _, store = json.loads(served("model", "--fleet", str(tmp_path), "--port", "8001").stdout)
    assert words == ["serve", "model", "--port", "8001", *EXTENSION]
    assert store == str(tmp_path)


@pytest.mark.slow
def test_plugins_and_an_extension_that_are_named_are_kept(served):
    ended = served("model", "--worker-extension-cls=mine.Worker", VLLM_PLUGINS="lora,wsm")
    words, plugins, _ = json.loads(ended.stdout)
    assert words == ["serve", "model", "--worker-extension-cls=mine.Worker"]
    assert plugins == "lora,wsm"


@pytest.mark.slow
def test_plugins_that_vllm_would_load_by_itself_are_named_where_nothing_is(served, tmp_path):
    about = tmp_path / "other-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\nother = other:register\n")
    _, plugins, _ = json.loads(served("model", PYTHONPATH=str(tmp_path)).stdout)
    assert plugins == "other,wsm"


def test_where_vllm_is_not_installed_that_is_said(served, tmp_path):
    ended = served("model", path=str(tmp_path / "elsewhere"))
    assert ended.returncode == 2
    assert "no command 'vllm'" in ended.stderr


@pytest.mark.slow
def test_the_vllm_of_an_environment_that_is_not_activated_is_found(served, tmp_path):
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    ended = served("model", path="", python=python, PYTHONPATH=os.pathsep.join(sys.path))
    assert ended.returncode == 0, ended.stderr
