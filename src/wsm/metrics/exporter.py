"""The exporter: reads the groups of this host when it is asked, and answers a scrape. Safe for threads."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from wsm.clock import monotonic_ns
from wsm.errors import RefusedError, WsmError
from wsm.metrics.follow import Followed
from wsm.metrics.history import ServerCounts
from wsm.signals.layout import check_name, segment_path
from wsm.signals.segment import SegmentImage, existing_groups
from wsm.status import GroupStatus
from wsm.status.reading import facts_with_locks
from wsm.typed import typed_calls

#: Whose names of metrics there are aliases for.
Alias: TypeAlias = Literal["vllm"]


@typed_calls
class Exporter:
    """The metrics of groups, read off their segments and journals at each scrape.

    It asks no process and takes no role, so it may run anywhere on the host, several at once, as a process of
    its own or inside an engine. Registered with ``prometheus_client`` (``REGISTRY.register(exporter)``) it is
    a collector like any other; not so where an engine sets ``PROMETHEUS_MULTIPROC_DIR``, which takes none.

    Parameters
    ----------
    name : str or None
        The group; None: every group of this host, as they come and go.
    aliases : collection of str
        ``"vllm"``: repeat the two metrics that vLLM has of weight updates, under its names.
    journals : path or None
        Where the group's journals are; None: where its owner says, else the rings of its segment.
    directory : path or None
        Where segments lie; this user's private directory by default.
    server : ServerCounts or None
        Of the server over HTTP that answers the scrape.

    Raises
    ------
    BadInputError
        If the name cannot be a group's, or an alias is none.
    RefusedError
        If ``prometheus_client`` is not installed.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        aliases: Collection[Alias] = (),
        journals: str | Path | None = None,
        directory: str | Path | None = None,
        server: ServerCounts | None = None,
    ) -> None:
        if importlib.util.find_spec("prometheus_client") is None:
            lacks = "metrics are written by prometheus_client, which is not installed"
            fix = "install the extra: pip install 'wsm[metrics]'"
            raise RefusedError(f"{lacks}; {fix}", code="metrics-not-installed")
        self._name = None if name is None else check_name(name)
        self._journals = None if journals is None else Path(journals)
        self._directory = None if directory is None else Path(directory)
        self._said: dict[str, Any] = {"started_s": time.time(), "aliases": (*aliases,), "server": server}
        self._scraping = threading.Lock()
        self._followed: dict[str, Followed] = {}
        self._known: dict[str, GroupStatus] = {}

    def collect(self) -> list[Any]:
        """Return the families of a scrape, as ``prometheus_client`` asks a collector. Does not block.

        It reads what was written since the last scrape; the first one reads journals from their beginning.
        """
        from wsm.metrics.families import families  # noqa: PLC0415 - an extra

        with self._scraping:
            names = [self._name] if self._name is not None else existing_groups(self._directory)
            read = [self._read(name) for name in names]
            return families(read, now_ns=monotonic_ns(), **self._said)

    def answer(self, accept: str = "") -> tuple[int, Sequence[tuple[str, str]], bytes]:
        """Return status, headers and body for a GET of ``/metrics``.

        Parameters
        ----------
        accept : str
            The request's header ``Accept``: by it the text is Prometheus' or OpenMetrics'.
        """
        return answered(self, accept)

    def _read(self, name: str) -> tuple[GroupStatus, Any]:
        followed = self._followed.setdefault(name, Followed(self._journals))
        path = segment_path(name, self._directory)
        image: SegmentImage | None = None
        try:
            image = SegmentImage.read(path)
        except WsmError as error:
            facts = GroupStatus(name, problem=str(error))
        else:
            facts = facts_with_locks(name, path, image, with_journal=False, known=self._known.get(name))
            self._known[name] = facts
        followed.look(image)
        return facts, followed.history


def answered(collector: Any, accept: str) -> tuple[int, Sequence[tuple[str, str]], bytes]:
    """Return status, headers and body for a scrape of what a collector says."""
    from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 - an extra

    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that it cannot compare
        encode, content_type = choose_encoder("")
    body = encode(collector)  # it asks for no more than collect()
    length = str(len(body))
    headers = ("Content-Type", content_type), ("Content-Length", length), ("Cache-Control", "no-store")
    return 200, headers, body
