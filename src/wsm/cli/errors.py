"""What can go wrong in the command line itself. Everything else is raised where it happens."""

from __future__ import annotations

from collections.abc import Sequence

from wsm.errors import BadInputError, GroupError, InternalError, RefusedError


class NoSuchGroupError(BadInputError):
    """No group of that name is on this host."""

    def __init__(self, *, group: str, existing: Sequence[str]) -> None:
        there = f"there is {', '.join(existing)}" if existing else "there is none at all"
        super().__init__(
            f"no group {group!r} on this host ({there}); check the name, start the group, "
            "and in containers share /dev/shm with it",
            group=group,
            existing=tuple(existing),
        )


class ForeignConfigurationError(BadInputError):
    """A configuration file is for another group than the one that is commanded."""

    def __init__(self, *, file: str, found: str, group: str) -> None:
        super().__init__(
            f"{file} configures group {found!r}, not {group!r}; give the file of that group, or its name",
            file=file,
            found=found,
            group=group,
        )


class NotRereadableError(RefusedError):
    """What a configuration names reaches each rank once; whoever reads it takes it from the rank."""

    def __init__(self, *, file: str, strategy: str) -> None:
        super().__init__(
            f"{file} has the strategy {strategy}, whose versions only the ranks can take; "
            "ask the group by its name what it holds, or plan with 'wsm plan'",
            file=file,
            strategy=strategy,
        )


class PaddleRequiredError(RefusedError):
    """A command computes, and paddle is not installed."""

    def __init__(self, *, command: str) -> None:
        super().__init__(
            f"'wsm {command}' runs a model and needs paddle, which is not installed; "
            "install the extra: pip install 'wsm[cpu]' (or 'wsm[gpu]')",
            command=command,
        )


class JournalFileError(BadInputError):
    """A file holds no journal."""

    def __init__(self, *, file: str, problem: str) -> None:
        super().__init__(f"{file}: {problem}", file=file, problem=problem)


class ImpossibleHistoryError(GroupError):
    """A journal tells what the tables do not allow."""

    def __init__(self, *, file: str, entry: str, more: int) -> None:
        others = f" ({more} more such entries)" if more else ""
        super().__init__(
            f"{file}: {entry}; no rank can have lived that{others}: lines are missing or were changed, "
            "or wsm has a bug",
            file=file,
            entry=entry,
            more=more,
        )


class TablesFaultyError(InternalError):
    """The static checks found something wrong with the transition tables."""

    def __init__(self, *, findings: Sequence[str]) -> None:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        super().__init__(
            f"the transition tables are faulty: {findings[0]}{more}; correct wsm.states.table",
            findings=tuple(findings),
        )


class NoSuchPathError(BadInputError):
    """Nothing lies where a command was pointed at."""

    def __init__(self, *, path: str) -> None:
        super().__init__(f"there is neither a file nor a directory {path!r}; correct the path", path=path)


class NothingKnownError(RefusedError):
    """A rank of a group has reported no digest of what it holds."""

    def __init__(self, *, group: str, rank: int) -> None:
        super().__init__(
            f"rank {rank} of group {group} holds no weights that it has verified, so they have no digest; "
            f"see 'wsm status {group}'",
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
