"""A process that plays cases on one group: ``python -m campaign.batch KIND RANKS``.

``--list FAMILY`` prints the names of a family's cases. Otherwise names come in on standard input, one per
line, and for each one a line ``begin NAME`` and a line of JSON go out. It is a process of its own so that
the process that started it can end a case that hangs, ranks and all: they die with their supervisor, which
lives here.
"""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
import warnings

from campaign import families
from campaign.case import Case
from campaign.group import GroupUnderFault
from campaign.result import Result
from wsm import log
from wsm.ending import Ending, SignalReceived, signals_raise


def main() -> None:
    """List cases or play them."""
    kind, ranks = sys.argv[1], int(sys.argv[2])
    warnings.filterwarnings("ignore", "No ccache found")
    log.configure(level="critical")
    if "--list" in sys.argv:
        with signals_raise():
            for case in families.all_cases(kind, ranks, sys.argv[-1]):
                _say(str(case))
        return
    ending = Ending()
    with ending.heeded(), contextlib.suppress(SignalReceived), GroupUnderFault(kind, ranks) as group:
        with ending.interrupting():
            for line in sys.stdin:
                _say(f"begin {line.strip()}")
                _say(_play(Case.parse(line.strip()), group).to_line())
        leftovers = group.stop()
        _say(Result(f"{kind}/{ranks}/end", outcome="ended", leftovers=leftovers).to_line())
    sys.exit(ending.exit_code)


def _play(case: Case, group: GroupUnderFault) -> Result:
    began = time.monotonic()
    try:
        return families.play(case, group)
    except Exception as error:  # noqa: BLE001 - whatever it is: this case's result, and the next one is played
        trace = "".join(traceback.format_exception(error)[-4:])
        problem = f"the case itself failed: {type(error).__name__}: {error}\n{trace}"
        return Result(
            str(case), "failed", seconds=time.monotonic() - began, problems=[problem], leftovers=group.stop()
        )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
