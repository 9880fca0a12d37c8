"""``python -m campaign``: its first lines; a signal during its imports ends it silently."""

from __future__ import annotations

import sys

from wsm_entry import end_silently, end_undisturbed


def main() -> int:
    """Run the command line of this process; return the exit status."""
    end_silently()
    from campaign.command import run  # noqa: PLC0415 - what a signal may interrupt from here on

    code = run(sys.argv[1:])
    end_undisturbed()
    return code


if __name__ == "__main__":
    sys.exit(main())
