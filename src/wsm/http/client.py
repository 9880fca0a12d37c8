"""Programs that command a group over HTTP: :class:`Client`, :class:`AsyncClient`; wsm's own errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar, final
from urllib.parse import quote

import httpx

from wsm.errors import GroupError
from wsm.http import errors
from wsm.http.answers import error_of, json_bytes
from wsm.http.commands import plain_arguments
from wsm.receipt import Receipt
from wsm.typed import typed_calls

#: Seconds that a server may take to answer what only reads: more than a fleet's look waits for it.
_ANSWER_S: Final = 15.0
#: Seconds beyond a command's own deadlines that an answer may take.
_MARGIN_S: Final = 30.0
#: Seconds in which a stream of events says something.
_EVENTS_S: Final = 60.0
_DEADLINES: Final = {"update": 300.0, "prepare": 300.0}


_Http = TypeVar("_Http")


class _Asking(Generic[_Http]):
    """What both clients share: where the server is, what is sent, and what its answers mean."""

    _client: _Http

    def _begin(
        self, kind: Callable[..., _Http], uds: Callable[..., object], url: str, transport: object, **said: Any
    ) -> None:
        """Make the client of httpx; raises BadInputError (``bad-http-address``)."""
        self.url = url
        path = url.removeprefix("unix:") if url.startswith("unix:") else None
        base = parsed_url(
            "http://localhost" if path is not None else url, "say http://HOST:PORT or unix:PATH"
        )
        token, group = said["token"], said["group"]
        headers = {"Authorization": token and f"Bearer {token}", "X-Wsm-Group": group}
        self._client = kind(
            base_url=base,
            headers={name: value for name, value in headers.items() if value is not None},
            trust_env=False,
            timeout=_ANSWER_S,
            verify=base.scheme == "https",  # else no certificate is looked at, and reading them takes 20 ms
            transport=transport or (None if path is None else uds(uds=path, verify=False)),
        )

    def _command(self, operation: str, request_id: str | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
        deadline_s = keywords.get("deadline_s") or _DEADLINES.get(operation, 60.0)
        waits_s = keywords.get("wait_s") or deadline_s
        seconds = deadline_s + waits_s + (keywords.get("settle_s") or 30.0) + _MARGIN_S
        decides = operation in ("commit", "abort")
        said = {**keywords, "request_id": request_id} if decides else keywords
        return {
            "method": "POST",
            "url": f"/wsm/v1/{operation}",
            "content": json_bytes(plain_arguments(said)),
            "headers": {} if decides or request_id is None else {"Idempotency-Key": request_id},
            "timeout": httpx.Timeout(seconds, connect=10.0),
        }

    def _receipt(self, answer: httpx.Response) -> Receipt:
        said = self._content(answer)
        try:
            return Receipt.from_mapping(said["receipt"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._foreign(f"{type(error).__name__}: {error}") from error

    def _content(self, answer: httpx.Response, *also: int) -> dict[str, Any]:
        try:
            said = answer.json()
        except ValueError:
            said = answer.text[:500]
        if answer.status_code != 200 and answer.status_code not in also:
            raise error_of(said, status=answer.status_code)
        if not isinstance(said, dict):
            raise self._foreign(f"it says {str(said)[:100]!r}")
        return said

    def _foreign(self, problem: str) -> GroupError:
        return GroupError(
            f"{self.url} does not answer as wsm does ({problem}); is it a server of wsm?", code="http-status"
        )

    def _unreachable(self, error: httpx.HTTPError) -> GroupError:
        return errors.upstream_unreachable(url=self.url, reason=f"{type(error).__name__}: {error}")


@typed_calls
@final
class Client(_Asking[httpx.Client]):
    """Commands a group through a server of wsm. Blocks; safe for threads.

    Parameters
    ----------
    url : str
        ``http://HOST:PORT``, ``https://``, or ``unix:PATH``.
    token : str or None
        Of the server's token file.
    transport : httpx transport or None
        How it is reached; None: as the URL says. No proxy of the environment is used.
    group : str or None
        The group that is meant: another one's server refuses each request (code ``wrong-group``).
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        transport: httpx.BaseTransport | None = None,
        group: str | None = None,
    ) -> None:
        self._begin(httpx.Client, httpx.HTTPTransport, url, transport, token=token, group=group)

    def command(self, operation: str, request_id: str | None = None, **keywords: Any) -> Receipt:
        """Give one command; an error that the group raised is raised by its own type.

        Parameters
        ----------
        operation : str
            ``clear``, ``update``, ``hold``, ``release``, ``prepare``, ``commit`` or ``abort``.
        request_id : str or None
            The command's name, under which it is done once; of ``commit`` and ``abort`` the ``prepare``'s.
        **keywords
            Of the method of that name of :class:`wsm.Controller`; ``prepare`` is its ``lease``.
        """
        return self._receipt(self._ask(**self._command(operation, request_id, keywords)))

    def status(self) -> dict[str, Any]:
        """Return what ``wsm status --json`` prints."""
        return self._content(self._ask(url="/wsm/v1/status"))

    def explain(self) -> dict[str, Any]:
        """Return what ``wsm explain --json`` prints."""
        return self._content(self._ask(url="/wsm/v1/explain"))

    def ready(self) -> bool:
        """Whether the group serves."""
        return bool(self._content(self._ask(url="/wsm/v1/ready"), 503).get("serving"))

    def request(self, request_id: str) -> dict[str, Any]:
        """Return what became of a request."""
        return self._content(self._ask(url=_place_of(request_id)))

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield journal lines as they are written, until the caller stops."""
        try:
            with self._client.stream("GET", "/wsm/v1/events", timeout=_EVENTS_S) as answer:
                if answer.status_code != 200:
                    answer.read()
                    self._content(answer)
                yield from filter(None, map(_event, answer.iter_lines()))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _ask(self, method: str = "GET", **request: Any) -> httpx.Response:
        try:
            return self._client.request(method, **request)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@typed_calls
@final
class AsyncClient(_Asking[httpx.AsyncClient]):
    """As :class:`Client`, for coroutines. To cancel a call leaves its command as it is, under its request id.

    Parameters
    ----------
    url, token, transport, group
        As :class:`Client`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        group: str | None = None,
    ) -> None:
        self._begin(httpx.AsyncClient, httpx.AsyncHTTPTransport, url, transport, token=token, group=group)

    async def command(self, operation: str, request_id: str | None = None, **keywords: Any) -> Receipt:
        """As :meth:`Client.command`."""
        return self._receipt(await self._ask(**self._command(operation, request_id, keywords)))

    async def status(self) -> dict[str, Any]:
        """Return what ``wsm status --json`` prints."""
        return self._content(await self._ask(url="/wsm/v1/status"))

    async def explain(self) -> dict[str, Any]:
        """Return what ``wsm explain --json`` prints."""
        return self._content(await self._ask(url="/wsm/v1/explain"))

    async def ready(self) -> bool:
        """Whether the group serves."""
        answer = await self._ask(url="/wsm/v1/ready")
        return bool(self._content(answer, 503).get("serving"))

    async def request(self, request_id: str) -> dict[str, Any]:
        """Return what became of a request."""
        return self._content(await self._ask(url=_place_of(request_id)))

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield journal lines as they are written, until the caller stops."""
        try:
            async with self._client.stream("GET", "/wsm/v1/events", timeout=_EVENTS_S) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    self._content(answer)
                async for line in answer.aiter_lines():
                    if event := _event(line):
                        yield event
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    async def _ask(self, method: str = "GET", **request: Any) -> httpx.Response:
        try:
            return await self._client.request(method, **request)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def parsed_url(url: str, needs: str) -> httpx.URL:
    """Return the URL of a server; raises BadInputError (``bad-http-address``), which says what it `needs`."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise errors.bad_address(address=url, problem=str(error)) from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise errors.bad_address(address=url, problem=needs)
    return parsed


def _place_of(request_id: str) -> str:
    return f"/wsm/v1/commands/{quote(request_id, safe='')}"


def _event(line: str) -> dict[str, Any] | None:
    return dict(json.loads(line.removeprefix("data: "))) if line.startswith("data: ") else None
