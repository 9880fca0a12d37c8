"""``wsm clear``, ``wsm update`` and their like: one command to a group, and its receipt."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, cast

import click

from wsm.cli._base import (
    RequestId,
    RsyncOptions,
    Seconds,
    Tags,
    TeachingCommand,
    Version,
    config_option,
    json_option,
    show_json,
    show_text,
    wrong_usage,
)
from wsm.cli._groups import known_group, read_group_config
from wsm.cli._interruption import receipt_of
from wsm.cli._remote import RemoteGroup, server_of, server_url
from wsm.controller import ANY_OWNER, Controller, Pending
from wsm.printable import printable
from wsm.receipt import Outcome, Receipt
from wsm.states.vocabulary import (
    ALL_TAGS,
    After,
    HotFallback,
    InFlightPolicy,
    KVPolicy,
    OnLease,
    TransferMode,
    UnknownTensors,
)

_Decorator: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]


def _option_of_running_requests(
    default: str,
) -> _Decorator:
    return click.option(
        "--in-flight",
        type=click.Choice([policy.value for policy in InFlightPolicy]),
        show_default=default,
        help="Running requests: end them with what they have (abort), let them finish first (drain), "
        "or set them aside and continue them (keep).",
    )


def _decorating(
    *options: _Decorator,
) -> _Decorator:
    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        return functools.reduce(lambda decorated, option: option(decorated), reversed(options), function)

    return decorate


def _command_options(deadline_s: float, *, in_flight: str = "abort") -> _Decorator:
    """Return what clear and update take besides their own options; `in_flight` names that one's default."""
    return _decorating(
        click.argument("name"),
        _option_of_running_requests(f"{in_flight}; under a hold as that said"),
        click.option(
            "--tags",
            type=Tags(),
            default=",".join(sorted(tag.value for tag in ALL_TAGS)),
            show_default=True,
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
    return _decorating(
        click.option(
            "--deadline",
            "deadline_s",
            type=Seconds(),
            default=deadline_s,
            show_default=True,
            help="Take the command back if it is undecided by then; each action has a deadline of its own.",
        ),
        click.option(
            "--wait",
            "wait_s",
            type=Seconds(zero=True),
            default=0.0 if waits == "0" else None,
            show_default=True if waits == "0" else waits,
            help="How long to wait while another controller commands the group; 0 is refused at once.",
        ),
        click.option(
            "--request-id",
            type=RequestId(),
            help="Name of the request in logs and receipt; drawn by default.",
        ),
        config_option("The group's configuration, for FastDeploy's words; without it they are left alone."),
        json_option("Print the receipt as JSON."),
    )


def _kv_option(default: KVPolicy, text: str, *, in_flight: bool = False) -> _Decorator:
    policies = [policy for policy in KVPolicy if in_flight or policy is not KVPolicy.KEEP_IN_FLIGHT]
    return click.option(
        "--kv",
        "--kv-policy",
        "kv_policy",
        type=click.Choice([policy.value for policy in policies]),
        default=default.value,
        show_default=True,
        help=text,
    )


#: What every command that loads a version takes.
_version_options = _decorating(
    click.option(
        "--version",
        type=Version(),
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
        type=click.Choice([fallback.value.replace("_", "-") for fallback in HotFallback]),
        default=HotFallback.REFUSE.value,
        show_default=True,
        help="Of a hot one, where there is no room for two versions, or none is served: refuse, or load in "
        "place.",
    ),
    _kv_option(
        KVPolicy.DROP,
        "KV blocks that the old weights computed: forget them all (drop), go on with them all, prefixes "
        "too (keep), or with those of running requests alone (keep-in-flight, needs --in-flight keep).",
        in_flight=True,
    ),
    click.option(
        "--transfer-mode",
        type=click.Choice([mode.value for mode in TransferMode]),
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
        type=RsyncOptions(),
        metavar="JSON",
        help="FastDeploy's rsync_config for this command alone, over the one that is configured.",
    ),
    click.option(
        "--unknown-tensors",
        type=click.Choice([choice.value for choice in UnknownTensors]),
        help="Tensors of the version that the model does not have: refuse the version, or leave them out and "
        "count them. Default: as the ranks are configured.",
    ),
    click.option(
        "--after",
        type=click.Choice([after.value for after in After]),
        default=After.AS_BEFORE.value,
        show_default=True,
        help="Whether the group is held behind it: as it was before, held, or serving, which ends a hold.",
    ),
    click.option("--owner", default=ANY_OWNER, show_default=True, help="Whose hold it begins, or ends."),
)


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm clear policy", "end running requests, give the memory back"),
        ("wsm clear policy --in-flight drain --deadline 120", "let running requests finish first"),
        ("wsm clear policy --tags kv_cache", "give the KV cache back alone; the weights stay"),
    ),
)
@_kv_option(
    KVPolicy.DROP,
    "With --tags weights: forget the blocks in the KV cache that stays, or keep them for these weights.",
)
@_command_options(deadline_s=60.0)
def clear(name: str, kv_policy: str, **options: Any) -> None:
    """Release weights and KV cache on every rank of the group NAME, or one of them.

    The ranks finish the step that they are in, stop at the same step, tear down what they hold, and measure
    that the memory is really free. The processes live on, and serve again after 'wsm update'. Clearing what
    is cleared does nothing; clearing a FAULTED group, weights and KV cache together, repairs it.
    """

    def begin(controller: Controller, shared: dict[str, Any]) -> Pending:
        return controller.begin_clear(kv_policy=KVPolicy(kv_policy), **shared)

    _command(name, begin, **options)


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm update policy --version 7", "serve version 7; say so if it is served already"),
        ("wsm update policy", "serve the newest version, as version.yaml names it"),
        ("wsm update policy --tags kv_cache", "bring the KV cache back over the weights that are there"),
        ("wsm update policy --hot --hot-fallback in-place", "stage it beside the old one, if there is room"),
        ("wsm update policy --version 7 --json | jq .ranks", "digests and seconds per action, of every rank"),
    ),
)
@_version_options
@click.option(
    "--hot",
    is_flag=True,
    help="Stage the version in memory of its own while the old one serves, and stop only to switch.",
)
@_command_options(deadline_s=300.0, in_flight="abort; keep for a hot update")
def update(
    name: str,
    version: str | None,
    hot_fallback: str,
    kv_policy: str,
    **options: Any,
) -> None:
    """Load a version on every rank of the group NAME, and serve it.

    A cleared group loads into fresh memory; a serving one stops at the same step on all ranks and loads in
    place. The ranks switch together or not at all: if one fails, or loads something else than the others, all
    keep what they had, or all are cleared if any had begun to overwrite its weights. The message says which.

    With --hot, a serving group goes on serving while it loads. Until all ranks hold and have verified the new
    version, any failure leaves the old one serving, untouched.

    A group that has its weights or its KV cache lacks the other: what is missing is brought, and the weights
    are loaded again only in another version. With --tags, only what is named is brought.
    """

    def begin(controller: Controller, shared: dict[str, Any]) -> Pending:
        return controller.begin_update(
            version,
            hot_fallback=HotFallback(hot_fallback.replace("-", "_")),
            kv_policy=KVPolicy(kv_policy),
            **shared,
        )

    _command(name, begin, **options)


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm hold policy --owner trainer", "stand still with all that is in memory"),
        ("wsm hold policy --in-flight keep --lease 60 --on-lease serve", "for a minute at most, then go on"),
    ),
)
@click.argument("name")
@_option_of_running_requests("abort")
@_kv_option(
    KVPolicy.KEEP, "Forget the blocks in the KV cache once all ranks stand, or keep them. Its memory stays."
)
@click.option("--owner", default=ANY_OWNER, show_default=True, help="Who may release it: a name.")
@click.option("--lease", "lease_s", type=Seconds(), help="Seconds after which it runs out. Default: never.")
@click.option(
    "--on-lease",
    type=click.Choice([each.value for each in OnLease]),
    default=OnLease.STAY.value,
    show_default=True,
    help="Then stay held and say so, or serve again what is whole in memory.",
)
@_timing_options(60.0, waits="as long as the deadline")
def hold(name: str, kv_policy: str, **options: Any) -> None:
    """Let every rank of the group NAME stand at one step, with all that it has, until 'wsm release'.

    Clears and updates stay under the hold. By its owner it is renewed; to any other it is refused.
    """

    def begin(controller: Controller, shared: dict[str, Any]) -> Pending:
        return controller.begin_hold(kv_policy=KVPolicy(kv_policy), **shared)

    _command(name, begin, **options)


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm release policy --owner trainer", "let it step again"),
        ("wsm release policy --force", "by force, if it is held by another"),
    ),
)
@click.argument("name")
@click.option("--owner", default=ANY_OWNER, show_default=True, help="Whose hold it is.")
@click.option("--hold", metavar="ID", help="Refuse it unless this hold is in force. Default: any.")
@click.option("--force", is_flag=True, help="Release another owner's hold, too.")
@_timing_options(60.0, waits="as long as the deadline")
def release(name: str, **options: Any) -> None:
    """Let the ranks of the held group NAME step again; an open group stays as it is.

    Refused where the group could not serve: the message says what is missing, and it stays held.
    """

    def begin(controller: Controller, shared: dict[str, Any]) -> Pending:
        return controller.begin_release(**shared)

    _command(name, begin, in_flight=None, **options)


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm prepare policy --version 7 --lease 60 --request-id seven", "stage it, for 60 s"),
        ("wsm commit policy --request-id seven", "serve it"),
        ("wsm prepare policy --version 7 --in-place", "load it in place: the old weights are gone then"),
    ),
)
@_version_options
@click.option(
    "--in-place",
    is_flag=True,
    help="Do not stage it beside the old one. Once it is prepared the old weights are gone: 'wsm abort', or "
    "a lease that is over, leaves the group CLEARED.",
)
@click.option(
    "--lease",
    "lease_s",
    type=Seconds(),
    help="Take it back if it is undecided that long after every rank has prepared it. Default: the deadline.",
)
@_command_options(deadline_s=300.0, in_flight="keep; abort in place")
def prepare(
    name: str,
    version: str | None,
    hot_fallback: str,
    kv_policy: str,
    *,
    in_place: bool,
    **options: Any,
) -> None:
    """Load a version on every rank of the group NAME, and leave for later whether it is served.

    Every rank loads and verifies it, beside the version that serves on. Then this command ends, and its
    request id holds the decision: 'wsm commit' or 'wsm abort' makes it, and until then every other command is
    refused. Several groups are switched together so: prepare each, then commit one after the other.
    """

    def begin(controller: Controller, shared: dict[str, Any]) -> Pending:
        return controller.begin_lease(
            version,
            hot=not in_place,
            hot_fallback=HotFallback(hot_fallback.replace("-", "_")),
            kv_policy=KVPolicy(kv_policy),
            **shared,
        )

    _command(name, begin, **options)


def _decision_options() -> _Decorator:
    return _decorating(
        click.argument("name"),
        click.option(
            "--wait",
            "wait_s",
            type=Seconds(zero=True),
            default=0.0,
            show_default=True,
            help="How long to wait while another process has the controller role; 0 is refused at once.",
        ),
        config_option("The group's configuration, for its journals; not needed where the group names them."),
        json_option("Print the receipt as JSON."),
    )


@click.command(
    cls=TeachingCommand,
    examples=(("wsm commit policy --request-id seven", "serve what 'wsm prepare' prepared under that id"),),
)
@click.option(
    "--request-id", type=RequestId(), required=True, help="Of 'wsm prepare', as its receipt says it."
)
@_decision_options()
def commit(name: str, request_id: str, **options: Any) -> None:
    """Serve what 'wsm prepare' has prepared on every rank of the group NAME.

    To commit twice is to commit once. Refused if it was taken back, or its lease was over.
    """

    def begin(controller: Controller, shared: dict[str, Any]) -> Pending:
        return controller.begin_commit(request_id, wait_s=shared["wait_s"])

    _command(name, begin, in_flight=None, **options)


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm abort policy", "take back whatever is prepared"),
        ("wsm abort policy --request-id seven", "that alone"),
    ),
)
@click.option("--request-id", type=RequestId(), help="Of 'wsm prepare'. Default: whatever is prepared.")
@_decision_options()
def abort(name: str, request_id: str | None, **options: Any) -> None:
    """Take back what is prepared on every rank of the group NAME.

    While a process holds the decision, that process is named instead: let it abort, or end it. What is
    decided outside the group may have been decided to be committed: this says so, and a COMMIT that comes
    later is refused.
    """

    def begin(controller: Controller, shared: dict[str, Any]) -> Pending:
        return controller.begin_abort(request_id, wait_s=shared["wait_s"])

    _command(name, begin, in_flight=None, **options)


def _command(
    name: str,
    begin: Callable[[Controller, dict[str, Any]], Pending],
    *,
    in_flight: str | None,
    config_file: Path | None,
    as_json: bool,
    **shared: Any,
) -> None:
    if in_flight is not None:
        shared["in_flight"] = InFlightPolicy(in_flight)
    url = server_url()
    if url is not None:
        with server_of(name, url) as client:
            remote = cast("Controller", RemoteGroup(client))
            receipt = receipt_of(
                lambda still_wanted: begin(remote, {**shared, "still_wanted": still_wanted}),
                lambda: f"it goes on at {url}",
            )
        _shown(name, receipt, as_json=as_json)
        return
    with known_group(name), Controller(name, **_configured(config_file, name)) as controller:
        receipt = receipt_of(
            lambda still_wanted: begin(controller, {**shared, "still_wanted": still_wanted}),
            lambda: controller.status().sentence(),
        )
    _shown(name, receipt, as_json=as_json)


def _shown(name: str, receipt: Receipt, *, as_json: bool) -> None:
    if as_json:
        show_json(receipt.to_mapping())
    else:
        show_text(_line(name, receipt))


def _configured(config_file: Path | None, name: str) -> dict[str, Any]:
    """Return what a configuration says to a controller."""
    if config_file is None:
        return {}
    with wrong_usage():
        config = read_group_config(config_file, name)
    return {"engine_words": config.engine_words, "journal_directory": config.journal_directory}


def _line(name: str, receipt: Receipt) -> str:
    digits = 2 if receipt.hot else 0
    pause = (
        f"; not serving for {receipt.pause_s * 1e3:.{digits}f} ms"
        if receipt.loaded and receipt.pause_s
        else ""
    )
    reason = f"\nnot hot: {printable(receipt.fallback)}" if receipt.fallback else ""
    if receipt.outcome is Outcome.PREPARED:
        request = printable(receipt.request_id)
        reason += f"\n'wsm commit {name} --request-id {request}' serves it, 'wsm abort {name}' takes it back"
    warning = f"\n{receipt.warning}" if receipt.warning else ""
    return f"{name} {receipt.sentence()}{pause}{reason}{warning}"
