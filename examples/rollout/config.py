"""What a rollout group is told before it starts: one YAML file, checked whole, passed on to every rank.

Sections: ``group`` (:class:`wsm.config.WsmConfig`), ``model`` (:class:`.ModelShape`),
``engine`` (:class:`.EngineOptions`), ``load`` (:class:`LoadConfig`, or absent),
``recovery`` (:class:`.RecoveryConfig`) and ``seed``. Opens one file, imports no paddle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from examples.rollout import errors
from examples.rollout.model.shape import MOST, ModelShape
from examples.rollout.run_directory import SNAPSHOT_DIRECTORY, run_directory_path
from wsm.actions.surfaces import GroupKind
from wsm.config import WsmConfig, config_from_mapping
from wsm.config_reading import option_fault, read_yaml
from wsm.controller.recovery import RecoveryConfig
from wsm.status.facts import CacheProcess
from wsm.strategies.registry import strategy_called

#: Bytes of one number, of a weight, a key or a value.
ITEM_BYTES = 4


@dataclass(frozen=True)
class Limits:
    """Bounds of scheduling.

    Parameters
    ----------
    max_batch : int
        Requests that run at the same time.
    max_step_tokens : int
        Tokens of one step, padding included.
    max_waiting : int
        Requests that may wait beyond those.
    """

    max_batch: int = 128
    max_step_tokens: int = 1024
    max_waiting: int = 1024


@dataclass(frozen=True)
class EngineOptions:
    """What a rank allocates and does, apart from its weights.

    Parameters
    ----------
    shape : ModelShape
        The full model.
    kv_blocks : int
        KV blocks, one of which is scratch.
    block_size : int
        Tokens per KV block.
    limits : Limits
        Of the scheduler.
    capture_graphs : bool
        Whether decode steps run as captured execution.
    routing_replay : bool
        Whether expert choices are recorded; only for a mixture of experts.
    """

    shape: ModelShape = field(default_factory=ModelShape)
    kv_blocks: int = 1024
    block_size: int = 4
    limits: Limits = field(default_factory=Limits)
    capture_graphs: bool = True
    routing_replay: bool = False

    @property
    def max_blocks(self) -> int:
        """KV blocks of the longest sequence."""
        return -(-self.shape.context // self.block_size)

    @property
    def cache_process_bytes(self) -> int:
        """Bytes that the KV-cache process holds, where there is one."""
        return self.kv_blocks * self.block_size * self.shape.width * 2 * ITEM_BYTES


_SECTIONS = ("group", "model", "engine", "load", "recovery", "seed")

#: How checkpoints lie on the ranks, for commands that adopt one; found from the clone of the repository.
PLACEMENTS = "examples.rollout.model.sharding:placed"

_FROM_0 = ("temperature", "restarts", "repair_attempts", "experts", "draft_layers")

Section = TypeVar("Section")


@dataclass(frozen=True)
class LoadConfig:
    """Requests that the group's supervisor makes by itself, so that it generates under load.

    Parameters
    ----------
    concurrency : int
        Requests that are open at any time.
    prompt_tokens, max_tokens : int
        Length of each prompt, and of each answer.
    temperature : float
        Of each request.
    seed : int
        Of prompts and answers.
    """

    concurrency: int = 16
    prompt_tokens: int = 4
    max_tokens: int = 8
    temperature: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class RolloutConfig:
    """One rollout group.

    Parameters
    ----------
    group : WsmConfig
        Name, ranks, snapshots, deadlines and FastDeploy's words.
    engine : EngineOptions
        The model, and what each rank allocates for it.
    load : LoadConfig or None
        Load of its own.
    seed : int
        Of the initial weights, where there is no snapshot to begin with.
    recovery : RecoveryConfig
        What happens when a rank dies.

    Raises
    ------
    BadInputError
        If the parts do not fit each other.
    wsm.errors.WsmError
        If there is no such strategy, as :func:`wsm.strategies.registry.strategy_called`.
    """

    group: WsmConfig
    engine: EngineOptions = field(default_factory=EngineOptions)
    load: LoadConfig | None = None
    seed: int = 0
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)

    def __post_init__(self) -> None:
        """Check what no single part can."""
        self.engine.shape.check_ranks(self.group.ranks)
        strategy_called(self.group.strategy)  # every rank would refuse it, one process after the other
        if not self.group.follow:
            self._refuse("group.follow", "must be true: all ranks but rank 0 follow it into its steps")
        shape, load = self.engine.shape, self.load
        if self.engine.limits.max_step_tokens < self.engine.limits.max_batch:
            self._refuse("engine.max_step_tokens", "must not be less than max_batch")
        if self.engine.kv_blocks <= self.engine.max_blocks:
            self._refuse(
                "engine.kv_blocks",
                f"must exceed the {self.engine.max_blocks} blocks of the longest sequence",
            )
        if load is not None and load.prompt_tokens + load.max_tokens > shape.context:
            self._refuse("load", f"makes sequences longer than the context of {shape.context} tokens")
        if load is not None and load.concurrency > self.engine.limits.max_waiting:
            self._refuse("load.concurrency", "exceeds engine.max_waiting")

    @property
    def participants(self) -> tuple[int, ...]:
        """The participants that have a process: the ranks, then the KV-cache process where there is one."""
        ranks = self.group.ranks
        return (*range(ranks), *((CacheProcess(ranks),) if self.group.kv_cache_process else ()))

    @property
    def kinds(self) -> tuple[GroupKind, ...]:
        """The communicators that a step uses; each has all ranks."""
        return (GroupKind.TP, GroupKind.EP) if self.engine.shape.experts else (GroupKind.TP,)

    def as_mapping(self) -> dict[str, Any]:
        """Return what :func:`rollout_config_from_mapping` accepts; JSON types only."""
        engine = dataclasses.asdict(self.engine)
        model = engine.pop("shape")
        engine.update(engine.pop("limits"))
        mapping = {
            "group": self.group.as_mapping(),
            "model": model,
            "engine": engine,
            "recovery": dataclasses.asdict(self.recovery),
            "seed": self.seed,
        }
        return mapping if self.load is None else {**mapping, "load": dataclasses.asdict(self.load)}

    def _refuse(self, field_name: str, reason: str) -> None:
        raise errors.bad_rollout_config(source=self.group.name, field=field_name, reason=reason)


def load_rollout_config(
    path: str | Path | None, *, name: str | None = None, ranks: int | None = None
) -> RolloutConfig:
    """Read a configuration file; without one, everything but the name has a default.

    Parameters
    ----------
    path : path or None
        The YAML file.
    name, ranks : optional
        Override ``group.name`` and ``group.ranks``.

    Raises
    ------
    BadInputError
        If the file cannot be read or is no mapping; otherwise as :func:`rollout_config_from_mapping`.
    """
    content: Any = {}
    if path is not None:
        content = read_yaml(
            path,
            lambda reason: errors.bad_rollout_config(
                source=str(path), field="file", reason=f"is unreadable: {reason}"
            ),
        )
    return rollout_config_from_mapping(content, source=str(path or "defaults"), name=name, ranks=ranks)


def rollout_config_from_mapping(
    content: Any, *, source: str = "mapping", name: str | None = None, ranks: int | None = None
) -> RolloutConfig:
    """Build a configuration from plain values.

    Raises
    ------
    BadInputError
        For an unknown section or option, a value of the wrong type, or parts that do not fit each other.
    wsm.config.ConfigurationError, BadInputError
        For the same in sections ``group`` and ``model``.
    """
    if not isinstance(content, Mapping):
        raise errors.bad_rollout_config(
            source=source, field="file", reason=f"must be a mapping with {_SECTIONS}"
        )
    for key in content:
        if key not in _SECTIONS:
            raise errors.bad_rollout_config(
                source=source, field=str(key), reason=f"is unknown; known are {_SECTIONS}"
            )
    group = {"ranks": 2, "placements": PLACEMENTS, **_section(content, "group", source)}
    group.update({key: value for key, value in (("name", name), ("ranks", ranks)) if value is not None})
    if "name" in group:
        own = {"directory": str(run_directory_path(str(group["name"])) / SNAPSHOT_DIRECTORY)}
        group["snapshot"] = {**own, **_section(group, "snapshot", source)}
    engine = _section(content, "engine", source)
    limit_names = {option.name for option in dataclasses.fields(Limits)}
    limits = {key: engine.pop(key) for key in list(engine) if key in limit_names}
    seed = content.get("seed", 0)
    if type(seed) is not int or seed < 0:
        raise errors.bad_rollout_config(source=source, field="seed", reason="must be an integer from 0")
    return RolloutConfig(
        group=config_from_mapping(group, where=f"{source}: group"),
        engine=_build(
            EngineOptions,
            engine,
            f"{source}: engine",
            shape=_build(ModelShape, _section(content, "model", source), f"{source}: model"),
            limits=_build(Limits, limits, f"{source}: engine"),
        ),
        load=(
            _build(LoadConfig, _section(content, "load", source), f"{source}: load")
            if content.get("load") is not None
            else None
        ),
        seed=seed,
        recovery=_build(RecoveryConfig, _section(content, "recovery", source), f"{source}: recovery"),
    )


def _section(content: Mapping[str, Any], key: str, source: str) -> dict[str, Any]:
    section = content.get(key)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise errors.bad_rollout_config(source=source, field=key, reason="must be a mapping of options")
    return dict(section)


def _build(kind: type[Section], values: Mapping[str, Any], source: str, **parts: Any) -> Section:
    """Make a flat options class; its numbers are sizes and counts, and few of them may be 0."""
    fault = option_fault(kind, values, without=parts)
    if fault is not None:
        raise errors.bad_rollout_config(
            source=source, field=fault.option, reason=f"{fault.problem}; {fault.fix}"
        )
    for key, value in values.items():
        least = 0 if key in _FROM_0 else 1
        is_size = isinstance(value, (int, float)) and not isinstance(value, bool) and not key.endswith("_s")
        if is_size and key != "seed" and not least <= value <= MOST:
            reason = f"is {value!r}; it must be from {least} to {MOST}"
            raise errors.bad_rollout_config(source=source, field=key, reason=reason)
    return kind(**values, **parts)
