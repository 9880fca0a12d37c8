"""Which replicas a fleet has, and which token goes to which of them.

A token goes where the local token file says, and never where a list says: that may come from elsewhere.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec

from wsm.errors import BadInputError, RefusedError, coded
from wsm.http.client import AsyncClient
from wsm.http.security import is_loopback, token_lines
from wsm.payload import PayloadError, convert

_LIST_S = 30.0


class Replica(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One replica: the address of its server, and what is to be known to ask it.

    Parameters
    ----------
    url : str
        ``http://HOST:PORT``, ``https://`` or ``unix:PATH``.
    group : str or None
        The group that is meant; another one's server refuses.
    token_file : str or None
        A local file of lines ``PREFIX TOKEN``; only a list on this host may name one.
    ca : str or None
        A local file of certificates, for https.
    """

    url: str
    group: str | None = None
    token_file: str | None = None
    ca: str | None = None


@coded("bad-replicas")
def bad_replicas(*, where: str, problem: str) -> BadInputError:
    """What should list replicas does not."""
    return BadInputError(f"the list of replicas {where} cannot be used: {problem}")


@coded("fleet-shrinks")
def fleet_shrinks(*, replicas: int, before: int) -> RefusedError:
    """A list has less than half of the replicas that the fleet had."""
    return RefusedError(
        f"the list has {replicas} replicas and the fleet had {before}, so it may not be whole; look at it, "
        "or say --force"
    )


@coded("token-in-the-clear")
def token_in_the_clear(*, url: str) -> RefusedError:
    """A token would go over plain HTTP to another host."""
    return RefusedError(f"a token would go to {url} in the clear; use https, or say --insecure")


def read_replicas(said: str) -> tuple[Replica, ...]:
    """Return the replicas of a list: a file, a URL that returns one, or addresses with commas between.

    Raises
    ------
    BadInputError
        If it is empty, names a replica twice, or is none (code ``bad-replicas``).
    """
    is_local = not said.startswith(("http://", "https://", "unix:"))
    if is_local:
        try:
            found = _listed(said, Path(said).read_bytes())
        except OSError as error:
            raise bad_replicas(where=said, problem=error.strerror or str(error)) from None
    elif "," in said or said.startswith("unix:") or httpx.URL(said).path in ("", "/"):
        found = tuple(Replica(url.strip().rstrip("/")) for url in said.split(",") if url.strip())
    else:
        try:
            answer = httpx.get(said, timeout=_LIST_S, trust_env=False).raise_for_status()
        except httpx.HTTPError as error:
            raise bad_replicas(where=said, problem=f"{type(error).__name__}: {error}") from None
        found = _listed(said, answer.content)
    urls = [each.url for each in found]
    if not found:
        raise bad_replicas(where=said, problem="it is empty")
    if twice := [url for url in urls if urls.count(url) > 1]:
        raise bad_replicas(where=said, problem=f"{twice[0]} stands there twice")
    if not is_local and any(each.token_file or each.ca for each in found):
        raise bad_replicas(
            where=said, problem="it names files of this host, which a list from elsewhere may not"
        )
    return found


def _listed(where: str, content: bytes) -> tuple[Replica, ...]:
    try:
        said = json.loads(content)
        if isinstance(said, list):
            said = [{"url": each} if isinstance(each, str) else each for each in said]
        found = convert(_ReplicaList, {"replicas": said}).replicas
    except (ValueError, PayloadError) as error:
        raise bad_replicas(where=where, problem=str(error)) from None
    return tuple(msgspec.structs.replace(each, url=each.url.rstrip("/")) for each in found)


class _ReplicaList(msgspec.Struct, frozen=True):
    replicas: tuple[Replica, ...]


class Connections:
    """The ways to replicas: a client of each, over one pool of connections, with its own token.

    Parameters
    ----------
    token_file : path or None
        Lines ``PREFIX TOKEN``, mode 0600: the token goes to addresses that begin so.
    insecure : bool
        Whether a token may go over plain HTTP to another host.
    """

    def __init__(self, *, token_file: Path | None = None, insecure: bool = False) -> None:
        self._tokens = {} if token_file is None else _tokens(token_file)
        self._insecure = insecure
        self._pools: dict[str | None, httpx.AsyncHTTPTransport] = {}

    def require_safe(self, replicas: Sequence[Replica]) -> None:
        """Look that every token may go where it would (codes ``token-in-the-clear``, ``bad-replicas``)."""
        for replica in replicas:
            self._token(replica)

    def client(self, replica: Replica) -> AsyncClient:
        """Return a client of one replica. The caller leaves it open: others use its pool."""
        place = replica.url if replica.url.startswith("unix:") else replica.ca
        pool = self._pools.get(place)
        if pool is None:
            uds = replica.url.removeprefix("unix:") if place == replica.url else None
            trusted = ssl.create_default_context(cafile=replica.ca)
            pool = self._pools[place] = httpx.AsyncHTTPTransport(verify=trusted, uds=uds)
        return AsyncClient(replica.url, token=self._token(replica), transport=pool, group=replica.group)

    async def close(self) -> None:
        """Let go of all connections."""
        for pool in self._pools.values():
            await pool.aclose()

    def _token(self, replica: Replica) -> str | None:
        tokens = self._tokens if replica.token_file is None else _tokens(Path(replica.token_file))
        fitting = [prefix for prefix in tokens if _begins(replica.url, prefix)]
        if not fitting:
            return None
        url = httpx.URL(replica.url)
        if url.scheme == "http" and not (self._insecure or is_loopback(url.host)):
            raise token_in_the_clear(url=replica.url)
        return tokens[max(fitting, key=len)]


def _tokens(file: Path) -> Mapping[str, str]:
    pairs = token_lines(file, lambda problem: bad_replicas(where=str(file), problem=problem))
    if any(len(pair) != 2 for pair in pairs):
        raise bad_replicas(where=str(file), problem="a line is not 'PREFIX TOKEN'")
    return dict(pairs)


def _begins(url: str, prefix: str) -> bool:
    """Whether an address begins so, host and port whole: no longer name of another host fits."""
    asked, said = httpx.URL(url), httpx.URL(prefix)
    same: Any = (asked.scheme, asked.host, asked.port) == (said.scheme, said.host, said.port)
    return bool(same) and asked.path.startswith(said.path.rstrip("/"))
