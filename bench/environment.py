"""The environment of measured processes: one compute thread each, and nothing of paddle's chatter."""

from __future__ import annotations

import os


def quiet_environment() -> dict[str, str]:
    """Return this process' environment with paddle kept quiet and single-threaded."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOG_minloglevel": "2",
        "PYTHONWARNINGS": "ignore:No ccache found:UserWarning",
    }
