"""The controller's shell: command a group, get a receipt or an error that names the culprit.

======================  ==================================================================================
module                  responsible for
======================  ==================================================================================
:mod:`.controller`      :class:`Controller`: ``clear()``, ``update()``, ``status()``
:mod:`.asking`          from what a caller says to the arguments of a command
:mod:`.order`           what a caller asks: one command, and how long to wait for what
:mod:`.access`          the hold on the segment, shared with commands that outlive the controller
:mod:`.opening`         how a command is begun, and a dead controller's command completed
:mod:`.admission`       what is refused before anything is written, and what needs no work
:mod:`.fallback`        when an update that was asked for hot is done in place
:mod:`.pending`         a command under way, in the hands of its caller
:mod:`.driving`         the thread that drives a command and holds the role
:mod:`.transaction`     one open command, from its word to its end
:mod:`.company`         whom an open command waits for: who died, who hangs, when waiting is pointless
:mod:`.activity`        what a rank is doing, by the names of its own plans
:mod:`.journal`         what was asked, decided and found, for people at night
:mod:`.outcome`         from reports to a receipt or an error
:mod:`.group_view`      read the group's words; write the command and the committed version
:mod:`.status`          what a group is doing, as plain data
:mod:`.engine_words`    FastDeploy's weights words, taken and answered around a command of wsm
:mod:`.engine_bridge`   FastDeploy's int32 words, obeyed and answered through a controller
:mod:`.errors`          what a caller can be told
======================  ==================================================================================
"""

from wsm.controller.controller import Controller
from wsm.controller.engine_bridge import EngineBridge
from wsm.controller.pending import Pending
from wsm.controller.status import GroupStatus, RankStatus

__all__ = ["Controller", "EngineBridge", "GroupStatus", "Pending", "RankStatus"]
