"""FastDeploy's int32 weights words, taken and answered around a command of wsm.

To an engine without wsm, a command of wsm looks like one of its own: the word goes NORMAL, CLEARING, CLEARED,
UPDATING, NORMAL, by compare-exchange. What an engine asks by its words is obeyed by :mod:`.engine_bridge`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from wsm.config import EngineWordsConfig
from wsm.controller import errors
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.states.vocabulary import WeightState


class TakenWords:
    """The weights words of all data-parallel parts, taken by one command.

    Parameters
    ----------
    words : sequence of EngineWord
        Taken.
    before : WeightState
        What they held.
    asked : WeightState
        What they hold now: CLEARING or UPDATING.

    Attributes
    ----------
    words : sequence of EngineWord
        Those that are not answered yet.
    """

    def __init__(self, words: Sequence[EngineWord], before: WeightState, asked: WeightState) -> None:
        self.words: Sequence[EngineWord] = words
        self._before = before
        self._asked = asked

    def answer(self, state: WeightState | None) -> None:
        """Write how it ended. A word that changed meanwhile is the engine's next command and stays.

        Parameters
        ----------
        state : WeightState or None
            What all ranks are; None, while that does not fit one word, leaves the words as they are.
        """
        for word in self.words:
            if state is not None:
                word.compare_exchange(int(self._asked), state.fastdeploy_code)
            word.close()
        self.words = ()

    def give_back(self) -> None:
        """Write what was there: the command was never asked."""
        self.answer(self._before)


def take_words(
    config: EngineWordsConfig,
    *,
    before: WeightState,
    asked: WeightState | None,
    directory: str | Path | None = None,
) -> TakenWords:
    """Take the weights word of every part for a command, or none.

    Parameters
    ----------
    config : EngineWordsConfig
        Which words.
    before : WeightState
        What each must hold.
    asked : WeightState or None
        What each says during the command. None takes none, for a command during which an engine may go on
        as it does: what the engine writes meanwhile is its next command, and is answered after this one.
    directory : path or None
        Where they lie; ``/dev/shm`` by default.

    Raises
    ------
    RefusedError
        If a word does not hold `before`: the engine is commanding the group itself. None is taken then.
    wsm.signals.errors.EngineWordMissingError
        If the engine has not created one.
    """
    during = before if asked is None else asked
    with ExitStack() as undo:
        words = []
        for suffix in config.suffixes:
            word = EngineWord(EngineWordKind.WEIGHTS, suffix, directory=directory, user=config.user)
            undo.enter_context(word)
            if not word.compare_exchange(int(before), int(during)):
                raise errors.engine_word_busy(word=word.path.name, value=word.read(), expected=int(before))
            if asked is not None:
                undo.callback(word.compare_exchange, int(asked), int(before))
                words.append(word)
        if asked is not None:
            undo.pop_all()
    return TakenWords(words, before, during)
