"""``wsm adopt``: what a trainer has written, taken in as a version; no group is commanded."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import click

from wsm.cli._base import TeachingCommand, Version, json_option, show, show_json, wrong_usage
from wsm.cli._groups import configuration_of
from wsm.config import WsmConfig
from wsm.rollout.config import RolloutConfig
from wsm.strategies.adopt import errors
from wsm.strategies.adopt.adopt import AdoptSettings, AdoptWay, PlacementHook, adopt
from wsm.strategies.adopt.configured import adopt_settings
from wsm.strategies.adopt.deciding import Relabel
from wsm.strategies.applier.coverage import EVERY_NAME
from wsm.strategies.registry import strategy_called
from wsm.strategies.trainer.retention import Retention
from wsm.strategies.training_names import TrainingNames
from wsm.strategies.training_names_file import names_from_files


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm adopt /exchange/weight_v000012 --group policy", "as version 12, for a group of wsm rollout"),
        ("wsm adopt /exchange/step_7 --version seven --config wsm.yaml --placements my_engine:placed", ""),
        ("wsm adopt /exchange/step_7 --group policy --adopt copy --json", "a copy; the findings as JSON"),
    ),
)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--version", type=Version(), metavar="V", help="By default the number that its name ends in.")
@click.option("--group", metavar="NAME", help="For which group of wsm rollout, or of --config.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The group's configuration; by default that of the running group.",
)
@click.option(
    "--adopt",
    "way",
    type=click.Choice([way.value for way in AdoptWay if way is not AdoptWay.NONE]),
    default=AdoptWay.LINK.value,
    show_default=True,
    help="Hard links where the file system has them, or copies.",
)
@click.option(
    "--relabel",
    type=click.Choice([each.value for each in Relabel]),
    default=Relabel.MARK.value,
    show_default=True,
    help="Other content under a label that was used: mark the label, or refuse it.",
)
@click.option(
    "--root",
    "roots",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Open only what lies below it; may be repeated. By default DIRECTORY.",
)
@click.option("--placements", metavar="MODULE:FUNCTION", help="Says how a model's tensors lie on the ranks.")
@click.option(
    "--names",
    "names_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSON: the model's name, by the trainer's, of each tensor that has another one; else as configured.",
)
@click.option(
    "--names-to-training",
    "trained_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSON: the same by the model's name, as FastDeploy's get_name_mappings_to_training says it.",
)
@click.option("--keep", type=click.IntRange(min=1), default=2, show_default=True, help="Versions that stay.")
@json_option("Print the findings as JSON.")
def adopting(
    directory: Path,
    *,
    version: str | None,
    group: str | None,
    config_file: Path | None,
    way: str,
    relabel: str,
    roots: Sequence[Path],
    placements: str | None,
    names_file: Path | None,
    trained_file: Path | None,
    keep: int,
    as_json: bool,
) -> None:
    """Take in the safetensors files of DIRECTORY as a version that the group can be updated to.

    Its trainer may delete the directory afterwards. The same label and the same tensors are there already,
    and nothing is done; other tensors under a label that was used before get a label that says so. Nothing
    is written into DIRECTORY, and no group is touched: wsm update does that.
    """
    with wrong_usage():
        config = configuration_of(group, config_file)
        settings = settings_of_group(
            config,
            roots=roots or (directory,),
            way=AdoptWay(way),
            relabel=Relabel(relabel),
            placements=None if placements is None else placement_hook(placements),
            names=names_from_files(names_file, trained_file),
            retain=Retention(keep=keep),
        )
    adoption = adopt(directory, settings, version=version)
    if as_json:
        show_json({**dataclasses.asdict(adoption), "way": adoption.way.value, "reused": adoption.reused})
        return
    show(adoption.sentence())
    for name in adoption.left_out:
        show(f"left out: {name} is not in the index")


def settings_of_group(
    config: WsmConfig | RolloutConfig,
    *,
    placements: PlacementHook | None = None,
    names: TrainingNames | None = None,
    **said: Any,
) -> AdoptSettings:
    """Return how directories are adopted for the group of a configuration; the reference model's are placed.

    Names are exchanged as the group's ranks would, unless `names` says otherwise.

    Raises
    ------
    RefusedError (``nothing-to-adopt-into``)
        If the group loads no published files.
    """
    group = config.group if isinstance(config, RolloutConfig) else config
    if placements is None and isinstance(config, RolloutConfig):
        from wsm.rollout.model.sharding import checkpoint_placements  # noqa: PLC0415 - numpy, for such groups alone

        unknown = EVERY_NAME if group.unknown_tensors == "ignore" else ()
        placements = checkpoint_placements(config.engine.shape, unknown)
    strategy = strategy_called(group.strategy)
    names = names or names_from_files(group.training_names, group.names_to_training)
    return adopt_settings(
        strategy, group.strategy_sections(), group.ranks, placements=placements, names=names, **said
    )


def placement_hook(where: str) -> PlacementHook:
    """Return the function that ``MODULE:FUNCTION`` names; the current directory is searched as well.

    Raises
    ------
    BadInputError (``bad-placements``)
        If there is none.
    """
    module, _, name = where.partition(":")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever that module raised
        raise errors.bad_placements(hook=where, problem=f"{type(error).__name__}: {error}") from error
    finally:
        sys.path.remove("")
    if not callable(found):
        raise errors.bad_placements(hook=where, problem="it cannot be called")
    return cast("PlacementHook", found)
