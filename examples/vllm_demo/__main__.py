"""Plays an update whose trainer dies half way, on vLLM alone and with wsm: ``make demo-vllm``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from examples.vllm_demo.server import Server, write_model

_FILES = '{"backend": "files"}'


class Screen:
    """What the demo prints, a line at a time, and the tokens that it compares.

    Parameters
    ----------
    known : dict of str to list of int
        The tokens of each whole version.
    """

    def __init__(self) -> None:
        self.known: dict[str, list[int]] = {}
        self.lines: list[str] = []

    def say(self, line: str = "") -> None:
        """Print a line."""
        self.lines.append(line)
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def serves(self, server: Server) -> str:
        """Print what a server answers now, and whose that is."""
        tokens = server.tokens()
        whose = next((name for name, known in self.known.items() if known == tokens), "neither version")
        self.say(f"  it answers      {' '.join(f'{token:2}' for token in tokens)}   {whose}")
        return whose

    def did(self, what: str, status: int, said: object = "") -> None:
        """Print a request and its answer."""
        self.say(f"  {what:<40} {status} {said}".rstrip())


def alone(screen: Screen, place: Path, first: Path, second: Path) -> None:
    """Update vLLM by its own verbs, whole and half."""
    screen.say("vLLM alone: /start_weight_update, /update_weights, /finish_weight_update")
    files = {each.name: sorted(each.glob("*.safetensors")) for each in (first, second)}
    with Server(place, first, "--weight-transfer-config", _FILES, plugins="files") as server:
        server.call("POST", "/init_weight_transfer_engine", {"init_info": {}})

        def sends(parts: list[Path]) -> int:
            server.call("POST", "/pause")
            server.call("POST", "/start_weight_update")
            return max(
                server.call("POST", "/update_weights", {"update_info": {"path": str(part)}})[0]
                for part in parts
            )

        screen.known["step-0"] = server.tokens()
        for version in ("step-1", "step-0"):
            sends(files[version])
            server.call("POST", "/finish_weight_update", {"weight_version": version})
            server.call("POST", "/resume")
            screen.known.setdefault(version, server.tokens())
        screen.serves(server)
        screen.did("the trainer sends file 1 of 2 of step-1", sends(files["step-1"][:1]))
        screen.did("and dies; the next one begins by /resume", server.call("POST", "/resume")[0])
        screen.serves(server)


def with_wsm(screen: Screen, place: Path, first: Path, second: Path) -> None:
    """Update vLLM by wsm: half a version, then whole ones."""
    screen.say("vLLM with wsm: wsm vllm serve MODEL, POST /wsm/v1/update")
    with Server(place, first, "--worker-extension-cls", "wsm.vllm.Worker", plugins="wsm") as server:
        screen.serves(server)
        part = max(second.glob("*.safetensors"))
        kept = part.rename(place / part.name)
        status, said = server.call("POST", "/wsm/v1/update", {"path": str(second)})
        screen.did(
            "step-1, of which file 2 never came", status, f"{said['outcome']}: {said['errors'][0]['code']}"
        )
        screen.serves(server)
        kept.rename(part)
        for version in (second, first):
            status, said = server.call("POST", "/wsm/v1/update", {"path": str(version)})
            proof = f"on {len(said['votes'])} ranks: {said['digest'][:8]}"
            screen.did(f"{version.name}, whole", status, f"{said['outcome']} {proof}")
            screen.serves(server)


def main() -> None:
    """Play both; with ``--svg FILE`` draw the screen as well."""
    asked = argparse.ArgumentParser(prog="python -m examples.vllm_demo", description=__doc__)
    asked.add_argument("--svg", type=Path, help="draw what was printed into this file")
    options = asked.parse_args()
    screen = Screen()
    with tempfile.TemporaryDirectory(prefix="wsm-demo-") as place:
        directory = Path(place)
        versions = directory / "step-0", directory / "step-1"
        for seed, version in enumerate(versions):
            write_model(version, seed)
        alone(screen, directory / "alone", *versions)
        screen.say()
        with_wsm(screen, directory / "wsm", *versions)
    if options.svg is not None:
        options.svg.write_text(svg_of(screen.lines))


def svg_of(lines: list[str]) -> str:
    """Return the lines as a picture of a terminal: what answered neither version in red."""
    drawn = [
        f'<text x="16" y="{30 + 20 * number}"{_style(line)}>{_escaped(line)}</text>'
        for number, line in enumerate(lines)
    ]
    height = 24 + 20 * len(lines)
    canvas = f'viewBox="0 0 720 {height}" font-family="monospace" font-size="14" fill="#c9d1d9"'
    frame = f'<rect width="720" height="{height}" rx="8" fill="#0d1117"/>'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {canvas}>'
    return "\n".join([opening, frame, *drawn, "</svg>", ""])


def _style(line: str) -> str:
    if "neither" in line:
        return ' fill="#ff7b72"'
    return (
        ' fill="#7ee787"'
        if line.startswith("  it answers")
        else ' font-weight="bold"'
        if line[:1] == "v"
        else ""
    )


def _escaped(line: str) -> str:
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace(" ", "\u00a0")


if __name__ == "__main__":
    main()
