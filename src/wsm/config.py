"""What a group is told before it starts, read from ``wsm.yaml`` or built in code, checked whole.

Configuration that two ranks must share goes into :meth:`WsmConfig.group_digest`, which is compared
when a rank attaches; paths and deadlines may differ. This module opens one YAML file and nothing else.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import xxhash
from msgspec import Meta

from wsm.config_reading import ConfigurationError, build, read_yaml, typed_section, unknown_option
from wsm.signals.errors import SegmentNameError
from wsm.signals.layout import MAX_WORLD_SIZE, check_name
from wsm.strategies.registry import (
    OWN_SECTIONS,
    find_strategy,
    own_section,
    sections_read,
    strategy_called,
    strategy_names,
)
from wsm.strategies.strategy import CheckedSection, Sections
from wsm.typed import CountFrom0, Seconds, typed

if TYPE_CHECKING:
    from wsm.strategies.buckets.source import IpcAsyncConfig
    from wsm.strategies.delta.source import DeltaConfig
    from wsm.strategies.ipc.source import IpcConfig
    from wsm.strategies.mooncake.source import MooncakeConfig
    from wsm.strategies.snapshot.source import SnapshotConfig
    from wsm.strategies.transports.by_version import RsyncConfig

__all__ = [
    "ENGINE_WORDS",
    "ConfigurationError",
    "Deadlines",
    "EngineWordsConfig",
    "NamesConfig",
    "WsmConfig",
    "config_from_mapping",
    "load_config",
    "read_mapping",
]

#: FastDeploy's words, as the option ``answers`` names them.
ENGINE_WORDS: Final = ("weights", "kv_cache", "prefix_tree")

_NAMES = "use 1 to 100 letters, digits, '.', '_' or '-', beginning with a letter or a digit"


@typed_section
@dataclass(frozen=True)
class Deadlines:
    """How long a rank waits before it reports, in seconds. A caller's own deadline comes on top.

    Parameters
    ----------
    attach_s, arguments_s : float
        For the group's segment to appear; for a command's arguments, after its word was seen.
    drain_s, park_s : float
        For running requests to finish under the drain policy; for the other ranks at the step boundary.
    decision_s : float
        For the controller's decision; what expires is a report, the rank goes on waiting.
    action_s : mapping of str to float
        Per action name: for the action itself, and for the votes before a collective one, instead
        of its own deadline.
    """

    attach_s: Seconds = 60.0
    arguments_s: Seconds = 5.0
    drain_s: Seconds = 300.0
    park_s: Seconds = 30.0
    decision_s: Seconds = 60.0
    action_s: Mapping[str, Seconds] = field(default_factory=dict)


@typed_section
@dataclass(frozen=True)
class NamesConfig:
    """How a trainer's names differ from the model's: by a prefix to `strip`, such as ``_orig_mod.``."""

    strip: str = ""


@typed_section
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
        Numeric id of the user whose engine makes the words; None: that of the reading process, root as well.
        A writer of a word commands the group, so a word of any other user is refused.

    Raises
    ------
    ConfigurationError
        If a suffix cannot end the name of a word.
    """

    suffixes: Sequence[int | str] = ()
    answers: Sequence[Literal["weights", "kv_cache", "prefix_tree"]] = ("weights",)
    deadline_s: Seconds = 300.0
    user: int | None = None

    def __post_init__(self) -> None:
        fix = "give the engine worker queue port, or what follows the dot in the name of the engine's word"
        for suffix in self.suffixes:
            _require_name(suffix, of="end the name of a word", where="engine_words: suffixes", fix=fix)


def _require_name(name: object, *, of: str, where: str, fix: str) -> None:
    try:
        check_name(str(name))
    except SegmentNameError as error:
        problem = f"{name!r} cannot {of}: {error.context['reason']}"
        raise ConfigurationError(where=where, problem=problem, fix=fix) from error


def _with_own_sections(kind: type[WsmConfig]) -> type[WsmConfig]:
    """Let the class take the sections of wsm's own strategies as arguments, by their names."""
    made = vars(kind)["__init__"]

    @functools.wraps(made)
    def take(self: WsmConfig, *args: Any, **named: Any) -> None:
        own = {key: named.pop(key) for key in OWN_SECTIONS.keys() & named.keys()}
        made(self, *args, **named, **({"sections": {**named.pop("sections", {}), **own}} if own else {}))

    kind.__init__ = take  # type: ignore[method-assign] # it takes more, and passes it on
    return kind


@_with_own_sections
@typed_section
@dataclass(frozen=True)
class WsmConfig:
    """One group, as every process of it is told.

    The sections of wsm's own strategies are arguments and attributes besides: ``snapshot`` for
    ``ipc_snapshot``, ``ipc``, ``ipc_async``, ``rsync`` for ``rsync`` and ``gdr``, ``delta``, and ``mooncake``
    for the transport of that name. One that is not given has its defaults.

    Parameters
    ----------
    name : str
        The group's name; its segment is ``/dev/shm/wsm-UID/wsm.NAME``.
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
        ``refuse`` a version with tensors that the model does not have, or ``ignore`` them, as FastDeploy
        does; where the command does not say.
    unversioned : str
        What an update does where neither it nor the source names a version (FastDeploy's own metas and
        snapshots): ``load`` it, unverified, as ``unnamed-...``, or ``refuse``.
    on_failure : str
        What becomes of a group that served, once an update in place has overwritten its weights and failed:
        ``restore`` the version that served before, or ``clear`` the group. A command may say otherwise.
    training_names, names_to_training : str
        A JSON file with the model's name by the trainer's, of tensors that come under other names; and one
        the other way round: FastDeploy's ``get_name_mappings_to_training``. Both empty: no tensors do, or the
        runner says which (:class:`wsm.worker.loading.RenamingRunner`). `names` is applied before.
    placements : str
        ``MODULE:FUNCTION`` that says how a trainer's checkpoint lies on the ranks, where one is adopted
        (:data:`wsm.strategies.adopt.adopt.PlacementHook`). Empty: only one rank can take in checkpoints.
    load_threads : int
        How many threads of a rank copy and digest; 0: its part of the cores that it may run on, 8 at most.
        Say a number where each rank is pinned to cores of its own.
    journal_directory : path or None
        Where each rank appends its journal as NDJSON; None keeps it in memory only.
    engine_words : EngineWordsConfig
        FastDeploy's words; none by default.
    sections : mapping of str to object
        All sections that were given, by their names; those of other strategies by the strategies' names. In a
        file they stand beside the options.

    Raises
    ------
    ConfigurationError
        If the ranks are not one group, or a section of a strategy is not what it must be.
    """

    name: str
    ranks: Annotated[int, Meta(ge=1, le=MAX_WORLD_SIZE)]
    run_id: str = ""
    communicators: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    shut_down_groups: bool = False
    follow: bool = True
    kv_cache_process: bool = False
    strategy: str = "ipc_snapshot"
    unknown_tensors: Literal["refuse", "ignore"] = "refuse"
    unversioned: Literal["load", "refuse"] = "load"
    on_failure: Literal["restore", "clear"] = "restore"
    training_names: str = ""
    names_to_training: str = ""
    placements: str = ""
    names: NamesConfig = field(default_factory=NamesConfig)
    load_threads: CountFrom0 = 0
    deadlines: Deadlines = field(default_factory=Deadlines)
    journal_directory: Path | str | None = None
    engine_words: EngineWordsConfig = field(default_factory=EngineWordsConfig)
    sections: Mapping[str, object] = field(default_factory=dict)

    if TYPE_CHECKING:
        snapshot: SnapshotConfig = field(default_factory=SnapshotConfig, kw_only=True)
        ipc: IpcConfig = field(default_factory=IpcConfig, kw_only=True)
        ipc_async: IpcAsyncConfig = field(default_factory=IpcAsyncConfig, kw_only=True)
        rsync: RsyncConfig = field(default_factory=RsyncConfig, kw_only=True)
        delta: DeltaConfig = field(default_factory=DeltaConfig, kw_only=True)
        mooncake: MooncakeConfig = field(default_factory=MooncakeConfig, kw_only=True)
    else:

        def __getattr__(self, name: str) -> object:
            if name not in OWN_SECTIONS:
                raise AttributeError(f"WsmConfig has no attribute {name!r}", name=name, obj=self)
            return self._section(name, own_section(name))

    def __post_init__(self) -> None:
        _require_name(self.name, of="name a group", where="name", fix=_NAMES)
        self._check_sections()
        parts = _connected_parts(self.ranks, self.communicators)
        if len(parts) > 1:
            raise ConfigurationError(
                where="communicators",
                problem=f"no communicator joins the ranks {parts[0]} with the ranks {parts[1]}",
                fix="ranks that never step together are groups of their own: give each a name and a segment",
            )

    @property
    def releases_cache(self) -> bool:
        """Whether an update in place needs the KV caches' memory, as the configured strategy says."""
        strategy = find_strategy(self.strategy)  # a worker refuses one that is unknown, and is to load by it
        return strategy is not None and strategy.releases_cache(self.strategy_sections())

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

    def as_mapping(self) -> dict[str, Any]:
        """Return plain values for :func:`config_from_mapping` in any directory: paths are absolute."""
        plain = asdict(self)
        del plain["sections"]
        plain.update({key: asdict(each) for key, each in self.sections.items()})  # type: ignore[call-overload] # they are dataclasses
        text = json.dumps(plain, default=str, allow_nan=False)
        mapping: dict[str, Any] = json.loads(text, object_hook=_with_absolute_paths)
        return mapping

    def _section(self, key: str, kind: type) -> object:
        if key in _OPTIONS or (key in OWN_SECTIONS and kind is not own_section(key)):
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
        strategy = find_strategy(self.strategy)  # a worker refuses one that is unknown, and is to load by it
        read = {} if strategy is None else sections_read(self.strategy, strategy)
        kinds = {**{key: own_section(key) for key in OWN_SECTIONS.keys() & self.sections.keys()}, **read}
        for key in {**self.sections, **read}:
            section = self._section(key, kinds[key]) if key in kinds else self.sections[key]
            if not isinstance(section, CheckedSection):
                continue
            fault = section.fault(self.ranks, used=key in read)
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


def _connected_parts(ranks: int, communicators: Mapping[str, Sequence[Sequence[int]]]) -> list[list[int]]:
    """Return the connected components of the ranks, joined by the ranks that share a communicator."""
    parts = [{rank} for rank in range(ranks)] if communicators else [set(range(ranks))]
    for name, groups in communicators.items():
        for members in filter(None, map(set, groups)):
            if not members <= set(range(ranks)):
                raise ConfigurationError(
                    where=f"communicators: {name}",
                    problem=f"names rank {min(members - set(range(ranks)))}",
                    fix=f"ranks are 0 to {ranks - 1}",
                )
            joined = members.union(*(part for part in parts if part & members))
            parts = [*(part for part in parts if not part & joined), joined]
    return sorted(map(sorted, parts))


def _with_absolute_paths(section: dict[str, Any]) -> dict[str, Any]:
    for key, value in section.items():
        is_path = key.endswith("directory") or key in {"training_names", "names_to_training"}
        if is_path and isinstance(value, str) and value:
            section[key] = str(Path(value).absolute())
    return section


#: What a file may say of every group, whatever its strategy.
_OPTIONS = frozenset(each.name for each in fields(WsmConfig)) - {"sections"}


@typed
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
    """Read the options in a configuration file, as plain values; ConfigurationError if there are none."""
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
    """Build a configuration from plain values; raises as :func:`load_config`."""
    nested = {"deadlines": Deadlines, "engine_words": EngineWordsConfig, "names": NamesConfig}
    values: dict[str, Any] = {}
    sections: dict[str, object] = {}
    try:
        for key, value in content.items():
            kind = None if key in _OPTIONS else _section_type(key, content.get("strategy"))
            if key in nested:
                values[key] = build(nested[key], value, f"{where}: {key}")
            elif kind is not None:
                sections[key] = build(kind, value, f"{where}: {key}")
            else:
                values[_known(key, where)] = value
        config: WsmConfig = build(WsmConfig, values, where, sections=sections)
    except ConfigurationError as error:
        raise error.within(where) from error.__cause__
    return config


def _known(key: str, where: str) -> str:
    if key not in _OPTIONS:
        fault = unknown_option(key, [*sorted(_OPTIONS), *OWN_SECTIONS])
        raise ConfigurationError(where=where, problem=f"{fault.option!r} {fault.problem}", fix=fault.fix)
    return key


def _section_type(key: str, strategy: object) -> type | None:
    if key in OWN_SECTIONS:
        return own_section(key)
    found = find_strategy(key)
    if found is None and key == strategy:
        raise ConfigurationError(
            where="strategy",
            problem=f"no load strategy is called {key!r}, whose section is there",
            fix=f"install the package that announces it, or use one of {', '.join(strategy_names())}",
        )
    return None if found is None else sections_read(key, found).get(key)
