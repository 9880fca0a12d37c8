"""What a strategy is: the one thing to write for a new way for weights to arrive.

Everything that is known about a way is said here by its class: what it reads of a configuration, what is
checked when a worker starts, how one rank's source is made and let go, by which ways a version may travel,
and how a source is opened. Only its name is given elsewhere, where it is registered
(:mod:`wsm.strategies.registry`). Knows no strategy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from wsm.config_reading import OptionFault
from wsm.errors import InternalError, RefusedError
from wsm.strategies.observer import UNOBSERVED, LoadObserver
from wsm.strategies.offer import Offer
from wsm.strategies.tensor import WeightTarget

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


class Strategy(ABC):
    """One way for weights to arrive; one object for all ranks and loads of a process.

    Attributes
    ----------
    source_type : type
        The type of the sources that :meth:`source` makes and :meth:`open` takes.
    sections : sequence of type
        The sections of ``wsm.yaml`` that it reads, each by its type, a dataclass: those of wsm's own
        strategies, also by their names (:data:`wsm.strategies.registry.OWN_SECTIONS`), and at most one of its
        own, under the strategy's name.
    rereadable : bool
        Whether any process may read a version, as often as it likes, without a rank or a trainer noticing;
        commands that only look read such versions whole. Not so, by default.
    """

    source_type: ClassVar[type]
    sections: Sequence[type | str] = ()
    rereadable: ClassVar[bool] = False

    def releases_cache(self, sections: Sections) -> bool:  # noqa: ARG002 - what most ways need not ask
        """Whether an update in place by this way needs the KV caches' memory. Not so, by default.

        Parameters
        ----------
        sections : Sections
            What the configuration says.
        """
        return False

    def collects(self, sections: Sections, *, loaders: bool) -> bool:  # noqa: ARG002 - as above
        """Whether an update in place collects a rank's shard in host memory. Not so, by default.

        Parameters
        ----------
        sections : Sections
            What the configuration says.
        loaders : bool
            Whether the runner's models load checkpoints themselves.
        """
        return False

    @abstractmethod
    def source(self, sections: Sections, rank: int, ranks: int) -> Any:
        """Return where `rank` of a group of `ranks` loads from. Opens nothing and connects to no process.

        Each rank has one source for each transfer mode, which is used for every load until the worker ends,
        or a command says something else of its transfer.

        Parameters
        ----------
        sections : Sections
            What the configuration says.
        rank, ranks : int
            Whose source; of how many.
        """

    @abstractmethod
    def open(self, source: Any, version: str | None, observer: LoadObserver) -> AbstractContextManager[Offer]:
        """Find, check and open what `source` holds for one rank. Blocks on metadata only.

        Leaving the context normally says that every tensor was applied; leaving it with an exception, that
        the load has failed.

        Parameters
        ----------
        source : source_type
            Where to look.
        version : str or None
            The version that it must hold; None for the newest that the source announces.
        observer : LoadObserver
            Asked for cancellation while the strategy waits for another process.

        Raises
        ------
        wsm.strategies.errors.BadInputError
            If there is nothing, or not what was asked for. Nothing was changed.
        """

    def preview(self, source: Any, version: str | None) -> AbstractContextManager[Offer]:
        """Open like :meth:`open`, to look only: no byte is read, and a load can follow.

        As :meth:`open` itself, by default, for what neither a rank nor a trainer notices.

        Raises
        ------
        wsm.strategies.errors.BadInputError
            As :meth:`open`.
        """
        return self.open(source, version, UNOBSERVED)

    def check(self, sections: Sections) -> None:  # noqa: B027 - most have nothing to check
        """Refuse what no load could use, when a worker starts. Connects to no process.

        What a section can see by itself it says earlier, when the configuration is read
        (:class:`wsm.strategies.strategy.CheckedSection`).

        Raises
        ------
        wsm.errors.WsmError
            Whatever says best what is wrong.
        """

    def default_mode(self, sections: Sections) -> str | None:  # noqa: ARG002 - for those that have modes
        """Return the transfer mode of a command that names none; None, by default: there are no modes."""
        return None

    def in_mode(self, sections: Sections, mode: str) -> Sections:  # noqa: ARG002 - for those that have modes
        """Return the sections for sources in this transfer mode; not called where there are no modes.

        Raises
        ------
        RefusedError
            If there is no such mode, or it is not open here.
        """
        return sections

    def as_asked(
        self, sections: Sections, *, verify_checksum: bool | None, rsync_config: Mapping[str, Any] | None
    ) -> Sections:
        """Return the sections for a command that says something of its own transfer; None: it does not.

        Raises
        ------
        RefusedError
            If the strategy has no such option.
        """
        for option, given in (("verify_checksum", verify_checksum), ("rsync_config", rsync_config)):
            if given:
                name = type(self).__name__
                raise RefusedError(
                    f"{option} is of the strategies rsync and gdr, and versions come by {name}; leave it out",
                    code="transfer-option-unavailable",
                    option=option,
                    strategy=name,
                )
        return sections

    def close(self, source: Any) -> None:  # noqa: B027 - most keep nothing
        """Let go what a source has kept between loads. Idempotent."""

    def retired_from(self, sections: Sections) -> str | None:  # noqa: ARG002 - for others
        """Return the directory whose ``versions/`` hold what is loaded, and are retired by publishers.

        Versions there that a group may have to load again are held
        (:class:`wsm.strategies.files.snapshot_directory.VersionPins`). None, by default: nothing is held.
        """
        return None


@runtime_checkable
class OverTarget(Protocol):
    """What a strategy implements besides, that brings changes of the version which a target holds."""

    def open_over(
        self, source: Any, version: str | None, observer: LoadObserver, target: WeightTarget, threads: int
    ) -> AbstractContextManager[Offer]:
        """Open like :meth:`Strategy.open`, for a target that is read here and written by the applier only.

        Up to `threads` threads may read it, the calling one included.

        Raises
        ------
        wsm.errors.RefusedError
            If the target does not hold what the changes were made against. Nothing was changed.
        wsm.strategies.errors.BadInputError
            As :meth:`Strategy.open`.
        """
        ...
