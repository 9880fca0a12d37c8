"""``wsm clear``, ``wsm update`` and their like: one command to a group, and its receipt.

Ctrl-C, SIGTERM and SIGHUP take the command back. A process that dies with a command undecided leaves it to
the group, which commits what all ranks have prepared by then and aborts anything else. So the first signal
asks for ABORT, waits for the group to settle and says what came of it; only a second one leaves at once. That
signals raise is the entry point's doing.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import click

from wsm.cli._base import (
    REQUEST_ID,
    RSYNC_OPTIONS,
    SECONDS,
    SECONDS_OR_NONE,
    TAGS,
    VERSION,
    CommandEndedError,
    answer,
    command,
    config_option,
    json_option,
    options,
    tell,
)
from wsm.cli._groups import configured, known_group
from wsm.cli._remote import begin_remotely, server_of, server_url
from wsm.controller import ANY_OWNER, Controller, Pending
from wsm.controller.errors import CommandTimeoutError, CommandWithdrawnError
from wsm.ending import SignalReceived
from wsm.errors import WsmError
from wsm.printable import printable
from wsm.receipt import Outcome, Receipt
from wsm.states import vocabulary

_Decorator: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]


def _choice(
    *names: str, of: Iterable[enum.Enum], default: enum.Enum | None = None, **facts: Any
) -> _Decorator:
    """Return the option that takes one of the values of an enumeration."""
    values = [each.value for each in of]
    return click.option(
        *names, type=click.Choice(values), default=None if default is None else default.value, **facts
    )


def _running_requests(shown: str, default: vocabulary.InFlightPolicy | None = None) -> _Decorator:
    return _choice(
        "--in-flight",
        of=vocabulary.InFlightPolicy,
        help="Running requests: end them with what they have (abort), let them finish first (drain), "
        "or set them aside and continue them (keep).",
        default=default,
        show_default=shown,
    )


def _kv_option(default: vocabulary.KVPolicy, text: str, *but: vocabulary.KVPolicy) -> _Decorator:
    policies = [policy for policy in vocabulary.KVPolicy if policy not in but]
    return _choice("--kv", "--kv-policy", "kv_policy", of=policies, default=default, help=text)


_name = click.argument("name")
_json = json_option("Print the receipt as JSON.")
_owner = click.option("--owner", default=ANY_OWNER, help="The name of the hold's owner.")


def _command_options(deadline_s: float, *, in_flight: str = "abort") -> _Decorator:
    """Return what clear and update take besides their own options; `in_flight` names that one's default."""
    return options(
        _name,
        _running_requests(f"{in_flight}; under a hold as that said"),
        click.option(
            "--tags",
            type=TAGS,
            default=",".join(sorted(tag.value for tag in vocabulary.ALL_TAGS)),
            help="What it is about: weights, kv_cache, or both. The group serves only with both.",
        ),
        click.option(
            "--hold",
            metavar="ID",
            help="Refuse the command unless this hold is in force. Default: any, or none.",
        ),
        _timing_options(deadline_s, waits="0"),
    )


def _timing_options(deadline_s: float, *, waits: str) -> _Decorator:
    """Return what every command takes; `waits` names how long it waits for its turn by default."""
    return options(
        click.option(
            "--deadline",
            "deadline_s",
            type=SECONDS,
            default=deadline_s,
            help="Take the command back if it is undecided by then; each action has a deadline of its own.",
        ),
        _wait_option(waits),
        click.option(
            "--request-id", type=REQUEST_ID, help="Name of the request in logs and receipt; drawn by default."
        ),
        config_option("The group's configuration, for FastDeploy's words; without it they are left alone."),
        _json,
    )


def _wait_option(waits: str = "0") -> _Decorator:
    return click.option(
        "--wait",
        "wait_s",
        type=SECONDS_OR_NONE,
        default=0.0 if waits == "0" else None,
        show_default=True if waits == "0" else waits,
        help="How long to wait for the group, until all its ranks are there, and while another controller "
        "commands it; 0 is refused at once.",
    )


#: The options of every command that loads a version.
_version_options = options(
    click.option(
        "--version",
        type=VERSION,
        metavar="V",
        help="The version to load; by default the newest that the source announces.",
    ),
    click.option("--force", is_flag=True, help="Load even if the group holds that version already."),
    click.option(
        "--partial",
        is_flag=True,
        help="Let tensors be missing in the version: they keep what they hold. Only for a group that serves. "
        "The receipt says whether a lost rank could be restored then.",
    ),
    click.option(
        "--hot-fallback",
        type=click.Choice([fallback.value.replace("_", "-") for fallback in vocabulary.HotFallback]),
        default=vocabulary.HotFallback.REFUSE.value,
        callback=lambda _context, _option, said: said.replace("-", "_"),
        help="Of a hot one, where there is no room for two versions, or none is served: refuse, or load in "
        "place.",
    ),
    _kv_option(
        vocabulary.KVPolicy.DROP,
        "KV blocks that the old weights computed: forget them all (drop), go on with them all, prefixes "
        "too (keep), or with those of running requests alone (keep-in-flight, needs --in-flight keep).",
    ),
    _choice(
        "--transfer-mode",
        of=vocabulary.TransferMode,
        help="By which way the version travels, for the strategy gdr. Default: as the ranks are configured.",
    ),
    click.option(
        "--verify-checksum/--no-verify-checksum",
        default=None,
        help="For the strategies rsync and gdr: refuse a stream that promises no digests, or load it "
        "unverified. Default: as the ranks are configured.",
    ),
    click.option(
        "--rsync-config",
        "--rsync_config",
        type=RSYNC_OPTIONS,
        metavar="JSON",
        help="FastDeploy's rsync_config for this command alone, over the one that is configured.",
    ),
    _choice(
        "--unknown-tensors",
        of=vocabulary.UnknownTensors,
        help="Tensors of the version that the model does not have: refuse the version, or leave them out and "
        "count them. Default: as the ranks are configured.",
    ),
    _choice(
        "--after",
        of=vocabulary.After,
        help="Whether the group is held behind it: as it was before, held, or serving, which ends a hold.",
        default=vocabulary.After.AS_BEFORE,
    ),
    _owner,
    _choice(
        "--on-failure",
        of=vocabulary.OnFailure,
        help="Of a group that served: load the version before again once an update in place has overwritten "
        "it and failed, or leave the group CLEARED. Default: as the group is configured, which is restore.",
    ),
    click.option(
        "--restore-deadline",
        "restore_s",
        type=SECONDS,
        help="How long that restore may take. Default: the deadline.",
    ),
)


@command
@_kv_option(
    vocabulary.KVPolicy.DROP,
    "With --tags weights: forget the blocks in the KV cache that stays, or keep them for these weights.",
    vocabulary.KVPolicy.KEEP_IN_FLIGHT,
)
@_command_options(deadline_s=60.0)
def clear(name: str, **asked: Any) -> None:
    """Release weights and KV cache on every rank of the group NAME, or one of them.

    The ranks finish the step that they are in, stop at the same step, tear down what they hold, and measure
    that the memory is really free. The processes live on, and serve again after 'wsm update'. Clearing what
    is cleared does nothing; clearing a FAULTED group, weights and KV cache together, repairs it.

    Examples
    --------
      wsm clear policy
          end running requests, give the memory back
      wsm clear policy --in-flight drain --deadline 120
          let running requests finish first
      wsm clear policy --tags kv_cache
          give the KV cache back alone; the weights stay
    """
    _command(name, "clear", **asked)


@command
@_version_options
@click.option(
    "--hot",
    is_flag=True,
    help="Stage the version in memory of its own while the old one serves, and stop only to switch.",
)
@_command_options(deadline_s=300.0, in_flight="abort; keep for a hot update")
def update(name: str, **asked: Any) -> None:
    """Load a version on every rank of the group NAME, and serve it.

    A cleared group loads into fresh memory; a serving one stops at the same step on all ranks and loads in
    place. The ranks switch together or not at all: if one fails, or loads something else than the others, all
    keep what they had, or all are cleared if any had begun to overwrite its weights, and load the version
    before again (--on-failure). The message says which. Running requests end with what they have, unless
    --in-flight says otherwise; behind a hot update they go on.

    With --hot, a serving group goes on serving while it loads. Until all ranks hold and have verified the new
    version, any failure leaves the old one serving, untouched.

    A group that has its weights or its KV cache lacks the other: what is missing is brought, and the weights
    are loaded again only in another version. With --tags, only what is named is brought.

    Examples
    --------
      wsm update policy --version 7
          serve version 7; say so if it is served already
      wsm update policy
          serve the newest version, as version.yaml names it
      wsm update policy --tags kv_cache
          bring the KV cache back over the weights that are there
      wsm update policy --hot --hot-fallback in-place
          stage it beside the old one, if there is room
      wsm update policy --version 7 --json | jq .ranks
          digests and seconds per action, of every rank
    """
    _command(name, "update", **asked)


@command
@_name
@_running_requests("abort", vocabulary.InFlightPolicy.ABORT)
@_kv_option(
    vocabulary.KVPolicy.KEEP,
    "Forget the blocks in the KV cache once all ranks stand, or keep them. Its memory stays.",
    vocabulary.KVPolicy.KEEP_IN_FLIGHT,
)
@_owner
@click.option("--lease", "lease_s", type=SECONDS, help="Seconds after which it runs out. Default: never.")
@_choice(
    "--on-lease",
    of=vocabulary.OnLease,
    help="Then stay held and say so, or serve again what is whole in memory.",
    default=vocabulary.OnLease.STAY,
)
@_timing_options(60.0, waits="as long as the deadline")
def hold(name: str, **asked: Any) -> None:
    """Let every rank of the group NAME stand at one step, with all that it has, until 'wsm release'.

    Running requests end with what they have, unless --in-flight says otherwise: keep lets them go on after
    the release. Clears and updates stay under the hold. Its owner renews it; to any other it is refused.

    Examples
    --------
      wsm hold policy --owner trainer
          stand still with all that is in memory
      wsm hold policy --in-flight keep --lease 60 --on-lease serve
          for a minute at most, then go on
    """
    _command(name, "hold", **asked)


@command
@_name
@_owner
@click.option("--hold", metavar="ID", help="Refuse it unless this hold is in force. Default: any.")
@click.option("--force", is_flag=True, help="Release another owner's hold, too, or a closed one.")
@_timing_options(60.0, waits="as long as the deadline")
def release(name: str, **asked: Any) -> None:
    """Let the ranks of the held group NAME step again; an open group stays as it is.

    Refused where the group could not serve: the message says what is missing, and it stays held.

    Examples
    --------
      wsm release policy --owner trainer
          let it step again
      wsm release policy --force
          by force, if it is held by another
    """
    _command(name, "release", **asked)


@command
@_version_options
@click.option(
    "--in-place",
    is_flag=True,
    help="Do not stage it beside the old one. Once it is prepared the old weights are gone: after 'wsm "
    "abort', or a lease that is over, they are loaded again, or the group is CLEARED (--on-failure).",
)
@click.option(
    "--lease",
    "lease_s",
    type=SECONDS,
    help="Take it back if it is undecided that long after every rank has prepared it. Default: the deadline.",
)
@_command_options(deadline_s=300.0, in_flight="keep; abort in place")
def prepare(name: str, *, in_place: bool, **asked: Any) -> None:
    """Load a version on every rank of the group NAME, and leave for later whether it is served.

    Every rank loads and verifies it, beside the version that serves on. Then this command ends, and its
    request id holds the decision: 'wsm commit' or 'wsm abort' makes it, and until then every other command is
    refused. Several groups are switched together so: prepare each, then commit one after the other.

    Examples
    --------
      wsm prepare policy --version 7 --lease 60 --request-id seven
          stage it, for 60 s
      wsm commit policy --request-id seven
          serve it
      wsm prepare policy --version 7 --in-place
          load it in place: the old weights are gone then
    """
    _command(name, "lease", hot=not in_place, **asked)


_decision_options = options(
    _name,
    _wait_option(),
    config_option("The group's configuration, for its journals; not needed where the group names them."),
    _json,
)


@command
@click.option(
    "--request-id", type=REQUEST_ID, required=True, help="Of 'wsm prepare', as its receipt says it."
)
@_decision_options
def commit(name: str, **asked: Any) -> None:
    """Serve what 'wsm prepare' has prepared on every rank of the group NAME.

    To commit twice is to commit once. Refused if it was taken back, or its lease was over.

    Examples
    --------
      wsm commit policy --request-id seven
          serve what 'wsm prepare' prepared under that id
    """
    _command(name, "commit", **asked)


@command
@click.option("--request-id", type=REQUEST_ID, help="Of 'wsm prepare'. Default: whatever is prepared.")
@_decision_options
def abort(name: str, **asked: Any) -> None:
    """Take back what is prepared on every rank of the group NAME.

    While a process holds the decision, that process is named instead: let it abort, or end it.

    Examples
    --------
      wsm abort policy
          take back whatever is prepared
      wsm abort policy --request-id seven
          that alone
    """
    _command(name, "abort", **asked)


def _command(name: str, operation: str, *, config_file: Path | None, as_json: bool, **keywords: Any) -> None:
    """Begin the command, by this host's controller or by a server; wait, and print the receipt."""
    url = server_url()
    with contextlib.ExitStack() as stack:
        if url is not None:
            if keywords.pop("owner", ANY_OWNER) != ANY_OWNER:
                raise click.UsageError("--owner is for this host; with --url what is held is the server's")
            client = stack.enter_context(server_of(name, url))
            receipt = _receipt_of(functools.partial(begin_remotely, client, operation, **keywords), None)
        else:
            stack.enter_context(known_group(name))
            options = configured(name, config_file)
            wait_s = keywords["wait_s"] or 0.0  # for the group; its turn there may take as long again
            controller = stack.enter_context(Controller(name, wait_s=wait_s, **options))
            begin = functools.partial(getattr(controller, f"begin_{operation}"), **keywords)
            receipt = _receipt_of(begin, lambda: controller.status().sentence())
    answer(receipt.to_mapping(), *_line(name, receipt).split("\n"), as_json=as_json)


def _line(name: str, receipt: Receipt) -> str:
    digits = 2 if receipt.hot else 0
    pause = (
        f"; stood still for {receipt.pause_s * 1e3:.{digits}f} ms"
        if receipt.loaded and receipt.pause_s
        else ""
    )
    reason = f"\nnot hot: {printable(receipt.fallback)}" if receipt.fallback else ""
    if receipt.outcome is Outcome.PREPARED:
        request = printable(receipt.request_id)
        reason += f"\n'wsm commit {name} --request-id {request}' serves it, 'wsm abort {name}' takes it back"
    warning = f"\n{receipt.warning}" if receipt.warning else ""
    return f"{name} {receipt.sentence()}{pause}{reason}{warning}"


# -- interrupted -----------------------------------------------------------------------------------

_NOTHING_ASKED = "interrupted; nothing was asked of the group"
_TAKING_BACK = (
    "taking the command back; this waits until the ranks have stopped, and, if weights were overwritten, "
    "until the version before is loaded again (--restore-deadline at most); a second signal leaves at once, "
    "and then a supervisor alone restores it"
)
_LEFT_OPEN = (
    "interrupted twice; a command is still open: the group decides it within a second, and each rank ends it "
    "once the action that it is in has ended; 'wsm status' says what the group holds then"
)


def _receipt_of(begin: Callable[[], Pending], held_now: Callable[[], str] | None) -> Receipt:
    """Begin a command and wait for its receipt; a signal takes the command back. Blocks.

    Parameters
    ----------
    begin : callable
        Begins the command; must not wait.
    held_now : callable or None
        Says what the group holds, for the last line; None: a server carries the command out, and goes on.

    Raises
    ------
    CommandEndedError
        If a signal came; the command is over then, or was never written, or goes on at its server.
    wsm.errors.WsmError
        As the command.
    """
    pending: Pending | None = None
    try:
        with _signals_held():
            pending = begin()
        return pending.result()
    except SignalReceived as received:
        message = _NOTHING_ASKED if pending is None else _taken_back(pending, held_now)
        raise CommandEndedError(message, exit_code=received.exit_code) from None


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Let no signal come between the beginning of a command and having a hold on it; it comes behind that."""
    ending = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _taken_back(pending: Pending, held_now: Callable[[], str] | None) -> str:
    if held_now is None:
        return "interrupted; the server goes on with the command"
    try:
        pending.give_up()
        tell(_TAKING_BACK, err=True)
        receipt = pending.result()
    except SignalReceived:
        return _LEFT_OPEN
    except CommandWithdrawnError:
        return _NOTHING_ASKED
    except CommandTimeoutError:
        return f"interrupted; the command was taken back: {held_now()}"
    except WsmError as error:
        return f"interrupted; {error}"
    return f"interrupted too late, it was decided: the group {receipt.sentence()}"
