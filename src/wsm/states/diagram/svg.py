"""Pictures from DOT text, by the `dot` program of Graphviz if it is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from wsm.states.errors import GraphvizFailedError, GraphvizMissingError

#: Seconds that one picture may take; ours take milliseconds.
TIMEOUT_S = 30.0


def write_svg(directory: Path, rendered: Mapping[str, str], *, program: str = "dot") -> list[Path]:
    """Draw every rendered ``.dot`` file as an ``.svg`` beside it, and return the paths.

    Blocks until Graphviz is done, at most :data:`TIMEOUT_S` per picture.

    Parameters
    ----------
    directory : Path
        Where the pictures go; it is created if need be.
    rendered : mapping of str to str
        What :func:`wsm.states.diagram.render_all` returned.
    program : str
        Name or path of Graphviz' `dot`.

    Raises
    ------
    GraphvizMissingError
        If there is no such program. Nothing was written.
    GraphvizFailedError
        If it failed, or did not end in time.
    """
    found = shutil.which(program)
    if found is None:
        raise GraphvizMissingError(program=program)
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in sorted(rendered.items()):
        if name.endswith(".dot"):
            path = directory / f"{name.removesuffix('.dot')}.svg"
            path.write_bytes(_svg(found, name, text))
            paths.append(path)
    return paths


def _svg(program: str, name: str, text: str) -> bytes:
    try:
        done = subprocess.run(  # noqa: S603 - a program that the user named, no shell, our own text
            [program, "-Tsvg"],
            input=text.encode("utf-8"),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise GraphvizFailedError(name=name, problem=f"no end after {TIMEOUT_S:g} s") from error
    except OSError as error:
        raise GraphvizFailedError(name=name, problem=f"{program} could not be started ({error})") from error
    if done.returncode != 0:
        message = done.stderr.decode("utf-8", errors="replace").strip() or f"exit status {done.returncode}"
        raise GraphvizFailedError(name=name, problem=message.splitlines()[0])
    return done.stdout
