"""A thread that drives a request's command to its end, and holds the controller role as long.

So a caller that computes between calls, or gives up waiting, leaves nobody undecided. What is driven, and
how, is the transaction's; whether another command follows for the same request, the opening's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack

from wsm.controller.pending import Pending
from wsm.controller.transaction import Transaction
from wsm.errors import WsmError
from wsm.receipt import Receipt

#: Given how a command failed, writes the command that is to be tried in its place, or returns None; or the
#: receipt, where it turned out that there was nothing to do.
Follow = Callable[[WsmError], "Transaction | Receipt | None"]


class Drive:
    """One thread for one request.

    Parameters
    ----------
    transaction : Transaction
        The command, written already.
    ending : ExitStack
        Closed in the thread when the request is over in any way; gives the controller role back.
    follow : callable
        Asked in the thread when the command has failed; by default nothing follows.
    """

    def __init__(
        self, transaction: Transaction, ending: ExitStack, follow: Follow = lambda _error: None
    ) -> None:
        self._transaction = transaction
        self._follow = follow
        self._ending = ending
        self._future: Future[Receipt] = Future()

    def start(self) -> Pending:
        """Begin to drive; the thread ends with the request and gives the role back then.

        Where the kernel grants no thread, the caller drives: this blocks then until the request is over.
        """
        name = f"wsm-transaction-{self._transaction.sequence}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the command is written already, and must come to its end
            self._run()
        return Pending(self._transaction.request_id, self._future, self._transaction.give_up)

    def _run(self) -> None:
        try:
            with self._ending:
                receipt = self._drive()
        except BaseException as error:  # noqa: BLE001 - the caller's thread gets it, whatever it is
            self._future.set_exception(error)
        else:
            self._future.set_result(receipt)

    def _drive(self) -> Receipt:
        try:
            return self._transaction.drive()
        except WsmError as error:
            following = self._follow(error)
            if following is None:
                raise
        return following if isinstance(following, Receipt) else following.drive()
