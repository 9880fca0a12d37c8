"""What a request can be told that no other part of wsm says."""

from __future__ import annotations

from wsm.errors import BadInputError, GroupError, RefusedError


def unsupported(*, verb: str, reason: str, use_instead: str) -> RefusedError:
    """A verb of a trainer asks for what cannot be promised."""
    return RefusedError(
        f"{verb} is not supported: {reason}; use {use_instead} instead",
        code="unsupported",
        verb=verb,
        reason=reason,
        use_instead=use_instead,
    )


def hold_closed(*, surface: str, verb: str, did: str, reason: str) -> RefusedError:
    """A group that is held since an update was refused, or failed, would serve stale weights."""
    return RefusedError(
        f"the group stays held, since {verb} over {surface} {did} ({reason}) and no update came after "
        "it; update the group, or release it with POST /wsm/v1/release and force",
        code="hold-closed",
        surface=surface,
        verb=verb,
        reason=reason,
    )


def admission_closed(*, why: str) -> RefusedError:
    """A request for text came while none is admitted."""
    return RefusedError(
        f"no request is admitted now: {why}; ask again later", code="admission-closed", why=why
    )


def request_id_used(*, request_id: str, operation: str) -> RefusedError:
    """An idempotency key names another request."""
    return RefusedError(
        f"the request id {request_id!r} names another request of this group, a {operation}; nothing was "
        "changed: draw another",
        code="request-id-used",
        request_id=request_id,
        operation=operation,
    )


def request_unknown(*, request_id: str) -> RefusedError:
    """No request of that name is kept."""
    return RefusedError(
        f"no request {request_id!r} is known here; the oldest receipts are dropped",
        code="request-unknown",
        request_id=request_id,
    )


def server_busy(*, running: int) -> RefusedError:
    """As many commands, or requests, are open as a server lets wait."""
    return RefusedError(
        f"{running} of the kind are under way or wait already; ask again later",
        code="server-busy",
        running=running,
    )


def bad_body(*, field: str, problem: str) -> BadInputError:
    """A request's body, query or header is not what its route takes."""
    return BadInputError(f"{field}: {problem}", code="bad-body", field=field, problem=problem)


def not_found(*, method: str, path: str) -> RefusedError:
    """No route of that name."""
    return RefusedError(
        f"there is no {method} {path} here; GET /wsm/v1/openapi.json lists what there is",
        code="not-found",
        method=method,
        path=path,
    )


def unauthorized() -> RefusedError:
    """A request brings no token, or a wrong one."""
    return RefusedError("give a token of this server: Authorization: Bearer TOKEN", code="unauthorized")


def forbidden(*, why: str) -> RefusedError:
    """A request may not have what it asks for."""
    return RefusedError(f"this is not allowed: {why}", code="forbidden", why=why)


def misdirected(*, host: str) -> RefusedError:
    """A name leads here that was not declared: so does that of a page that means another server."""
    return RefusedError(
        f"the Host {host[:200]!r} is no address and no declared name of this server; ask it by its address, "
        "start it with --allow-host, or give a token",
        code="misdirected",
        host=host,
    )


def body_too_large(*, limit: int) -> RefusedError:
    """A body is longer than a server takes."""
    return RefusedError(
        f"the body has more than {limit} bytes; send less", code="body-too-large", limit=limit
    )


def too_many_headers(*, limit: int) -> RefusedError:
    """A request has more headers than a server looks at."""
    return RefusedError(
        f"the request has more than {limit} headers; send fewer", code="too-many-headers", limit=limit
    )


def body_too_slow(*, seconds: float) -> RefusedError:
    """A body did not arrive."""
    return RefusedError(
        f"the body did not arrive within {seconds:g} s; send it faster", code="body-too-slow", seconds=seconds
    )


def bad_token_file(*, file: str, problem: str) -> BadInputError:
    """The file of tokens cannot be used."""
    return BadInputError(f"{file}: {problem}", code="bad-token-file", file=file, problem=problem)


def bad_tls_file(*, file: str, problem: str) -> BadInputError:
    """The files of TLS cannot be used."""
    return BadInputError(f"{file}: {problem}", code="bad-tls-file", file=file, problem=problem)


def bad_network(*, network: str, problem: str) -> BadInputError:
    """What is to be trusted is no network."""
    return BadInputError(
        f"--trust {network}: {problem}", code="bad-network", network=network, problem=problem
    )


def bad_address(*, address: str, problem: str) -> BadInputError:
    """A server cannot be where it was asked to be."""
    return BadInputError(f"{address}: {problem}", code="bad-http-address", address=address, problem=problem)


def upstream_unreachable(*, url: str, reason: str) -> GroupError:
    """The server behind this one does not answer."""
    return GroupError(
        f"the upstream {url} does not answer ({reason}); start it, or ask again",
        code="upstream-unreachable",
        url=url,
        reason=reason,
    )
