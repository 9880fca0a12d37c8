"""What can go wrong in the command line itself. Everything else is raised where it happens."""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, GroupError, InternalError, RefusedError


def no_such_group(*, group: str, existing: Sequence[str]) -> BadInputError:
    """No group of that name is on this host."""
    there = f"there is {', '.join(existing)}" if existing else "there is none at all"
    return BadInputError(
        f"no group {group!r} on this host ({there}); check the name, start the group, "
        "and in containers share /dev/shm with it",
        code="no-such-group",
        group=group,
        existing=tuple(existing),
    )


def foreign_configuration(*, file: str, found: str, group: str) -> BadInputError:
    """A configuration file is for another group than the one that is commanded."""
    return BadInputError(
        f"{file} configures group {found!r}, not {group!r}; give the file of that group, or its name",
        code="foreign-configuration",
        file=file,
        found=found,
        group=group,
    )


def group_unnamed() -> BadInputError:
    """Neither a group nor a configuration was given."""
    return BadInputError(
        "for which group? give --group NAME for a running group of wsm rollout, or --config FILE",
        code="group-unnamed",
    )


def configuration_unknown(*, group: str, existing: Sequence[str]) -> BadInputError:
    """A group keeps its configuration to itself: it is not one that ``wsm rollout`` runs."""
    there = f"groups of this host: {', '.join(existing)}" if existing else "there is no group on this host"
    return BadInputError(
        f"no group {group!r} of wsm rollout runs here ({there}), so its configuration is not known; "
        "give it by --config FILE",
        code="configuration-unknown",
        group=group,
        existing=tuple(existing),
    )


def not_rereadable(*, file: str, strategy: str) -> RefusedError:
    """What a configuration names reaches each rank once; a command that read it would take it from a rank."""
    return RefusedError(
        f"{file} has the strategy {strategy}, whose versions only the ranks can take; "
        "ask the group by its name what it holds, or plan with 'wsm memory'",
        code="not-rereadable",
        file=file,
        strategy=strategy,
    )


def paddle_required(*, command: str) -> RefusedError:
    """A command computes, and paddle is not installed."""
    return RefusedError(
        f"'wsm {command}' runs a model and needs paddle, which is not installed; "
        "install the extra: pip install 'wsm[cpu]' (or 'wsm[gpu]')",
        code="paddle-required",
        command=command,
    )


class JournalFileError(BadInputError):
    """A file holds no journal."""

    def __init__(self, *, file: str, problem: str) -> None:
        super().__init__(f"{file}: {problem}", file=file, problem=problem)


def impossible_history(*, file: str, entry: str, more: int) -> GroupError:
    """A journal tells what the tables do not allow."""
    others = f" ({more} more such entries)" if more else ""
    return GroupError(
        f"{file}: {entry}; no rank can have lived that{others}: lines are missing or were changed, "
        "or wsm has a bug",
        code="impossible-history",
        file=file,
        entry=entry,
        more=more,
    )


def replay_differs(*, file: str, entry: str, more: int) -> GroupError:
    """The core answers a recorded input otherwise than it did."""
    others = f" ({more} more)" if more else ""
    return GroupError(
        f"{file}: {entry}{others}; replay it with the build that wrote it, or find what changed the core",
        code="replay-differs",
        file=file,
        entry=entry,
        more=more,
    )


def tables_faulty(*, findings: Sequence[str]) -> InternalError:
    """The static checks found something wrong with the transition tables."""
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return InternalError(
        f"the transition tables are faulty: {findings[0]}{more}; correct wsm.states.table",
        code="tables-faulty",
        findings=tuple(findings),
    )


def no_such_path(*, path: str) -> BadInputError:
    """Nothing lies where a command was pointed at."""
    return BadInputError(
        f"there is neither a file nor a directory {path!r}; correct the path", code="no-such-path", path=path
    )


def nothing_known(*, group: str, rank: int) -> RefusedError:
    """A rank of a group has reported no digest of what it holds."""
    return RefusedError(
        f"rank {rank} of group {group} holds no weights that it has verified, so they have no digest; "
        f"see 'wsm status {group}'",
        code="nothing-known",
        group=group,
        rank=rank,
    )


def runner_not_found(*, where: str, cause: str) -> BadInputError:
    """Return the error that nothing can be imported where a runner was said to be."""
    return BadInputError(
        f"there is no runner at {where!r} ({cause}); name it as MODULE:NAME, where Python finds "
        "the module from here",
        code="runner-not-found",
        where=where,
        cause=cause,
    )


def http_required(*, command: str) -> RefusedError:
    """A command serves HTTP, and what that needs is not installed."""
    return RefusedError(
        f"'wsm {command}' serves HTTP, and starlette, uvicorn or httpx is not installed; "
        "pip install 'wsm[http]'",
        code="http-required",
        command=command,
    )


def other_group(*, url: str, found: str, group: str) -> RefusedError:
    """A server commands another group than the command names."""
    return RefusedError(
        f"{url} commands the group {found!r}, not {group!r}; nothing was asked of it",
        code="other-group",
        url=url,
        found=found,
        group=group,
    )
