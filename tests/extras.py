"""Which packages the library imports, what brings them, and which modules are made of an extra's package.

``tests/test_dependencies.py`` holds this against the source and pyproject.toml, ``.ci/wheel.py`` against a
wheel that is installed bare and with each extra. Its interpreter reads this file, too, which is why nothing
but Python's own is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """A package that the library imports.

    Attributes
    ----------
    distributions : sequence of str
        Which bring it; any one of them does.
    extras : sequence of str
        Which ask for it; where there are none the core does.
    module : str
        What of it is used, where importing the package alone shows nothing.
    """

    distributions: Sequence[str]
    extras: Sequence[str] = ()
    module: str = ""


#: By the name that is imported.
PACKAGES = {
    "click": Package(["click"]),
    "msgspec": Package(["msgspec"]),
    "numpy": Package(["numpy"]),
    "structlog": Package(["structlog"]),
    "transitions": Package(["transitions"]),
    "xxhash": Package(["xxhash"]),
    "yaml": Package(["pyyaml"]),
    "hypothesis": Package(["hypothesis"], ["testing"]),
    "mooncake": Package(["mooncake-transfer-engine-non-cuda"], ["mooncake"], "mooncake.engine"),
    "opentelemetry": Package(["opentelemetry-api"], ["otel"], "opentelemetry.trace"),
    "paddle": Package(["paddlepaddle", "paddlepaddle-gpu"], ["cpu", "gpu"]),
    "torch": Package(["torch"], ["torch"]),
    "httpx": Package(["httpx"], ["http"]),
    "starlette": Package(["starlette"], ["http"], "starlette.applications"),
    "prometheus_client": Package(["prometheus-client"], ["metrics"], "prometheus_client.core"),
    "uvicorn": Package(["uvicorn"], ["http"]),
    "zmq": Package(["pyzmq"], ["ipc-async"]),
    "zstandard": Package(["zstandard"], ["delta"]),
}

#: Modules that cannot be imported without a package of an extra; all others import it inside functions.
MADE_OF = {
    "hypothesis": ("wsm.testing.hypothesis",),
    "uvicorn": (
        "wsm.http._serving",
        *(f"wsm.vllm.{module}" for module in ("api_servers", "endpoint", "gate", "updates", "verbs")),
    ),
    "starlette": (
        "wsm.fleet.member",
        "wsm.fleet.replicas",
        "wsm.fleet.rolling",
        "wsm.fleet.serving",
        "wsm.fleet.watching",
        "wsm.http",
        "wsm.http._serving",
        "wsm.http.answers",
        "wsm.http.app",
        "wsm.http.bodies",
        "wsm.http.client",
        "wsm.http.closed_holds",
        "wsm.http.commands",
        "wsm.http.errors",
        "wsm.http.hold_table",
        "wsm.http.kept",
        "wsm.http.native",
        "wsm.http.native._events",
        "wsm.http.native._openapi",
        "wsm.http.native.routes",
        "wsm.http.native.schema",
        "wsm.http.pinned",
        "wsm.http.security",
        "wsm.http.surface",
        "wsm.http.surfaces",
        "wsm.http.surfaces._call",
        "wsm.http.surfaces._verbs",
        "wsm.http.surfaces.fastdeploy",
        "wsm.http.surfaces.sglang",
        "wsm.http.surfaces.vllm",
        "wsm.http.upstream",
    ),
    "torch": ("wsm.torch", "wsm.torch.memory", "wsm.torch.weights"),
    "zmq": ("wsm.strategies.buckets.channel",),
    "zstandard": ("wsm.strategies.delta._codec",),
    "prometheus_client": ("wsm.metrics.families",),
}

IN_VLLM = ("api_servers", "endpoint", "gate", "options", "pauses", "update_journal", "updates", "verbs")
MADE_OF["starlette"] = (*MADE_OF["starlette"], *(f"wsm.vllm.{module}" for module in IN_VLLM))
#: The client is a part of the package that serves.
MADE_OF["httpx"] = MADE_OF["starlette"]
