"""A thread that drives an open command to its end, and holds the controller role as long.

So a caller that computes between calls, or gives up waiting, leaves nobody undecided. What is driven, and
how, is the transaction's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from wsm.controller.pending import Pending
from wsm.controller.transaction import Transaction
from wsm.receipt import Receipt
from wsm.signals.lock_file import LockHold


class Drive:
    """One thread for one request.

    Parameters
    ----------
    transaction : Transaction
        The command, written already.
    role : LockHold
        The controller role; given back when the command is over.
    on_over : callable
        Called in the thread, with the role still held, when the command has ended in any way.
    """

    def __init__(self, transaction: Transaction, role: LockHold, on_over: Callable[[], object]) -> None:
        self._transaction = transaction
        self._role = role
        self._on_over = on_over
        self._future: Future[Receipt] = Future()

    def start(self) -> Pending:
        """Begin to drive; the thread ends with the command and gives the role back then."""
        name = f"wsm-transaction-{self._transaction.sequence}"
        threading.Thread(target=self._run, name=name, daemon=True).start()
        return Pending(self._transaction.request_id, self._future, self._transaction.give_up)

    def _run(self) -> None:
        try:
            try:
                receipt = self._transaction.drive()
            finally:
                self._end()
        except BaseException as error:  # noqa: BLE001 - the caller's thread gets it, whatever it is
            self._future.set_exception(error)
        else:
            self._future.set_result(receipt)

    def _end(self) -> None:
        try:
            self._on_over()
        finally:
            self._role.release()
