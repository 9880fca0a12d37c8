"""The way into FastDeploy: its module gets wsm's class, before and after the module is imported."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent.parent

#: What FastDeploy does: a runner that imports the class at its top, a loop that imports it when it is asked.
FILES = {
    "fastdeploy/__init__.py": "",
    "fastdeploy/rl/__init__.py": "",
    "fastdeploy/rl/dynamic_weight_manager.py": "class DynamicWeightManager:\n    pass\n",
    "fastdeploy/worker/__init__.py": "",
    "fastdeploy/worker/xpu_model_runner.py": textwrap.dedent("""
        from types import SimpleNamespace

        class XPUModelRunner:
            def __init__(self, dynamic):
                self.fd_config = SimpleNamespace(load_config=SimpleNamespace(dynamic_load_weight=dynamic))

            def load_model(self):
                return 7
        """),
    "fastdeploy/model_executor/__init__.py": "",
    "fastdeploy/model_executor/utils.py": "def process_final_after_loading(model, fd_config):\n    pass\n",
    "fastdeploy/loader.py": "from fastdeploy.model_executor.utils import process_final_after_loading\n",
    "fastdeploy/runner.py": "from fastdeploy.rl.dynamic_weight_manager import DynamicWeightManager\n",
}
SAYS = """
from fastdeploy.runner import DynamicWeightManager as early
from fastdeploy.rl.dynamic_weight_manager import DynamicWeightManager as late
print(early.__module__, late.__module__, early is late)
"""


def runs(directory: Path, program: str, **environment: str) -> str:
    for name, text in FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{directory}:{REPOSITORY / 'src'}", **environment},
    )
    return done.stdout.strip()


OURS = "wsm.fastdeploy._dynamic_weights wsm.fastdeploy._dynamic_weights True"
THEIRS = "fastdeploy.rl.dynamic_weight_manager fastdeploy.rl.dynamic_weight_manager True"


@pytest.mark.slow_but
@pytest.mark.parametrize(
    "before",
    [
        "import wsm.fastdeploy as w; w.install(); w.install()",
        "import fastdeploy.runner; import wsm.fastdeploy as w; w.install()",
    ],
)
def test_one_line_gives_fastdeploy_the_class_whenever_it_imports_its_own(tmp_path, before):
    assert runs(tmp_path, f"{before}\n{SAYS}") == OURS


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "import fastdeploy.loader\n"])
def test_what_processes_loaded_models_is_watched_wherever_it_was_taken_from_its_module(tmp_path, before):
    program = """
import wsm.fastdeploy as w; w.install(); w.install()
from fastdeploy import loader
from fastdeploy.model_executor import utils
own = loader.process_final_after_loading
print(own is utils.process_final_after_loading, own.__wrapped__.__module__, own.__wrapped__.__closure__)
"""
    assert runs(tmp_path, before + program) == "True fastdeploy.model_executor.utils None"


@pytest.mark.slow
@pytest.mark.parametrize(("variable", "said"), [("1", OURS), ("0", THEIRS), ("", THEIRS)])
def test_the_entry_point_installs_only_where_the_variable_says_so(tmp_path, variable, said):
    text = (REPOSITORY / "pyproject.toml").read_text()
    group = text.split('[project.entry-points."fastdeploy.model_register_plugins"]')[1]
    module, call = re.search(r'"([\w.]+):(\w+)"', group).groups()
    program = textwrap.dedent(f"import {module} as plugin; plugin.{call}()\n") + SAYS
    assert runs(tmp_path, program, WSM_FASTDEPLOY=variable) == said


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "import fastdeploy.worker.xpu_model_runner"])
def test_a_runner_whose_build_makes_no_manager_is_refused_where_its_weights_are_to_change(tmp_path, before):
    program = """
import wsm.fastdeploy as w; w.install(); w.install()
from fastdeploy.worker.xpu_model_runner import XPUModelRunner
print(XPUModelRunner(False).load_model())
try:
    XPUModelRunner(True).load_model()
except Exception as error:
    print(error.code, error.context["call"], error.context["runner"])
"""
    assert runs(tmp_path, before + program) == "7\nno-manager DynamicWeightManager XPUModelRunner"
