"""What the facade for FastDeploy can refuse, and how it says so; FastDeploy's types of what fails there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from wsm.errors import BadInputError, GroupError, InternalError, RefusedError, WsmError, coded
from wsm.status.facts import named

_Error = TypeVar("_Error", bound=WsmError)

#: The type that FastDeploy raises, by the code of what has failed; it is RuntimeError for all else.
_TYPES: Mapping[str, type[Exception]] = {
    "snapshot-not-found": FileNotFoundError,
    "metas-not-found": FileNotFoundError,
    "dtype-mismatch": TypeError,
    "shape-mismatch": ValueError,
    "not-covered": ValueError,
    "empty-snapshot": ValueError,
    "configuration": ValueError,
    "bad-device-id": ValueError,
}


def cause_of(error: WsmError) -> str:
    """Return the code of what has failed: on a rank, where the error tells of one."""
    return str(error.context.get("error", error.code))


def as_fastdeploys(error: _Error, cause: str | None = None) -> _Error:
    """Return an error that is of FastDeploy's type, too; its own type, code and facts stay.

    Parameters
    ----------
    error : WsmError
        What a method of the facade raises.
    cause : str or None
        The code of what has failed; None: as the error says.
    """
    cause = cause_of(error) if cause is None else cause
    own, kind = type(error), _TYPES.get(cause, RuntimeError)
    if issubclass(own, kind):
        return error
    pickled = {"code": own.code, "__reduce__": lambda _: (as_fastdeploys, (error, cause))}
    rebuild, said = error.__reduce__()
    made: _Error = rebuild(type(own.__name__, (own, kind), pickled), *said[1:])
    return made


@coded("several-hosts")
def several_hosts(*, rank: int, group: str) -> RefusedError:
    """The ranks of one group run on several hosts, which have no memory in common."""
    return RefusedError(
        f"rank {rank} of group {group!r} runs on another host than rank 0, and a group shares memory of one "
        "host; start FastDeploy with ranks that step together on one node, or without wsm.fastdeploy"
    )


@coded("no-boot")
def no_boot(*, rank: int, group: str, why: str) -> GroupError:
    """The first load failed, so the constructor has no weights to return with."""
    return GroupError(f"rank {rank} of group {group!r} has no weights after the load at start: {why}")


@coded("rank-gone")
def rank_gone(*, rank: int, gone: Sequence[int], group: str, entry: int) -> GroupError:
    """A rank is gone while the others are inside an entry of FastDeploy's loop, which all leave together."""
    return GroupError(
        f"{named(gone)} of group {group!r} ended while rank {rank} was in entry {entry} of FastDeploy's "
        "loop, which all ranks leave together: this process ends; start the job again",
        gone=tuple(gone),
    )


@coded("ranks-late")
def ranks_late(*, late: Sequence[int], group: str, waited_s: float) -> GroupError:
    """A control request was called on some ranks, and others did not come in time."""
    return GroupError(
        f"{named(late)} of group {group!r} did not come to FastDeploy's control request within {waited_s:g} "
        "s: nothing was begun; see where that rank is, and ask again",
        late=tuple(late),
    )


def no_worker() -> RefusedError:
    """FastDeploy's loop asks in a process where no weights were ever managed."""
    return RefusedError(
        "this process has no wsm.fastdeploy.DynamicWeightManager, so there is no group to ask; the model "
        "runner makes one when it loads its model with dynamic_load_weight",
        code="no-worker",
    )


@coded("already-managed")
def already_managed(*, group: str) -> RefusedError:
    """A second manager was made in a process, which can be one rank only."""
    return RefusedError(
        f"this process is a rank of group {group!r} already; close() the manager before another one is made"
    )


@coded("not-bound")
def not_bound(*, surface: str) -> InternalError:
    """A command needs the model runner, and FastDeploy's loop has not handed it in yet."""
    return InternalError(
        f"{surface} belongs to FastDeploy's model runner, which is known from the first entry of its loop on"
    )


@coded("unknown-generation")
def unknown_generation(*, runner: str, known: list[str]) -> RefusedError:
    """A model runner has none of the shapes that are known."""
    return RefusedError(
        f"{runner} is of no generation of FastDeploy that wsm knows ({', '.join(known)}): it has neither "
        "share_inputs nor request_state; run it without wsm.fastdeploy, or add its calls to the generations",
        known=tuple(known),
    )


@coded("boots-only")
def boots_only(*, runner: str, generation: str) -> RefusedError:
    """A runner that loads at start is asked for what its build has no calls for."""
    return RefusedError(
        f"{runner} ({generation}) has no clear_requests, clear_parameters and update_parameters: its weights "
        "are loaded at start and stay; start it again with another version, or use a build with these calls"
    )


@coded("no-manager")
def no_manager(*, runner: str) -> RefusedError:
    """A runner was told to load dynamically, and its build makes no weight manager."""
    return RefusedError(
        f"{runner}.load_model makes no DynamicWeightManager, although load_config.dynamic_load_weight is on: "
        "weights that this build serves cannot change; start it without dynamic loading, or without "
        "wsm.fastdeploy",
        call="DynamicWeightManager",
    )


@coded("unknown-call")
def unknown_call(*, arguments: int, named: Sequence[str] = ()) -> BadInputError:
    """FastDeploy's loop calls in a way that no generation is known to."""
    return BadInputError(
        f"check_model_weights_status was called with {arguments} arguments by place and {list(named)} by "
        "name; known are (weights, model_runner, pid) and (weights, kv_cache_status, model_runner, pid, "
        "block)",
        named=tuple(named),
    )


@coded("no-runner")
def no_runner() -> BadInputError:
    """The second line was called before any model runner was handed in."""
    return BadInputError(
        "poll() was called without FastDeploy's model runner, and neither install() nor its loop has handed "
        "one in; hand it in, at the top of the event loop: model_runner = self.worker.model_runner; "
        "model_runner.dynamic_weight_manager.poll(model_runner)"
    )


@coded("call-failed")
def call_failed(*, rank: int, why: str) -> GroupError:
    """A command failed that every rank called for; rank 0 has the error itself."""
    return GroupError(f"what the ranks called for together failed, as rank 0 says to rank {rank}: {why}")


@coded("no-version")
def no_version(*, directory: str) -> BadInputError:
    """An update was asked for that names no version, and none is announced."""
    return BadInputError(
        f"rsync model version not set: the call names none, and {directory}/version.yaml says none; give one"
    )


@coded("cache-process-silent")
def cache_process_silent(*, word: str, says: int, wish: int, seconds: float) -> GroupError:
    """The process that holds KV cache does not do what it was asked by its word."""
    return GroupError(
        f"the process that holds KV cache has not answered {wish} in {word} for {seconds:g} s, which says "
        f"{says} still; see whether FastDeploy's cache_transfer_manager lives, and what its log says"
    )


@coded("unknown-tag")
def unknown_tag(*, method: str, tag: str, known: Sequence[str]) -> BadInputError:
    """A control request is about something that FastDeploy has no tag for."""
    return BadInputError(f"{method} was asked for {tag!r}; known are {', '.join(known)}", known=tuple(known))


@coded("call-open")
def call_open(*, method: str, open_method: str) -> RefusedError:
    """A control request comes while another one is open on this rank."""
    return RefusedError(
        f"{method} was called while {open_method} is open on this rank; wait for its end, and ask again"
    )
