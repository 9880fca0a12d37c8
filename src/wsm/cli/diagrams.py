"""``wsm diagrams``: the states, the phases and the plans of an engine as pictures, and their checks."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any, cast

import click

from wsm.actions.options import PlanOptions
from wsm.actions.plan import derive_plans
from wsm.actions.surfaces import BareRunner, Runner, completed
from wsm.cli import errors
from wsm.cli._base import TeachingCommand, show, wrong_usage
from wsm.cli._groups import read_config
from wsm.cli.drawings import drawn
from wsm.cli.errors import runner_not_found
from wsm.states.check import check_everything


@click.command(
    cls=TeachingCommand,
    examples=(
        (
            "wsm diagrams --runner my_engine:Runner --config wsm.yaml",
            "the plans of your own engine, in diagrams/",
        ),
        ("wsm diagrams --check", "whether the tables are sound; code 1 if not"),
        ("wsm diagrams --check --runner my_engine:Runner", "whether the plans of your engine are, too"),
    ),
)
@click.option("--check", is_flag=True, help="Write nothing; check the tables, and the plans of --runner.")
@click.option(
    "--runner",
    metavar="MODULE:NAME",
    help="The engine: a runner, or what makes one when it is called without arguments.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A configuration whose deadlines and process groups count.",
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("diagrams"),
    show_default=True,
    help="Where the files go.",
)
def diagrams(check: bool, runner: str | None, config_file: Path | None, directory: Path) -> None:
    """Draw the state machines, the phases of a command and the plans of an engine, as Mermaid in Markdown.

    Everything is made from the tables that drive the machines and from the plans that a worker would run:
    weights.mmd, kv_cache.mmd, command.mmd, and plans.md with every plan beside the edge that runs it and what
    each action declares. Without --runner it is an engine with weights and a KV cache and nothing else.
    """
    findings = check_everything()
    if findings:
        raise errors.tables_faulty(findings=[str(finding) for finding in findings])
    with wrong_usage():
        options = PlanOptions() if runner is None else PlanOptions.from_runner(_runner(runner))
        if config_file is not None:
            config = read_config(config_file)
            options = options.configured(
                shut_down_groups=config.shut_down_groups,
                deadlines=config.deadlines.action_s,
                releases_cache=config.releases_cache,
            )
        plans = derive_plans(options)
    of = "an engine with weights and a KV cache" if runner is None else runner
    count = len({action.name for plan in plans for action in plan})
    sound = f"the tables are sound; so are the {len(list(plans))} plans of {of}, with {count} actions"
    if check:
        show(sound)
        return
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in drawn(plans, of=of).items():
        (directory / name).write_text(text, encoding="utf-8")
        show(f"{directory / name}: written")
    show(sound)


def _runner(where: str) -> Runner:
    """Return the runner that `where` names; the current directory is searched as well."""
    module, _, name = where.partition(":")
    sys.path.insert(0, "")
    try:
        found: Any = getattr(importlib.import_module(module), name)
        is_factory = inspect.isclass(found) or inspect.isroutine(found)
        made = found() if is_factory else found
    except (ImportError, AttributeError, ValueError) as error:
        raise runner_not_found(where=where, cause=str(error)) from error
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise runner_not_found(where=where, cause=cause) from error  # whatever that module raised
    finally:
        sys.path.remove("")
    return completed(cast("BareRunner", made))
