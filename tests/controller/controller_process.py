"""A controller that dies: python controller_process.py GROUP DIRECTORY COMMAND VERSION POINT [DEADLINE].

COMMAND is `clear`, `update` or `hot`; VERSION is a number or `newest`. At POINT the process kills itself
as the kernel would, with the role held: nothing of it runs any more. POINT `never` lets it live to the end,
and it says then how the command failed, if it did.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import wsm
from wsm.committed_record import CommittedRecord
from wsm.controller import group_view
from wsm.controller.group_view import GroupView
from wsm.errors import WsmError
from wsm.signals.segment import Segment
from wsm.signals.slot import PayloadSlot
from wsm.states.words import CommandWord, CommittedWord


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def store_half(slot: PayloadSlot, epoch: int, sequence: int, kind: int, data: bytes) -> None:
    """Die while the bytes of a payload are stored, and their head is that of what stood there before."""
    begin = slot._offset + 24
    slot._memory.bytes[begin : begin + len(data) // 2] = data[: len(data) // 2]
    die()


def die_at(point: str) -> None:
    """Make the writers of the controller's words and of its record end the process before or after that."""
    write_command, write_committed = GroupView.write_command, GroupView.write_committed
    write_record = group_view.write_record

    def command(group: GroupView, word: CommandWord) -> None:
        what = "decision" if word.operation.is_decision else "command"
        if point == f"before {what}":
            die()
        write_command(group, word)
        if point == f"after {what}":
            die()

    def committed(group: GroupView, word: CommittedWord) -> None:
        if point == "before committed":
            die()
        write_committed(group, word)
        if point == "after committed":
            die()

    def record(segment: Segment, epoch: int, written: CommittedRecord) -> CommittedRecord:
        if point == "before record":
            die()
        if point == "within record":
            PayloadSlot.write_over = store_half
        found = write_record(segment, epoch, written)
        if point == "after record":
            die()
        return found

    GroupView.write_command, GroupView.write_committed = command, committed
    group_view.write_record = record


def main() -> None:
    name, directory, command, version, point, *rest = sys.argv[1:]
    deadline = float(rest[0]) if rest else 60.0
    die_at(point)
    with wsm.Controller(name, directory=directory) as controller:
        try:
            if command == "clear":
                controller.clear(deadline_s=deadline)
            elif command == "hold":
                controller.hold(owner="trainer", deadline_s=deadline)
            elif command == "release":
                controller.release(owner="trainer", deadline_s=deadline)
            else:
                number = None if version == "newest" else int(version)
                controller.update(number, hot=command == "hot", deadline_s=deadline)
        except WsmError as error:
            sys.stdout.write(json.dumps({"event": "failed", "error": str(error)}) + "\n")
            sys.exit(1)


if __name__ == "__main__":
    main()
