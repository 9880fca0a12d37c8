"""FastDeploy's ``kv_cache_status`` words, shown and answered by the KV-cache process.

The word goes NORMAL, CLEARING, CLEARED, UPDATING, NORMAL with the cache, by compare-exchange from what stands
there. CLEARED is said once every participant of the group has given its KV cache back, not before: whoever
reads it takes the memory for free (FastDeploy C2-22). A question that the group was not asked, an engine's
CLEARING while no command clears, stays as it is. Knows words and states, no actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wsm.config import EngineWordsConfig
from wsm.signals.errors import EngineWordMissingError
from wsm.signals.fastdeploy import EngineWord, EngineWordKind
from wsm.states.view import View
from wsm.states.vocabulary import KVState

_NORMAL, _UPDATING = int(KVState.NORMAL), int(KVState.UPDATING)
_CLEARING, _CLEARED = int(KVState.CLEARING), int(KVState.CLEARED)


class CacheWords:
    """The words of all data-parallel parts; those that no engine has created yet are looked for again.

    Parameters
    ----------
    config : EngineWordsConfig
        Which; none are answered if ``kv_cache`` is not among its answers.
    directory : path or None
        Where they lie; ``/dev/shm`` by default.
    """

    def __init__(self, config: EngineWordsConfig, directory: str | Path | None = None) -> None:
        self._suffixes: Sequence[int | str] = config.suffixes if "kv_cache" in config.answers else ()
        self._directory = directory
        self._user = config.user
        self._words: dict[int | str, EngineWord] = {}
        self._led: set[EngineWord] = set()  # words that say CLEARING because this object wrote it, unasked

    def show(self, own: KVState, view: View) -> None:
        """Let the words follow the cache.

        Parameters
        ----------
        own : KVState
            Where this process' cache is.
        view : View
            What all participants say.
        """
        if not self._suffixes:
            return
        said = {status.kv for status in view.statuses}
        for word in self._attached():
            value = word.read()
            following = _following(value, own, said)
            if value != _CLEARING:
                self._led.discard(word)
            elif word in self._led and own is KVState.NORMAL and said == {_NORMAL}:
                following = _CLEARED  # the cache came back before the word had said that it was gone
            if following is not None and word.compare_exchange(value, following) and following == _CLEARING:
                self._led.add(word)

    def close(self) -> None:
        """Let go of the words. Idempotent."""
        for word in self._words.values():
            word.close()
        self._words.clear()
        self._led.clear()

    def _attached(self) -> list[EngineWord]:
        for suffix in self._suffixes:
            word = self._words.get(suffix)
            if word is not None and (word.recreated() or word.removed()):
                self._words.pop(suffix).close()
            if suffix not in self._words:
                try:
                    word = EngineWord(
                        EngineWordKind.KV_CACHE, suffix, directory=self._directory, user=self._user
                    )
                except EngineWordMissingError:
                    continue
                self._words[suffix] = word
        return list(self._words.values())


def _following(value: int, own: KVState, said: set[int]) -> int | None:
    """Return what a word that holds `value` must hold next; None if it stays."""
    if own is KVState.CLEARED and said == {_CLEARED}:
        return {_CLEARING: _CLEARED, _NORMAL: _CLEARING}.get(value)
    if own in (KVState.CLEARING, KVState.CLEARED):
        return _CLEARING if value == _NORMAL else None
    if own is KVState.NORMAL and said == {_NORMAL}:
        return {_UPDATING: _NORMAL, _CLEARED: _UPDATING}.get(value)
    return _UPDATING if value == _CLEARED else None
