"""``wsm serve``: a group commanded over HTTP, by a process beside it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wsm.cli._base import (
    EXISTING_DIRECTORY,
    FILE,
    PATH,
    Checked,
    command,
    config_option,
    options,
    require_http,
    tell,
    wrong_usage,
)
from wsm.cli._groups import configuration_of, configured, known_group

if TYPE_CHECKING:
    from wsm.config import WsmConfig
    from wsm.http._serving import Listening
    from wsm.http.surface import Surface
    from wsm.http.surfaces import OpenRequests


def _server_info(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"{text!r}: say KEY=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


of_surfaces = options(
    click.option(
        "--adopt-root",
        "roots",
        type=PATH,
        multiple=True,
        help="Where trainers write: directories below it may be loaded by their path. Repeatable.",
    ),
    click.option(
        "--adopt",
        "way",
        type=click.Choice(["link", "copy", "none"]),
        default="link",
        help="How such a directory is taken in before it is loaded.",
    ),
    click.option(
        "--relabel",
        type=click.Choice(["mark", "refuse"]),
        default="mark",
        help="Other content under a label that was used: mark the label, or refuse it.",
    ),
    click.option(
        "--sleep-level-1",
        type=click.Choice(["refuse", "as-2"]),
        callback=lambda _context, _option, said: None if said is None else said == "as-2",
        help="vLLM's sleep that keeps weights in host memory: refuse it, or let them go, and load the "
        "version again at the wake-up. Default: as-2 for AReaL, whose trainer asks for nothing else.",
    ),
    click.option("--served-model-name", metavar="TEXT", help="What /v1/models says. Default: the group."),
    click.option(
        "--server-info",
        type=Checked("field", _server_info),
        multiple=True,
        metavar="KEY=VALUE",
        help="A field that /server_info says beside its own, or in their place; VALUE is JSON, or else text. "
        "Repeatable.",
    ),
    click.option(
        "--fastdeploy-generation",
        type=click.Choice(["2.4", "2.5", "2.6"]),
        default="2.6",
        help="Which FastDeploy the legacy GETs answer like; 2.6: they are sleep and wakeup.",
    ),
)


def listening_options(default_port: int | None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return what says where a server listens, and to whom it answers."""
    address = f"127.0.0.1:{default_port}" if default_port is not None else None
    return options(
        click.option(
            "--http",
            "--port",
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
        of_surfaces,
        click.option(
            "--token-file",
            type=PATH,
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
        click.option("--tls-cert", "certificate", type=PATH, help="TLS: the certificate."),
        click.option("--tls-key", "key", type=PATH, help="Its key."),
    )


def listening(address: str, **asked: Any) -> Listening:
    """Return where a server is asked to listen: of all options those that are of :class:`Listening`.

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
    own = {each.name for each in dataclasses.fields(Listening)} & asked.keys()
    return Listening(host or "127.0.0.1", int(port), **{name: asked[name] for name in own})


def surfaces_named(
    names: str,
    config: Callable[[], WsmConfig],
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
        The values of the options of surfaces, by name.
    requests : OpenRequests or None
        The requests for text that run.

    Raises
    ------
    click.UsageError
        If there is no such surface.
    """
    from wsm.cli.adopting import settings_of_group  # noqa: PLC0415 - what adopts, for such commands only
    from wsm.http.surfaces import SURFACES, SurfaceOptions, adopting, standing  # noqa: PLC0415 - as in listening()

    asked = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in asked if name not in SURFACES]
    if unknown:
        raise click.UsageError(f"there is no surface {unknown[0]!r}; there are {', '.join(SURFACES)}")
    adopt = stands = None
    if said["roots"]:
        settings = settings_of_group(config(), **{name: said[name] for name in ("roots", "way", "relabel")})
        adopt, stands = adopting(settings), standing(settings)
    surface_options = SurfaceOptions(
        adopt=adopt,
        stands=stands,
        requests=requests,
        served_model_name=said["served_model_name"],
        server_info=dict(said["server_info"]),
        fastdeploy_generation=said["fastdeploy_generation"],
        sleep_level_1_as_2=said["sleep_level_1"],
    )
    return tuple(SURFACES[name](surface_options) for name in asked or SURFACES)


@command
@click.argument("name")
@listening_options(8300)
@click.option("--uds", type=PATH, help="Answer at a Unix socket instead.")
@click.option("--upstream", metavar="URL", help="Forward what wsm does not know to this server, streaming.")
@click.option(
    "--receipts", type=FILE, help="Where ends of requests are kept. Default: http.sqlite beside the journals."
)
@click.option(
    "--fleet",
    "store",
    type=EXISTING_DIRECTORY,
    help="The group is a replica of the fleet whose targets lie in this store: text reaches only what the "
    "newest target allows.",
)
@click.option("--follow", is_flag=True, help="Load that target where what the group holds is not allowed.")
@click.option(
    "--detached", is_flag=True, help="Let others than the fleet update the group: to what takes no text then."
)
@config_option("The group's configuration, for FastDeploy's words and its journals.")
def serve_command(
    name: str,
    *,
    address: str,
    surfaces: str,
    upstream: str | None,
    receipts: Path | None,
    store: Path | None,
    follow: bool,
    detached: bool,
    config_file: Path | None,
    **asked: Any,
) -> None:
    """Let the group NAME be commanded over HTTP, until Ctrl-C or SIGTERM.

    Trainers find the verbs that they know from SGLang, vLLM or FastDeploy; programs /wsm/v1, described at
    /wsm/v1/openapi.json. The server holds nothing that the group needs: its end changes nothing, and the next
    one knows what was asked of this one.

    Examples
    --------
      wsm serve policy --surface sglang
          slime and AReaL drive it at 127.0.0.1:8300
      wsm serve policy --upstream http://127.0.0.1:8180
          with the engine behind it, at one address
      wsm serve policy --http 0.0.0.0:8300 --token-file tokens
          for other hosts, with tokens
      wsm serve policy --uds /run/policy.sock
          for this user's processes alone
    """
    require_http("serve")
    from wsm.http import Commands, create_app  # noqa: PLC0415 - starlette and uvicorn, for this command only
    from wsm.http._serving import MOST_TEXTS, serve  # noqa: PLC0415 - the same
    from wsm.http.upstream import Upstream  # noqa: PLC0415 - the same

    if (follow or detached) and store is None:
        raise click.UsageError(f"--{'follow' if follow else 'detached'} needs --fleet STORE")
    said = configured(name, config_file)
    with wrong_usage():
        at = listening(address, **asked)
        security = at.security()
        rest = None if upstream is None else Upstream(upstream)
        chosen = surfaces_named(surfaces, lambda: configuration_of(name, config_file), asked)
    with known_group(name):
        commands = Commands(name, receipts=receipts, **said)
    member = None
    if store is not None:
        from wsm.fleet.member import FleetMember  # noqa: PLC0415 - for replicas of a fleet only

        commands.fleet = member = FleetMember(store, detached=detached)
        member.look()
        if follow:
            member.follow(commands)
    try:
        app = create_app(commands, surfaces=chosen, rest=rest, security=security, most_texts=MOST_TEXTS)
        serve(app, at, lambda where: tell(f"{name} is commanded at {where}; Ctrl-C ends this, not the group"))
    finally:
        if member is not None:
            member.close()
        commands.close(wait_s=ENDING_S)


#: Seconds that commands under way may take once the server is to end.
ENDING_S = 30.0
