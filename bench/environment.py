"""What measured processes live in: one compute thread each, nothing of paddle's chatter, and a parent."""

from __future__ import annotations

import os

#: Not simply "not 1": the parent may be the first process of a container.
_PARENT = os.getppid()


def parent_lives() -> bool:
    """Whether the process that started this one is still there."""
    return os.getppid() == _PARENT


def quiet_environment() -> dict[str, str]:
    """Return this process' environment with paddle kept quiet and single-threaded."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOG_minloglevel": "2",
        "PYTHONWARNINGS": "ignore:No ccache found:UserWarning",
    }
