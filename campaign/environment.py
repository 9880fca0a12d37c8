"""What victims inherit: where their orders lie, where this package is, and one compute thread each."""

from __future__ import annotations

import os
from pathlib import Path

#: Tells a victim the group's directory.
DIRECTORY_VARIABLE = "WSM_CAMPAIGN_DIRECTORY"

#: ``no`` where ranks need not write down their steps.
STEPS_VARIABLE = "WSM_CAMPAIGN_STEPS"

_ROOT = Path(__file__).resolve().parent.parent


def victims_environment(directory: Path | None = None) -> dict[str, str]:
    """Return this process' environment with what victims need; paddle is kept quiet."""
    places = [str(_ROOT), str(_ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(os.pathsep.join(places).split(os.pathsep))),
        "OMP_NUM_THREADS": "1",
        "GLOG_minloglevel": "2",
        "PYTHONWARNINGS": "ignore:No ccache found:UserWarning",
        **({DIRECTORY_VARIABLE: str(directory)} if directory is not None else {}),
    }
