"""What a case is called. The name says everything that is needed to play it again."""

from __future__ import annotations

from dataclasses import dataclass

from campaign.fault import Fault

#: Kinds of groups: an engine in plain memory, alone or beside a KV-cache process, and paddle on Gloo.
KINDS = ("memory", "cache", "gloo")


@dataclass(frozen=True)
class Case:
    """One case, named ``KIND/RANKS/OPERATION/WHAT``.

    Parameters
    ----------
    kind : str
        One of :data:`KINDS`.
    ranks : int
        Of the group.
    operation : str
        What is under way: one of :data:`campaign.operations.OPERATIONS`, ``boot``, ``serving`` (no
        command), or a family of damage: ``files``, ``storage``, ``segment``.
    what : str
        The fault (:class:`campaign.fault.Fault`), or what is damaged and how, with its seed.
    """

    kind: str
    ranks: int
    operation: str
    what: str

    def __str__(self) -> str:
        """Return the name."""
        return f"{self.kind}/{self.ranks}/{self.operation}/{self.what}"

    @property
    def fault(self) -> Fault:
        """The fault, of a case that has one."""
        return Fault.parse(self.what)

    @classmethod
    def parse(cls, name: str) -> Case:
        """Read a name.

        Raises
        ------
        ValueError
            If it is none.
        """
        parts = name.split("/", 3)
        if len(parts) != 4 or parts[0] not in KINDS:
            raise ValueError(f"{name!r} names no case; cases are called KIND/RANKS/OPERATION/WHAT")
        return cls(parts[0], int(parts[1]), parts[2], parts[3])
