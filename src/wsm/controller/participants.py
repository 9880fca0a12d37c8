"""How participants are called: ranks by their number, the KV-cache process by what it is."""

from __future__ import annotations

from collections.abc import Iterable


class CacheProcess(int):
    """The number of the participant without steps, as errors and logs carry it."""

    __slots__ = ()


def who(participant: int) -> str:
    """Name one participant in a sentence."""
    return "the KV-cache process" if isinstance(participant, CacheProcess) else f"rank {participant}"


def whose_processes(participants: Iterable[int]) -> str:
    """Name the processes of several participants: ``the process of rank 0, 1``, ``the KV-cache process``."""
    found = list(participants)
    ranks = ", ".join(str(each) for each in found if not isinstance(each, CacheProcess))
    names = [f"the process of rank {ranks}"] if ranks else []
    return " and ".join([*names, *(who(each) for each in found if isinstance(each, CacheProcess))])
