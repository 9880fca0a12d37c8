"""``wsm serve``: a group commanded over HTTP, by a process beside it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wsm.cli import errors
from wsm.cli._base import TeachingCommand, config_option, tell, wrong_usage
from wsm.cli._groups import configuration_of, known_group, read_group_config

if TYPE_CHECKING:
    from wsm.config import WsmConfig
    from wsm.http._serving import Listening
    from wsm.http.surface import Surface
    from wsm.http.surfaces import OpenRequests
    from wsm.rollout.config import RolloutConfig


_ADOPTING = (
    click.option(
        "--adopt-root",
        "roots",
        type=click.Path(path_type=Path),
        multiple=True,
        help="Where trainers write: directories below it may be loaded by their path. Repeatable.",
    ),
    click.option(
        "--adopt",
        "way",
        type=click.Choice(["link", "copy", "none"]),
        default="link",
        show_default=True,
        help="How such a directory is taken in before it is loaded.",
    ),
    click.option(
        "--relabel",
        type=click.Choice(["mark", "refuse"]),
        default="mark",
        show_default=True,
        help="Other content under a label that was used: mark the label, or refuse it.",
    ),
)

_SLEEP_LEVEL_1 = click.option(
    "--sleep-level-1",
    "sleep_level_1",
    type=click.Choice(["refuse", "as-2"]),
    help="vLLM's sleep that keeps weights in host memory: refuse it, or let them go, and load the "
    "version again at the wake-up. Default: as-2 for AReaL, whose trainer asks for nothing else.",
)


_FASTDEPLOY_GENERATION = click.option(
    "--fastdeploy-generation",
    "fastdeploy_generation",
    type=click.Choice(["2.4", "2.5", "2.6"]),
    default="2.6",
    show_default=True,
    help="Which FastDeploy the legacy GETs answer like; 2.6: they are sleep and wakeup.",
)

_SERVER_INFO = click.option(
    "--server-info",
    "server_info",
    multiple=True,
    metavar="KEY=VALUE",
    help="A field that /server_info says beside its own, or in their place; VALUE is JSON, or else text. "
    "Repeatable.",
)

#: What the command line says of surfaces; the rest of :func:`listening_options` is of :class:`Listening`.
OF_SURFACES = (
    *("roots", "way", "relabel", "sleep_level_1", "served_model_name"),
    *("fastdeploy_generation", "server_info"),
)


def listening_options(default_port: int | None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return what says where a server listens, and to whom it answers."""
    address = f"127.0.0.1:{default_port}" if default_port is not None else None
    options = (
        click.option(
            "--http",
            "address",
            metavar="[HOST:]PORT",
            default=address,
            show_default=address is not None,
            help="Answer HTTP there; port 0 takes a free one. But loopback all need --token-file or --trust.",
        ),
        click.option(
            "--surface",
            "surfaces",
            metavar="NAME[,NAME...]",
            default="",
            help="Whose verbs are answered; the first one's own the paths that several have. Default: all, "
            "fastdeploy first.",
        ),
        *_ADOPTING,
        _SLEEP_LEVEL_1,
        click.option("--served-model-name", metavar="TEXT", help="What /v1/models says. Default: the group."),
        _SERVER_INFO,
        _FASTDEPLOY_GENERATION,
        click.option(
            "--token-file",
            type=click.Path(path_type=Path),
            help="Lines 'admin TOKEN' and 'read TOKEN', mode 0600. With it every request needs one of them.",
        ),
        click.option(
            "--trust", multiple=True, metavar="CIDR", help="A network that needs no token. Repeatable."
        ),
        click.option(
            "--allow-host",
            "allowed_hosts",
            multiple=True,
            metavar="NAME",
            help="A name of this server that requests without a token may use. Repeatable.",
        ),
        click.option(
            "--tls-cert", "certificate", type=click.Path(path_type=Path), help="TLS: the certificate."
        ),
        click.option("--tls-key", "key", type=click.Path(path_type=Path), help="Its key."),
    )

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def listening(address: str, **options: Any) -> Listening:
    """Return where a server is asked to listen; what of the options is of surfaces says nothing of that.

    Raises
    ------
    BadInputError
        If the address is none.
    """
    from wsm.http._serving import Listening  # noqa: PLC0415 - starlette and uvicorn, for this command only
    from wsm.http.errors import bad_address  # noqa: PLC0415 - the same

    host, _, port = address.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise bad_address(address=address, problem="say PORT or HOST:PORT")
    own = {name: value for name, value in options.items() if name not in OF_SURFACES}
    return Listening(host or "127.0.0.1", int(port), **own)


def surfaces_named(
    names: str,
    config: Callable[[], WsmConfig | RolloutConfig],
    said: Mapping[str, Any],
    *,
    requests: OpenRequests | None = None,
) -> tuple[Surface, ...]:
    """Return the surfaces of a list of names, in its order; all of them for an empty one.

    Parameters
    ----------
    names : str
        The list.
    config : callable
        Returns the group's configuration, where directories are to be adopted.
    said : mapping
        What the command line says, :data:`OF_SURFACES`.
    requests : OpenRequests or None
        The requests for text that run.

    Raises
    ------
    click.UsageError
        If there is no such surface, or a field of ``/server_info`` is none.
    """
    from wsm.cli.adopting import settings_of_group  # noqa: PLC0415 - what adopts, for such commands only
    from wsm.http.surfaces import SURFACES, SurfaceOptions, adopting, standing  # noqa: PLC0415 - as in listening()
    from wsm.strategies.adopt.adopt import AdoptWay  # noqa: PLC0415 - what adopts
    from wsm.strategies.adopt.deciding import Relabel  # noqa: PLC0415 - what adopts

    asked = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in asked if name not in SURFACES]
    if unknown:
        raise click.UsageError(f"there is no surface {unknown[0]!r}; there are {', '.join(SURFACES)}")
    adopt = stands = None
    if said["roots"]:
        settings = settings_of_group(
            config(), roots=said["roots"], way=AdoptWay(said["way"]), relabel=Relabel(said["relabel"])
        )
        adopt, stands = adopting(settings), standing(settings)
    lets_go = None if said["sleep_level_1"] is None else said["sleep_level_1"] == "as-2"
    options = SurfaceOptions(
        adopt=adopt,
        stands=stands,
        requests=requests,
        served_model_name=said["served_model_name"],
        server_info=dict(_field(text) for text in said["server_info"]),
        fastdeploy_generation=said["fastdeploy_generation"],
        sleep_level_1_as_2=lets_go,
    )
    return tuple(SURFACES[name](options) for name in asked or SURFACES)


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.UsageError(f"--server-info {text!r}: say KEY=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def require_http(command: str) -> None:
    """Refuse a command that serves where the extra is not installed.

    Raises
    ------
    RefusedError
        If it is not there.
    """
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn", "httpx")):
        raise errors.http_required(command=command)


@click.command(
    cls=TeachingCommand,
    examples=(
        ("wsm serve policy --surface sglang", "slime and AReaL drive it at 127.0.0.1:8300"),
        ("wsm serve policy --upstream http://127.0.0.1:8180", "with the engine behind it, at one address"),
        ("wsm serve policy --http 0.0.0.0:8300 --token-file tokens", "for other hosts, with tokens"),
        ("wsm serve policy --uds /run/policy.sock", "for this user's processes alone"),
    ),
)
@click.argument("name")
@listening_options(8300)
@click.option("--uds", type=click.Path(path_type=Path), help="Answer at a Unix socket instead.")
@click.option("--upstream", metavar="URL", help="Forward what wsm does not know to this server, streaming.")
@click.option(
    "--receipts",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where ends of requests are kept. Default: http.jsonl beside the journals.",
)
@config_option("The group's configuration, for FastDeploy's words and its journals.")
def serve_command(
    name: str,
    *,
    address: str,
    surfaces: str,
    upstream: str | None,
    receipts: Path | None,
    config_file: Path | None,
    **options: Any,
) -> None:
    """Let the group NAME be commanded over HTTP, until Ctrl-C or SIGTERM.

    Trainers find the verbs that they know from SGLang, vLLM or FastDeploy; programs /wsm/v1, described at
    /wsm/v1/openapi.json. The server holds nothing that the group needs: its end changes nothing, and the next
    one knows what was asked of this one.
    """
    require_http("serve")
    from wsm.http import Commands, create_app  # noqa: PLC0415 - starlette and uvicorn, for this command only
    from wsm.http._serving import MOST_TEXTS, serve  # noqa: PLC0415 - the same
    from wsm.http.upstream import Upstream  # noqa: PLC0415 - the same

    with wrong_usage():
        at = listening(address, **options)
        security = at.security()
        rest = None if upstream is None else Upstream(upstream)
        config = None if config_file is None else read_group_config(config_file, name)
        chosen = surfaces_named(surfaces, lambda: configuration_of(name, config_file), options)
    with known_group(name):
        commands = Commands(
            name,
            engine_words=None if config is None else config.engine_words,
            journal_directory=None if config is None else config.journal_directory,
            receipts=receipts,
        )
    try:
        app = create_app(commands, surfaces=chosen, rest=rest, security=security, most_texts=MOST_TEXTS)
        serve(app, at, lambda where: tell(f"{name} is commanded at {where}; Ctrl-C ends this, not the group"))
    finally:
        commands.close(wait_s=ENDING_S)


#: Seconds that commands under way may take once the server is to end.
ENDING_S = 30.0
