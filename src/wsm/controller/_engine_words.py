"""FastDeploy's int32 weights words, taken and answered around a command of wsm.

To an engine without wsm, a command of wsm looks like one of its own: the word goes NORMAL, CLEARING, CLEARED,
UPDATING, NORMAL, by compare-exchange. What an engine asks by its words is obeyed by :mod:`.engine_bridge`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from wsm.config import EngineWordsConfig
from wsm.errors import RefusedError
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.states.vocabulary import WeightState


def answer_words(
    taken: Sequence[tuple[EngineWord, WeightState]],
    asked: WeightState,
    state: WeightState | None,
    *,
    gives_back: bool,
) -> None:
    """Write how the command ended; a word that changed meanwhile is the engine's next command and stays.

    `asked`: what the words say during the command. `state`: what all ranks are; None, while that does not fit
    one word, leaves the words as they are. `gives_back`: whether they say what was there before, since the
    command was never asked, or ended no wish.
    """
    for word, before in taken:
        shown = before if gives_back else state
        if shown is not None:
            word.compare_exchange(int(asked), shown.fastdeploy_code)
        word.close()


def take_words(
    config: EngineWordsConfig,
    *,
    before: WeightState,
    asked: WeightState | None,
    failed_wish: bool = False,
    directory: str | Path | None = None,
) -> list[tuple[EngineWord, WeightState]]:
    """Take the weights word of every part for a command, or none; return each with what it held.

    `config`: which words. `before`: what each must hold. `asked`: what each says during the command. None
    takes none, for a command during which an engine may go on as it does: what the engine writes meanwhile is
    its next command, and is answered after this one. `failed_wish`: whether a word may hold UPDATING, too: an
    engine's wish that failed, and that any command ends. `directory`: where they lie; ``/dev/shm`` by
    default.

    Raises
    ------
    RefusedError
        If a word does not hold `before`: the engine is commanding the group itself. None is taken then.
    wsm.signals.errors.EngineWordMissingError
        If the engine has not created one.
    """
    taken = []
    with ExitStack() as undo:
        for suffix in config.suffixes:
            word = EngineWord(EngineWordKind.WEIGHTS, suffix, directory=directory, user=config.user)
            undo.enter_context(word)
            said = WeightState.UPDATING if failed_wish and word.read() == WeightState.UPDATING else before
            if not word.compare_exchange(int(said), int(said if asked is None else asked)):
                value = word.read()
                raise RefusedError(
                    f"the engine's word {word.path.name} holds {value}, not {int(before)}: the engine "
                    "commands the group itself; wait until it is done",
                    code="engine-word-busy",
                    word=word.path.name,
                    value=value,
                    expected=int(before),
                )
            if asked is not None:
                undo.callback(word.compare_exchange, int(asked), int(said))
                taken.append((word, said))
        if asked is not None:
            undo.pop_all()
    return taken
