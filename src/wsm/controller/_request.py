"""What a caller asks of a group: one request, refused here where it contradicts itself. Pure, knows no group.

What a group of its own cannot do is found out later, by :mod:`._opening` and by the ranks.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from wsm.command import CommandArguments, checked_request_id, partial_update_refused
from wsm.controller import errors
from wsm.controller.errors import CommandRefusedError, RankFailedError
from wsm.errors import BadInputError, WsmError
from wsm.receipt import named
from wsm.states.vocabulary import ALL_TAGS, HotFallback, Tag, WeightState
from wsm.states.words import Operation
from wsm.strategies.files.version_file import check_version

#: How long a decided command may take to be over on every rank before the caller is told, in seconds.
SETTLE_S = 30.0

_Choice = TypeVar("_Choice", bound=enum.Enum)


@dataclass(frozen=True)
class CommandRequest:
    """One request to a :class:`wsm.Controller`.

    Parameters
    ----------
    operation : Operation
        What is asked of the ranks: ``CLEAR``, ``UPDATE`` or ``HOT_UPDATE``.
    arguments : CommandArguments
        What travels with it, as far as it is known before the group is looked at.
    deadline_s : float
        Seconds after which an undecided command is aborted.
    settle_s : float
        Seconds after a decision until the caller is told who is not done.
    wait_s : float
        Seconds to wait for another controller to finish its command.
    still_wanted : callable or None
        Asked once it is this request's turn, before anything is written.
    fallback : str or None
        Why an update that was asked for hot is done in place.
    """

    operation: Operation
    arguments: CommandArguments
    deadline_s: float
    settle_s: float
    wait_s: float = 0.0
    still_wanted: Callable[[], bool] | None = None
    fallback: str | None = None

    def consistent(self) -> CommandRequest:
        """Return this request, an update, if its arguments go together.

        Raises
        ------
        BadInputError
            If the tags do not go with the other arguments.
        RefusedError
            If a partial update is to be hot.
        BadInputError
            If the version is none.
        """
        asked = self.arguments
        if asked.version is not None:
            check_version(asked.version)
        if self.operation.is_hot and asked.tags != ALL_TAGS:
            why = "a hot update replaces both"
            raise errors.tags_contradict(tags=named(asked.tags), argument="hot", why=why)
        if Tag.WEIGHTS not in asked.tags:
            of_weights = {
                "version": asked.version is not None,
                "force": asked.reload,
                "partial": asked.partial,
            }
            for argument, given in of_weights.items():
                if given:
                    why = "no weights are loaded"
                    raise errors.tags_contradict(tags=named(asked.tags), argument=argument, why=why)
        if asked.partial and self.operation.is_hot:
            raise partial_update_refused(why="a hot update stages every tensor anew")
        return self

    def in_place(self, why: str) -> CommandRequest:
        """Return the ordinary update that does the same with a longer pause."""
        return replace(self, operation=Operation.UPDATE, fallback=why)

    def possible_from(self, state: WeightState) -> CommandRequest:
        """Return what is to be done where the group is: this, or in place what cannot be hot there.

        Raises
        ------
        RefusedError
            If it cannot be hot, and must not be done otherwise.
        """
        if not self.operation.is_hot or state is WeightState.NORMAL:
            return self
        refusal = errors.nothing_served(state=state.name)
        if self.arguments.hot_fallback is HotFallback.REFUSE:
            raise refusal
        return self.in_place(str(refusal))

    def after(self, error: WsmError) -> CommandRequest | None:
        """Return what is to be tried once its command has ended so; None: nothing.

        Only a hot update whose fallback says so is done in place, and only for refusals that an ordinary
        update does not share: a version that cannot be read is no better in place.
        """
        allowed = self.operation.is_hot and self.arguments.hot_fallback is HotFallback.IN_PLACE
        refused = isinstance(error, CommandRefusedError | RankFailedError) and error.context["no_room"]
        return self.in_place(str(error)) if allowed and refused else None


def request_id_of(asked: str | None) -> str:
    """Return the name of a request, drawn if none was given.

    Raises
    ------
    wsm.command.RequestIdError
        If it cannot name a request.
    """
    return uuid.uuid4().hex if asked is None else checked_request_id(asked)


def choice_of(kinds: type[_Choice], asked: object, refusal: Callable[..., BadInputError]) -> _Choice:
    """Return the member of an enumeration that was asked for, by itself or by its value.

    Raises
    ------
    BadInputError
        As `refusal` makes it, if there is none.
    """
    try:
        return kinds(asked)
    except ValueError:
        raise refusal(value=asked, allowed=[str(each.value) for each in kinds]) from None
