"""What tests of an engine need: a small engine in memory, a group in one thread, faults, and a contract.

=======================  ===================================================================================
module                   offers
=======================  ===================================================================================
:mod:`._in_memory`       :class:`InMemoryRunner` and its surfaces: an engine of bytes, for tests of a loop
:mod:`._group`           :class:`LocalGroup`: workers and controller of one group, in one thread
:mod:`._faults`          :class:`Fault`: an action that fails
:mod:`._engine`          :class:`EngineUnderTest`: how an engine is made, driven and asked, for the two below
:mod:`._contract`        :class:`RunnerContract`: the tests that every engine must pass, for pytest
:mod:`.hypothesis`       ``GroupMachine``: a state machine of commands and faults, for Hypothesis
=======================  ===================================================================================

Hypothesis is needed for the last one alone (the extra ``testing``). The contract is run by pytest, which
nothing here imports. docs/testing.md shows both.
"""

from wsm.testing._contract import RunnerContract
from wsm.testing._engine import EngineUnderTest
from wsm.testing._faults import WAYS, Fault
from wsm.testing._group import ControllerDied, LocalGroup, load_bytes, memory_of
from wsm.testing._in_memory import InMemoryKVCache, InMemoryMemory, InMemoryRequests, InMemoryRunner

__all__ = [
    "WAYS",
    "ControllerDied",
    "EngineUnderTest",
    "Fault",
    "InMemoryKVCache",
    "InMemoryMemory",
    "InMemoryRequests",
    "InMemoryRunner",
    "LocalGroup",
    "RunnerContract",
    "load_bytes",
    "memory_of",
]
