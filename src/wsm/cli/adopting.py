"""``wsm adopt``: what a trainer has written, taken in as a version; no group is commanded."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import click

from wsm.cli._base import (
    FILE,
    FROM_1,
    PATH,
    VERSION,
    command,
    json_option,
    named_object,
    show,
    show_json,
    wrong_usage,
)
from wsm.cli._groups import configuration_of
from wsm.config import WsmConfig
from wsm.strategies.adopt.adopt import AdoptSettings, AdoptWay, PlacementHook, adopt, adopt_settings
from wsm.strategies.adopt.checkpoint import bad_placements
from wsm.strategies.adopt.record import Relabel
from wsm.strategies.registry import strategy_called
from wsm.strategies.snapshot.store import content_of
from wsm.strategies.trainer.retention import Retention
from wsm.strategies.training_names import TrainingNames, names_from_files, stripping


@command
@click.argument("directory", type=PATH)
@click.option("--version", type=VERSION, metavar="V", help="By default the number that its name ends in.")
@click.option("--group", metavar="NAME", help="For which running group, or of --config.")
@click.option(
    "--config",
    "config_file",
    type=FILE,
    help="The group's configuration; by default that of the running group.",
)
@click.option(
    "--adopt",
    "way",
    type=click.Choice([way.value for way in AdoptWay if way is not AdoptWay.NONE]),
    default=AdoptWay.LINK.value,
    help="Hard links where the file system has them, or copies.",
)
@click.option(
    "--relabel",
    type=click.Choice([each.value for each in Relabel]),
    default=Relabel.MARK.value,
    help="Other content under a label that was used: mark the label, or refuse it.",
)
@click.option(
    "--root",
    "roots",
    type=PATH,
    multiple=True,
    help="Open only what lies below it; may be repeated. By default DIRECTORY.",
)
@click.option("--placements", metavar="MODULE:FUNCTION", help="Says how a model's tensors lie on the ranks.")
@click.option(
    "--names",
    "names_file",
    type=FILE,
    help="JSON: the model's name, by the trainer's, of each tensor that has another one; else as configured.",
)
@click.option(
    "--names-to-training",
    "trained_file",
    type=FILE,
    help="JSON: the same by the model's name, as FastDeploy's get_name_mappings_to_training says it.",
)
@click.option("--keep", type=FROM_1, default=2, help="Versions that stay.")
@json_option("Print the findings as JSON.")
def adopting(
    directory: Path,
    *,
    version: str | None,
    group: str | None,
    config_file: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Take in the safetensors files of DIRECTORY as a version that the group can be updated to.

    Its trainer may delete the directory afterwards. The same label and the same tensors are there already,
    and nothing is done; other tensors under a label that was used before get a label that says so. Nothing
    is written into DIRECTORY, and no group is touched: wsm update does that.

    Examples
    --------
      wsm adopt /exchange/weight_v000012 --group policy
          as version 12, for a running group
      wsm adopt /exchange/step_7 --version seven --placements my_engine:placed
          with the placements of your own engine
      wsm adopt /exchange/step_7 --group policy --adopt copy --json
          a copy; the findings as JSON
    """
    with wrong_usage():
        config = configuration_of(group, config_file)
        settings = settings_of_group(
            config,
            roots=asked["roots"] or (directory,),
            way=asked["way"],
            relabel=asked["relabel"],
            placements=None if asked["placements"] is None else placement_hook(asked["placements"]),
            names=names_from_files(asked["names_file"], asked["trained_file"]),
            retain=Retention(keep=asked["keep"]),
        )
    adoption = adopt(directory, settings, version=version)
    content = content_of(Path(settings.into), adoption.label)
    of_group = None if content is None else content.digest
    if as_json:
        more = {"way": adoption.way.value, "reused": adoption.reused, "warning": adoption.warning}
        show_json({**dataclasses.asdict(adoption), **more, "group_digest": of_group})
        return
    show(adoption.sentence() + (f"; group digest {of_group}" if of_group else ""))
    if adoption.warning is not None:
        show(adoption.warning)


def settings_of_group(
    config: WsmConfig,
    *,
    placements: PlacementHook | None = None,
    names: TrainingNames | None = None,
    **said: Any,
) -> AdoptSettings:
    """Return how directories are adopted for the group of a configuration.

    Names are exchanged as the group's ranks would, and tensors placed as its configuration says, unless
    `names` and `placements` say otherwise.

    Raises
    ------
    RefusedError (``nothing-to-adopt-into``)
        If the group loads no published files.
    """
    if placements is None and config.placements:
        placements = placement_hook(config.placements)
    strategy = strategy_called(config.strategy)
    names = names or names_from_files(config.training_names, config.names_to_training)
    names = stripping(names, config.names.strip)
    of_words = {"way": AdoptWay, "relabel": Relabel}
    said |= {name: kind(said[name]) for name, kind in of_words.items() if name in said}
    return adopt_settings(
        strategy, config.strategy_sections(), config.ranks, placements=placements, names=names, **said
    )


def placement_hook(where: str) -> PlacementHook:
    """Return the function that ``MODULE:FUNCTION`` names; the current directory is searched as well.

    Raises
    ------
    BadInputError (``bad-placements``)
        If there is none.
    """
    try:
        found = named_object(where)
    except ImportError as error:
        raise bad_placements(hook=where, problem=str(error)) from error
    if not callable(found):
        raise bad_placements(hook=where, problem="it cannot be called")
    return cast("PlacementHook", found)
