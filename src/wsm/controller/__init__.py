"""The controller's shell: command a group, get a receipt or an error that names the culprit.

==========================  ==============================================================================
module                      responsible for
==========================  ==============================================================================
:mod:`.controller`          :class:`Controller`: ``clear()``, ``update()``, ``prepare()``, ``hold()``, ...
:mod:`.prepared`            :class:`Prepared`: a command that its caller decides
:mod:`._command_request`    what a caller asks: the keywords of every command, its request, its own decision
:mod:`._opening`            how a command is begun: what is refused, what needs no work, what is written
:mod:`._transaction`        one open command, from its word to its end, in a thread; its :class:`Pending`
:mod:`.abandoned_commands`   what a group does about a command, or a hold, whose controller is gone
:mod:`.recovery`             a new epoch for a group that has lost a rank, and what it is given again
:mod:`.keeper`              whom to replace when a rank is gone, and when: :class:`Keeper`, for any engine
:mod:`.group_view`          the group as a controller sees it: read its words, write the controller's
:mod:`._engine_words`       FastDeploy's words, taken and answered around a command
:mod:`.engine_bridge`       FastDeploy's words, obeyed: :class:`EngineBridge`
:mod:`.outcome`             who died or hangs in a command; from reports to an error that names them
:mod:`.errors`              what a caller can be told
==========================  ==============================================================================
"""

from wsm.controller._command_request import ANY_OWNER
from wsm.controller._transaction import Pending
from wsm.controller.controller import Controller
from wsm.controller.engine_bridge import EngineBridge
from wsm.controller.keeper import GroupProcesses, Keeper, ProcessEnd, RecoveryConfig
from wsm.controller.prepared import Prepared
from wsm.status.facts import GroupStatus, RankStatus

__all__ = [
    "ANY_OWNER",
    "Controller",
    "EngineBridge",
    "GroupProcesses",
    "GroupStatus",
    "Keeper",
    "Pending",
    "Prepared",
    "ProcessEnd",
    "RankStatus",
    "RecoveryConfig",
]
