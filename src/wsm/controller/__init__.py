"""The controller's shell: command a group, get a receipt or an error that names the culprit.

======================  ==================================================================================
module                  responsible for
======================  ==================================================================================
:mod:`.controller`      :class:`Controller`: ``clear()``, ``update()``, ``status()``; who may begin, and when
:mod:`.admission`       what is refused before anything is written, and what needs no work
:mod:`.pending`         a command under way, in the hands of its caller
:mod:`.transaction`     one open command, driven by a thread of its own until it is over
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
