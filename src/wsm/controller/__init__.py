"""The controller's shell: command a group, get a receipt or an error that names the culprit.

==========================  ==============================================================================
module                      responsible for
==========================  ==============================================================================
:mod:`.controller`          :class:`Controller`: ``clear()``, ``update()``, ``prepare()``, ``hold()``, ...
:mod:`.pending`             a request under way, for its caller: :class:`Pending`, :class:`Prepared`
:mod:`._command_request`    what a caller asks: the keywords of every command, and its request
:mod:`._execution`          one request, from the controller role to its receipt
:mod:`._opening`            what a group can be asked now, and under which hold
:mod:`._drive`              the shell: take the role, read, ask, store, wait
:mod:`._transaction`        one open command, from its word to its end
:mod:`.abandoned_commands`   what a group does about a command, or a hold, whose controller is gone
:mod:`.recovery`             a new epoch for a group that has lost a rank, and what it is given again
:mod:`.keeper`              whom to replace when a rank is gone, and when: :class:`Keeper`, for any engine
:mod:`.group_view`          the group as a controller sees it: its words, arguments and reports
:mod:`._engine_words`       FastDeploy's words, taken and answered around a command
:mod:`.engine_bridge`       FastDeploy's words, obeyed: :class:`EngineBridge`
:mod:`.outcome`             who died or hangs in a command; from reports to an error that names them
:mod:`.errors`              what a caller can be told
==========================  ==============================================================================
"""

from typing import TYPE_CHECKING

from wsm.named import import_when_named

if TYPE_CHECKING:
    from wsm.controller.controller import Controller as Controller
    from wsm.controller.engine_bridge import EngineBridge as EngineBridge
    from wsm.controller.keeper import GroupProcesses as GroupProcesses
    from wsm.controller.keeper import Keeper as Keeper
    from wsm.controller.keeper import ProcessEnd as ProcessEnd
    from wsm.controller.pending import Pending as Pending
    from wsm.controller.pending import Prepared as Prepared
    from wsm.controller.recovery import RecoveryConfig as RecoveryConfig
    from wsm.states.holding import ANY_OWNER as ANY_OWNER
    from wsm.status.facts import GroupStatus as GroupStatus
    from wsm.status.facts import RankStatus as RankStatus


import_when_named(__name__)
