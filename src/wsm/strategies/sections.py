"""What a configuration says to one strategy: the sections of ``wsm.yaml`` that the strategy reads.

A section is a dataclass with a default or a simple annotation for every option; the reader of configurations
makes it of plain values and refuses what does not fit. Knows no strategy, no file and no name of a section.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar, runtime_checkable

from wsm.config_reading import OptionFault
from wsm.errors import InternalError

Section = TypeVar("Section")


@runtime_checkable
class CheckedSection(Protocol):
    """What a section implements besides, whose values are more than their types."""

    def fault(self, ranks: int, *, used: bool) -> OptionFault | None:
        """Return the first option that cannot be, None if all can. Looks at no file and asks no process.

        Parameters
        ----------
        ranks : int
            Ranks of the group.
        used : bool
            Whether the configured strategy reads this section.
        """
        ...


class Sections:
    """The sections that one strategy reads, by their type.

    Parameters
    ----------
    sections : mapping of type to object
        One instance of each that the strategy declares.
    """

    def __init__(self, sections: Mapping[type, object]) -> None:
        self._sections = sections

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sections) and self._sections == other._sections

    __hash__ = None  # type: ignore[assignment] # sections hold mappings

    def __contains__(self, section: object) -> bool:
        return any(section is each for each in self._sections.values())

    def of(self, kind: type[Section]) -> Section:
        """Return the section of this type.

        Raises
        ------
        wsm.errors.InternalError
            If the strategy does not declare it.
        """
        section = self._sections.get(kind)
        if not isinstance(section, kind):
            raise InternalError(
                f"a strategy asked for its section {kind.__name__} and has not declared it; "
                "name it in the strategy's `sections`",
                section=kind.__name__,
            )
        return section

    def replaced(self, kind: type[Section], section: Section) -> Sections:
        """Return the same with another instance of one section."""
        return Sections({**self._sections, kind: section})
