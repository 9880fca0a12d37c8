"""The code of docs/testing.md and docs/extending.md, run as it is printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENTS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("page", ["testing", "extending"])
def test_the_code_of_a_page_runs_as_it_is_printed(tmp_path, page) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", (DOCUMENTS / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert blocks
    (tmp_path / "test_page.py").write_text("\n\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-W", "error", "test_page.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_the_pieces_for_tests_are_imported_without_hypothesis_and_pytest() -> None:
    program = (
        "import sys; sys.modules['hypothesis'] = sys.modules['pytest'] = None\n"
        "import wsm.testing; wsm.testing.RunnerContract, wsm.testing.LocalGroup"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
