"""What a group is told before it starts, read from ``wsm.yaml`` or built in code, checked whole.

Configuration that two ranks must share goes into :meth:`WsmConfig.group_digest`, which is compared
when a rank attaches; paths and deadlines may differ. This module opens one YAML file and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import xxhash

from wsm.config_reading import ConfigurationError, build, connected_parts, is_seconds, read_yaml
from wsm.signals.errors import SegmentNameError
from wsm.signals.layout import MAX_WORLD_SIZE
from wsm.signals.names import check_name
from wsm.states.vocabulary import UnknownTensors
from wsm.strategies.errors import UnknownStrategyError
from wsm.strategies.own_sections import OWN_SECTIONS, OwnSections, sections_read
from wsm.strategies.registry import strategy_called
from wsm.strategies.sections import CheckedSection, Sections
from wsm.strategies.snapshot.source import SnapshotConfig

__all__ = [
    "ENGINE_WORDS",
    "ConfigurationError",
    "Deadlines",
    "EngineWordsConfig",
    "SnapshotConfig",
    "WsmConfig",
    "config_from_mapping",
    "load_config",
    "read_mapping",
]

#: FastDeploy's words, as the option ``answers`` names them.
ENGINE_WORDS = ("weights", "kv_cache", "prefix_tree")


#: What may become of tensors that the model does not have.
UNKNOWN_TENSORS = tuple(each.value for each in UnknownTensors)


#: What becomes of weights whose source names no version, as the option ``unversioned`` names it.
UNVERSIONED = ("load", "refuse")

_NAMES = "use 1 to 100 letters, digits, '.', '_' or '-', beginning with a letter or a digit"


@dataclass(frozen=True)
class Deadlines:
    """How long a rank waits before it reports, in seconds. A caller's own deadline comes on top.

    Parameters
    ----------
    attach_s : float
        For the group's segment to appear.
    arguments_s : float
        For a command's arguments to become readable after its word was seen.
    drain_s : float
        For running requests to finish under the drain policy.
    park_s : float
        For the other ranks to stand at the same step boundary.
    decision_s : float
        For the controller's decision; what expires is a report, the rank goes on waiting.
    action_s : mapping of str to float
        Per action name: for the action itself, and for the votes before a collective one, instead
        of its own deadline.
    """

    attach_s: float = 60.0
    arguments_s: float = 5.0
    drain_s: float = 300.0
    park_s: float = 30.0
    decision_s: float = 60.0
    action_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check what stands under the actions' names.

        Raises
        ------
        ConfigurationError
            If it is no number of seconds.
        """
        for name, seconds in self.action_s.items():
            if not is_seconds(seconds):
                raise ConfigurationError(
                    where="deadlines: action_s",
                    problem=f"{name!r} has {seconds!r}",
                    fix="give each action a positive number of seconds",
                )


@dataclass(frozen=True)
class EngineWordsConfig:
    """FastDeploy's int32 words that an engine without wsm commands the group by.

    Parameters
    ----------
    suffixes : sequence of int or str
        One per data-parallel part: the engine worker queue port (FastDeploy's own choice of suffix). The
        first part's weights word decides, and the other parts' follow it.
    answers : sequence of str
        Which words wsm answers: ``weights``; ``kv_cache`` and ``prefix_tree`` where no other process does.
    deadline_s : float
        Seconds for one command, and for the first data-parallel part to ask for what another one asks.
    user : int or None
        Numeric id of the user whose engine makes the words. A writer of a word commands the group, so a word
        of any other user is refused. None: the user of the process that reads it, root as well.
    """

    suffixes: Sequence[int | str] = ()
    answers: Sequence[str] = ("weights",)
    deadline_s: float = 300.0
    user: int | None = None

    def __post_init__(self) -> None:
        """Check the names of the words.

        Raises
        ------
        ConfigurationError
            If one is unknown, or a suffix cannot end one.
        """
        for suffix in self.suffixes:
            _check_suffix(suffix)
        for name in self.answers:
            if name not in ENGINE_WORDS:
                raise ConfigurationError(
                    where="engine_words: answers",
                    problem=f"unknown word {name!r}",
                    fix=f"the words are {', '.join(ENGINE_WORDS)}",
                )


def _check_suffix(suffix: object) -> None:
    try:
        if type(suffix) in (int, str):
            check_name(str(suffix))
            return
        problem = "it is no number or text"
    except SegmentNameError as error:
        problem = error.context["reason"]
    raise ConfigurationError(
        where="engine_words: suffixes",
        problem=f"{suffix!r} cannot end the name of a word: {problem}",
        fix="give the engine worker queue port, or what follows the dot in the name of the engine's word",
    )


@dataclass(frozen=True)
class WsmConfig(OwnSections):
    """One group, as every process of it is told.

    The sections of wsm's own strategies are attributes and arguments besides
    (:class:`wsm.strategies.own_sections.OwnSections`): ``snapshot``, ``ipc``, and so on.

    Parameters
    ----------
    name : str
        The group's name; its segment is ``/dev/shm/wsm.NAME``.
    ranks : int
        Ranks that must switch weights together.
    run_id : str
        Names one start of the group; a worker refuses the segment of another. Empty: any.
    communicators : mapping of str to list of list of int
        Every communicator that a step uses, as lists of ranks; together they must connect all ranks.
        Empty: one communicator over all ranks.
    shut_down_groups : bool
        Whether a clear shuts down the process groups (--shutdown-comm-group-if-worker-idle).
    follow : bool
        Whether a rank may have to join a step that another one began while the group serves. False saves
        one load per peer and step where every rank's scheduler decides alike.
    kv_cache_process : bool
        Whether a process of its own holds KV cache for the ranks and takes part in every command, as a
        :class:`wsm.CacheParticipant`: the group waits for it as for a rank.
    strategy : str
        How weights arrive: one of :data:`wsm.strategies.STRATEGIES`, or one from outside.
    unknown_tensors : str
        Of a version that has tensors which the model does not have: ``refuse`` it, or ``ignore`` them, as
        FastDeploy does; where the command does not say.
    unversioned : str
        What an update does that names no version, where the source names none either (FastDeploy's own metas
        and snapshots): ``load`` it, unverified, under a label that wsm gives (``unnamed-...``), or
        ``refuse``.
    training_names : str
        A JSON file with the model's name by the trainer's, of tensors that come under other names; empty:
        none do, or the runner says which (:class:`wsm.worker.loading.RenamingRunner`).
    names_to_training : str
        A JSON file with the same the other way round: FastDeploy's ``get_name_mappings_to_training``.
    load_threads : int
        How many threads of a rank copy and digest; 0: its part of the cores that it may run on, 8 at most.
        Say a number where each rank is pinned to cores of its own.
    deadlines : Deadlines
        What a rank waits for, and how long.
    journal_directory : str or None
        Where each rank appends its journal as NDJSON; None keeps it in memory only.
    engine_words : EngineWordsConfig
        FastDeploy's words; none by default.
    sections : mapping of str to object
        The sections of other strategies, as they declare them, by the strategies' names. In a file they stand
        beside all others.
    """

    name: str
    ranks: int
    run_id: str = ""
    communicators: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    shut_down_groups: bool = False
    follow: bool = True
    kv_cache_process: bool = False
    strategy: str = "ipc_snapshot"
    unknown_tensors: str = "refuse"
    unversioned: str = "load"
    training_names: str = ""
    names_to_training: str = ""
    load_threads: int = 0
    deadlines: Deadlines = field(default_factory=Deadlines)
    journal_directory: str | None = None
    engine_words: EngineWordsConfig = field(default_factory=EngineWordsConfig)
    sections: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check what no single field can.

        Raises
        ------
        ConfigurationError
            If the ranks are not one group, or a section of a strategy is not what it must be.
        """
        try:
            check_name(self.name)
        except SegmentNameError as error:
            reason = error.context["reason"]
            raise ConfigurationError(
                where="name", problem=f"{self.name!r} cannot name a group: {reason}", fix=_NAMES
            ) from error
        if not 1 <= self.ranks <= MAX_WORLD_SIZE:
            problem, fix = f"{self.ranks} ranks", f"give at least 1, and at most {MAX_WORLD_SIZE}"
            raise ConfigurationError(where="ranks", problem=problem, fix=fix)
        if self.load_threads < 0:
            raise ConfigurationError(
                where="load_threads", problem=f"is {self.load_threads}", fix="give 1 or more, or 0"
            )
        if self.unknown_tensors not in UNKNOWN_TENSORS:
            problem, fix = f"is {self.unknown_tensors!r}", f"use one of {', '.join(UNKNOWN_TENSORS)}"
            raise ConfigurationError(where="unknown_tensors", problem=problem, fix=fix)
        if self.unversioned not in UNVERSIONED:
            problem, fix = f"is {self.unversioned!r}", f"use one of {', '.join(UNVERSIONED)}"
            raise ConfigurationError(where="unversioned", problem=problem, fix=fix)
        self._check_sections()
        parts = connected_parts(self.ranks, self.communicators)
        if len(parts) > 1:
            raise ConfigurationError(
                where="communicators",
                problem=f"no communicator joins the ranks {parts[0]} with the ranks {parts[1]}",
                fix="ranks that never step together are groups of their own: give each a name and a segment",
            )

    @property
    def releases_cache(self) -> bool:
        """Whether an update in place needs the KV caches' memory, as the configured strategy says."""
        try:
            strategy = strategy_called(self.strategy)
        except UnknownStrategyError:  # which a worker refuses that is to load by it
            return False
        return strategy.releases_cache(self.strategy_sections())

    def strategy_sections(self) -> Sections:
        """Return what is said to the configured strategy; a section that is absent has its defaults.

        Raises
        ------
        ConfigurationError
            If a section of its own is of another type, or lacks what it needs.
        WsmError
            If there is no such strategy, as :func:`wsm.strategies.registry.strategy_called`.
        """
        read = sections_read(self.strategy, strategy_called(self.strategy))
        return Sections({kind: self._section(key, kind) for key, kind in read.items()})

    def _section(self, key: str, kind: type) -> object:
        if OWN_SECTIONS.get(key) is kind:
            return getattr(self, key)
        if key in _OPTIONS:
            raise ConfigurationError(
                where="strategy",
                problem=f"{key!r} is the name of an option, and the strategy of that name has a section",
                fix="register or announce the strategy under another name",
            )
        section = self.sections.get(key)
        if section is None:
            return build(kind, {}, key)
        if not isinstance(section, kind):
            raise ConfigurationError(
                where=f"sections: {key}", problem=f"is {section!r}", fix=f"it must be a {kind.__name__}"
            )
        return section

    def _check_sections(self) -> None:
        """See that every section can be, for this number of ranks, by every reader."""
        try:
            used = self.strategy_sections()
        except UnknownStrategyError:  # which a worker refuses that is to load by it
            used = Sections({})
        sections = {**{key: getattr(self, key) for key in OWN_SECTIONS}, **self.sections}
        for key, section in sections.items():
            if not isinstance(section, CheckedSection):
                continue
            fault = section.fault(self.ranks, used=section in used)
            if fault is not None:
                where = f"{key}: {fault.option}"
                raise ConfigurationError(where=where, problem=fault.problem, fix=fault.fix)

    def group_digest(self) -> int:
        """Return 64 bits that are equal on all ranks iff they were told the same about their group."""
        shared = {
            "name": self.name,
            "ranks": self.ranks,
            "communicators": {k: [list(g) for g in v] for k, v in sorted(self.communicators.items())},
            "shut_down_groups": self.shut_down_groups,
            "follow": self.follow,
            "kv_cache_process": self.kv_cache_process,
            "strategy": self.strategy,
            "unversioned": self.unversioned,
        }
        return xxhash.xxh3_64_intdigest(json.dumps(shared, sort_keys=True).encode())


#: What a file may say of every group, whatever its strategy.
_OPTIONS = frozenset(each.name for each in fields(WsmConfig)) - {"sections"}


def load_config(path: str | Path) -> WsmConfig:
    """Read a configuration file.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, is not a mapping, or holds an unknown, missing or ill-typed value.
    BadInputError, RefusedError
        If it names a strategy that a package announces, and that cannot be had.
    """
    return config_from_mapping(read_mapping(path), where=str(path))


def read_mapping(path: str | Path) -> Mapping[str, Any]:
    """Read the options in a configuration file, as plain values.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, or is not a mapping.
    """
    where = str(path)
    content: Any = read_yaml(
        path,
        lambda reason: ConfigurationError(where=where, problem=reason, fix="give a readable YAML file"),
    )
    if not isinstance(content, Mapping):
        raise ConfigurationError(
            where=where, problem=f"holds a {type(content).__name__}", fix="it must be a mapping of options"
        )
    return content


def config_from_mapping(content: Mapping[str, Any], *, where: str = "mapping") -> WsmConfig:
    """Build a configuration from plain values, for example a part of an engine's own file.

    Raises
    ------
    WsmError
        As :func:`load_config`.
    """
    nested = {**OWN_SECTIONS, "deadlines": Deadlines, "engine_words": EngineWordsConfig}
    values: dict[str, Any] = {}
    others: dict[str, object] = {}
    try:
        for key, value in content.items():
            kind = None if key in _OPTIONS else _section_type(key, content.get("strategy"))
            if key in nested:
                values[key] = build(nested[key], value, f"{where}: {key}")
            elif kind is not None:
                others[key] = build(kind, value, f"{where}: {key}")
            else:
                values[key] = value
        config: WsmConfig = build(WsmConfig, values, where, sections=others)
    except ConfigurationError as error:
        raise error.within(where) from error.__cause__
    return config


def _section_type(key: str, strategy: object) -> type | None:
    """Return the type of the section of the strategy called `key`; None if there is no such section."""
    try:
        return sections_read(key, strategy_called(key)).get(key)
    except UnknownStrategyError as error:
        if key != strategy:
            return None
        raise ConfigurationError(
            where="strategy",
            problem=f"no load strategy is called {key!r}, whose section is there",
            fix=f"install the package that announces it, or use one of {', '.join(error.context['known'])}",
        ) from error
