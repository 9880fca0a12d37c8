"""A controller that dies: python controller_process.py GROUP DIRECTORY COMMAND VERSION POINT [DEADLINE].

COMMAND is `clear`, `update`, `hot`, or `restore` for an update that restores the version before if it fails;
VERSION is a number or `newest`. At POINT the process kills itself as the kernel would, with the role held:
nothing of it runs any more. At POINT `hang before decision` it lives, is not stopped, and does not go on
until SIGUSR1 comes; so it does at POINT `hang at end`, where its command has failed and is over, and it has
the role still. A point that ends with a number is that of the command with that place. POINT `never`
lets it live to the end, and it says then how the command failed, if it did.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

import wsm
from tests.segment_bytes import segment_bytes
from wsm.committed_record import CommittedRecord
from wsm.controller import _drive
from wsm.controller._transaction import Transaction
from wsm.controller.group_view import GroupView
from wsm.errors import WsmError
from wsm.signals.layout import PayloadSlot
from wsm.signals.segment import Segment
from wsm.states.words import CommandWord, CommittedWord

WOKEN = threading.Event()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def store_half(segment: Segment, slot: PayloadSlot, data: bytes) -> None:
    """Die while the bytes of a record are stored, and their head is that of what stood there before."""
    begin = segment.layout.records[segment.records.index(slot)] + 24
    with segment_bytes(segment) as found:
        found[begin : begin + len(data) // 2] = data[: len(data) // 2]
        die()


def die_at(point: str) -> None:
    """Make the writers of the controller's words and of its record end the process before or after that."""
    write_command, write_committed = GroupView.write_command, GroupView.write_committed
    write_record = _drive.write_record
    place = 0

    def command(group: GroupView, word: CommandWord) -> None:
        nonlocal place
        place += not word.operation.is_decision
        what = "decision" if word.operation.is_decision else "command"
        what += f" {place}" * point[-1].isdecimal()
        if point == f"before {what}":
            die()
        if point == f"hang before {what}":
            WOKEN.wait()
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
            PayloadSlot.write_over = lambda slot, _epoch, _sequence, _kind, data: store_half(
                segment, slot, data
            )
        found = write_record(segment, epoch, written)
        if point == "after record":
            die()
        return found

    def told(transaction: Transaction, error: WsmError) -> WsmError:
        if point == "hang at end":
            WOKEN.wait()
        return tell(transaction, error)

    tell, Transaction._told = Transaction._told, told
    GroupView.write_command, GroupView.write_committed = command, committed
    _drive.write_record = record


def main() -> None:
    name, directory, command, version, point, *rest = sys.argv[1:]
    deadline = float(rest[0]) if rest else 60.0
    die_at(point)
    signal.signal(signal.SIGUSR1, lambda *_: WOKEN.set())
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
                then = "restore" if command == "restore" else None
                controller.update(number, hot=command == "hot", deadline_s=deadline, on_failure=then)
        except WsmError as error:
            sys.stdout.write(json.dumps({"event": "failed", "error": str(error)}) + "\n")
            sys.exit(1)


if __name__ == "__main__":
    main()
