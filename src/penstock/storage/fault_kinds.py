"""Tell what an error says about its store: unavailable, refused, gone, changed, or nothing.

`faults` asks when a request has failed. Clients of stores have error classes of their own; they are recognised by
attributes, names and text, so that no client has to be imported.
"""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import PenstockError, StoreError, StoreRefused, StoreUnavailable

if TYPE_CHECKING:
    Fault = Literal["unavailable", "refused", "gone", "changed"]

_UNAVAILABLE_ERRNOS = frozenset(
    getattr(errno, name)
    for name in (
        "EAGAIN", "EBUSY", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EHOSTDOWN", "EHOSTUNREACH", "EINTR", "EIO",
        "EMFILE", "ENETDOWN", "ENETRESET", "ENETUNREACH", "ENFILE", "ENOBUFS", "ENOMEM", "ENOTCONN", "EPIPE",
        "EREMOTEIO", "ESHUTDOWN", "ESTALE", "ETIMEDOUT",
    )
    if hasattr(errno, name)
)  # fmt: skip
_UNAVAILABLE_CLASSES = frozenset({
    "ChunkedEncodingError", "ClientConnectionError", "ClientPayloadError", "ConnectTimeoutError",
    "ConnectionClosedError", "ConnectionError", "DeadlineExceeded", "EOFError", "EndpointConnectionError",
    "HTTPClientError", "IncompleteRead", "IncompleteReadError", "MaxRetryError", "MemoryError", "ProtocolError",
    "ReadTimeoutError", "ResponseStreamingError", "RetryError", "SSHException", "SSLError", "ServerDisconnectedError",
    "ServiceRequestError", "ServiceResponseError", "ServiceUnavailable", "Timeout", "TimeoutError", "TooManyRequests",
    "TransportError", "gaierror", "herror",
})  # fmt: skip
"""Of botocore, aiohttp, urllib3, requests, azure-core, google-api-core, google-auth, paramiko, http.client and Python
itself. An EOFError is what paramiko makes of a lost connection; no reader of ours raises it for damaged data."""
_REFUSED_CLASSES = frozenset({
    "ClientAuthenticationError", "CredentialRetrievalError", "CredentialUnavailableError", "DefaultCredentialsError",
    "NoAuthTokenError", "NoCredentialsError", "PartialCredentialsError", "PermissionError", "RefreshError",
    "SSOTokenLoadError", "TokenRetrievalError", "UnauthorizedSSOTokenError",
})  # fmt: skip
_REFUSED_CODES = re.compile(
    "access_?denied|account_?problem|all_?access_?disabled|expired_?token|invalid_?access_?key_?id|"
    "invalid_?client_?token_?id|invalid_?token|permission_?denied|(missing|invalid)_?authentication_?token|"
    "signature_?does_?not_?match|unauthenticated|unrecognized_?client.*|authentication_?failed|authorization_?failure",
    re.IGNORECASE,
)
_GONE_CODES = re.compile("no_?such_?(key|bucket|version|upload)|(resource_|blob_|container_)?not_?found", re.IGNORECASE)
_STORE_ANSWER = re.compile(
    r"AWS Error (?P<aws>\w+)|google::cloud::Status\((?P<google>\w+)|Azure Error: \[(?P<azure>\w*)\]"
)
"""How pyarrow's own clients report what the store said: all their errors are OSError with a text."""
_STATUS_FAULTS: dict[int | None, Fault] = {
    401: "refused", 403: "refused", 407: "refused", 404: "gone", 410: "gone", 412: "changed", 416: "changed",
}  # fmt: skip
"""412: another entity tag; 416: a shorter file."""
_HTTP_STATUS = re.compile(r"\bHTTP status(?: code)?:? (\d{3})\b")


def fault_of(error: BaseException) -> Fault | None:
    """Return what an error says about its store, or None if it says nothing: the data may be damaged then.

    Looks at the error and at its causes, the outermost first. Two kinds count only where no cause says more: an I/O
    error (EIO), as which mounted stores report any lost connection, is unavailable; and FileNotFoundError is gone,
    which fsspec's HTTP client raises for every failure.
    """
    return _verdict(error)[0]


def _verdict(error: BaseException) -> tuple[Fault | None, BaseException]:
    """Return the fault, and the error among the causes that shows it."""
    vague: tuple[Fault | None, BaseException] = None, error
    seen: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in seen:
        found = _fault(one)
        if found is not None and getattr(one, "errno", None) != errno.EIO and not isinstance(one, FileNotFoundError):
            return found, one
        if vague[0] is None:
            vague = found, one
        seen.append(one)
        one = one.__cause__
    return vague


def _fault(error: BaseException) -> Fault | None:
    """Judge one error without its causes."""
    if isinstance(error, PenstockError):
        if isinstance(error, StoreError):
            return "refused" if isinstance(error, StoreRefused) else "unavailable"
        return "gone" if isinstance(error, FileNotFoundError) else None
    code, status = _answer(error)
    if code is not None and _REFUSED_CODES.fullmatch(code):
        return "refused"
    if isinstance(error, FileNotFoundError) or (code is not None and _GONE_CODES.fullmatch(code)):
        return "gone"
    if status in _STATUS_FAULTS:
        return _STATUS_FAULTS[status]
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _REFUSED_CLASSES:
        return "refused"
    # Any other answer (5xx, 429, 400 with S3's RequestTimeout) is still one of a store, not a damaged page.
    if names & _UNAVAILABLE_CLASSES or code is not None or status is not None:
        return "unavailable"
    return "unavailable" if getattr(error, "errno", None) in _UNAVAILABLE_ERRNOS else None


def _answer(error: BaseException) -> tuple[str | None, int | None]:
    """Return the error code and the HTTP status that a client has put into its error; None where there is none."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        details, metadata = response.get("Error") or {}, response.get("ResponseMetadata") or {}
        return details.get("Code"), _status(metadata.get("HTTPStatusCode"))
    for holder, names in ((error, ("status", "status_code", "http_status", "code")), (response, ("status_code",))):
        for name in names:
            status = _status(getattr(holder, name, None))
            if status is not None:
                return None, status
    if isinstance(error, OSError):
        text = str(error)
        said, status_text = _STORE_ANSWER.search(text), _HTTP_STATUS.search(text)
        return said and (said["aws"] or said["google"] or said["azure"]), _status(status_text and status_text[1])
    return None, None


def _status(value: Any) -> int | None:
    """Return an HTTP status that is an error; None for anything else that such an attribute may hold."""
    try:
        status = int(value)
    except (TypeError, ValueError):
        return None
    return status if 400 <= status < 600 else None


def store_error(error: BaseException, url: str, *, attempts: int = 1) -> StoreError | None:
    """Return the error to raise in place of one that is a fault of the store; None if it is not one.

    A `StoreError` is returned unchanged.
    """
    if isinstance(error, StoreError):
        return error
    fault, cause = _verdict(error)
    reason = f"{type(cause).__name__}: {cause}".rstrip(": ")
    if fault == "refused":
        return StoreRefused(
            f"{url}: access refused ({reason}); check the permissions and the credentials (storage_options=, or where "
            "the library of the store looks for them)",
            url=url,
        )
    if fault == "unavailable":
        tries = f"{attempts} attempts" if attempts > 1 else "1 attempt"
        return StoreUnavailable(
            f"{url} is unavailable after {tries} ({reason}); this says nothing about the data: check the network and "
            "the store, and start again",
            url=url,
            attempts=attempts,
        )
    return None
