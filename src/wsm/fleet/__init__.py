"""A fleet in one call: many replicas, one target, an answer that can be acted on. Needs ``wsm[http]``.

A replica is a group behind a server of its own (``wsm serve``), or a vLLM server. No process holds the
fleet: its target lies beside the versions (:mod:`wsm.strategies.trainer.targets`), and what is true the
replicas say.

=================  =========================================================================================
module             responsible for
=================  =========================================================================================
:mod:`.replicas`   which replicas there are, and which token goes to which of them
:mod:`.member`     the target as one replica's own server reads it
:mod:`.rolling`    brings all of them to a target, so many at a time (:func:`update`)
:mod:`.watching`   keeps them there, and says who may get text (:class:`FleetWatch`)
:mod:`.serving`    trainers' verbs once for all of them (:class:`FleetCommands`)
=================  =========================================================================================

What a replica counts as says :mod:`wsm.states.fleet`.
"""

from typing import TYPE_CHECKING

from wsm.named import import_when_named

if TYPE_CHECKING:
    from wsm.fleet.member import FleetMember as FleetMember
    from wsm.fleet.replicas import Replica as Replica
    from wsm.fleet.replicas import read_replicas as read_replicas
    from wsm.fleet.rolling import FleetReport as FleetReport
    from wsm.fleet.rolling import ReplicaRow as ReplicaRow
    from wsm.fleet.rolling import update as update
    from wsm.fleet.rolling import update_async as update_async
    from wsm.fleet.serving import FleetCommands as FleetCommands
    from wsm.fleet.watching import FleetWatch as FleetWatch

import_when_named(__name__)
