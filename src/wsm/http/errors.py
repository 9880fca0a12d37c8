"""What a request can be told that no other part of wsm says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from wsm.errors import BadInputError, GroupError, RefusedError, coded


@coded("unsupported")
def unsupported(*, verb: str, reason: str, use_instead: str) -> RefusedError:
    """A verb of a trainer asks for what cannot be promised."""
    return RefusedError(f"{verb} is not supported: {reason}; use {use_instead} instead")


@coded("not-all")
def not_all(*, verb: str, table: Sequence[Mapping[str, object]]) -> RefusedError:
    """A command of many groups was not done by all of them."""
    told = "; ".join(f"{row['replica']}: {row['code']}" for row in table if row["code"] is not None)
    return RefusedError(
        f"the {verb} was not done by all of {len(table)} replicas ({told}); see to them, and ask again"
    )


@coded("another-version")
def another_version(*, asked: str, held: str | None) -> RefusedError:
    """A request for text is pinned to another version than the group holds, or held at its end."""
    return RefusedError(
        f"the request is for version {asked!r}, and the group holds {held!r}; ask for the one that is held, "
        "or ask another replica"
    )


@coded("request-unknown")
def request_unknown(*, request_id: str) -> RefusedError:
    """No request of that name is kept."""
    return RefusedError(f"no request {request_id!r} is known here; the oldest receipts are dropped")


@coded("request-id-used")
def request_id_used(*, request_id: str, operation: str) -> RefusedError:
    """A request id names another request already."""
    return RefusedError(
        f"the request id {request_id!r} names another request of this group, a {operation}; "
        "nothing was changed: draw another"
    )


@coded("server-busy")
def server_busy(*, running: int) -> RefusedError:
    """As many commands, or requests, are open as a server lets wait."""
    return RefusedError(f"{running} of the kind are under way or wait already; ask again later")


@coded("bad-body")
def bad_body(*, field: str, problem: str) -> BadInputError:
    """A request's body, query or header is not what its route takes."""
    return BadInputError(f"{field}: {problem}")


@coded("not-found")
def not_found(*, method: str, path: str) -> RefusedError:
    """No route of that name."""
    return RefusedError(f"there is no {method} {path} here; GET /wsm/v1/openapi.json lists what there is")


@coded("method-not-allowed")
def method_not_allowed(*, method: str, path: str, allow: str) -> RefusedError:
    """A route takes another method."""
    return RefusedError(f"{path} takes {allow}, and not {method}")


def unauthorized() -> RefusedError:
    """A request brings no token, or a wrong one."""
    return RefusedError("give a token of this server: Authorization: Bearer TOKEN", code="unauthorized")


@coded("forbidden")
def forbidden(*, why: str) -> RefusedError:
    """A request may not have what it asks for."""
    return RefusedError(f"this is not allowed: {why}")


@coded("wrong-group")
def wrong_group(*, asked: str, group: str) -> RefusedError:
    """A request names another group than this server's: it was meant for another port."""
    return RefusedError(
        f"this server commands the group {group!r}, and the request is for {asked[:200]!r}; nothing was "
        "changed: ask that group's server"
    )


@coded("body-too-large")
def body_too_large(*, limit: int) -> RefusedError:
    """A body is longer than a server takes."""
    return RefusedError(f"the body has more than {limit} bytes; send less")


def too_many_headers(*, limit: int, of: str = "headers") -> RefusedError:
    """A request has more headers, or bytes of them, than a server looks at."""
    return RefusedError(
        f"the request has more than {limit} {of}; send fewer", code="too-many-headers", limit=limit
    )


def _bad_setting(code: str, *, problem: str, **named: Any) -> BadInputError:
    [what] = named.values()
    return BadInputError(f"{what}: {problem}", code=code, problem=problem, **named)


#: The file of tokens, or those of TLS, cannot be used; what is to be trusted is no network; and a server
#: cannot be where it was asked to be.
bad_token_file = partial(_bad_setting, "bad-token-file")
bad_tls_file = partial(_bad_setting, "bad-tls-file")
bad_network = partial(_bad_setting, "bad-network")
bad_address = partial(_bad_setting, "bad-http-address")


@coded("upstream-unreachable")
def upstream_unreachable(*, url: str, reason: str) -> GroupError:
    """The server behind this one does not answer."""
    return GroupError(f"the upstream {url} does not answer ({reason}); start it, or ask again")
