"""Errors of stores are told from damaged data: unavailable is tried again, refused is raised at once."""

import errno
import http.client
import http.server
import socket
import threading

import pyarrow as pa
import pytest

from penstock import halt
from penstock.errors import BadFile, DatasetNotFound, StoreRefused, StoreUnavailable
from penstock.storage import faults
from penstock.storage.fault_kinds import fault_of, store_error
from penstock.storage.faults import ATTEMPTS, attempt


def named(name: str, *bases: type, **attributes: object) -> Exception:
    """Return an error of a class of that name, as a library that is not installed here would raise it."""
    error = type(name, bases or (Exception,), {})("the message")
    vars(error).update(attributes)
    return error


def botocore(code: str, status: int) -> Exception:
    response = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return named("ClientError", response=response)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class _Response:
    status_code = 503


UNAVAILABLE = {
    "time-out": TimeoutError("timed out"),
    "reset": ConnectionResetError("reset by peer"),
    "errno": OSError(errno.ETIMEDOUT, "timed out"),
    "descriptors": OSError(errno.EMFILE, "Too many open files"),
    "memory": MemoryError(),
    "arrow memory": pa.ArrowMemoryError("malloc of size 64 failed"),
    "mounted store": OSError(errno.EIO, "Input/output error"),
    "name server": socket.gaierror(-3, "Temporary failure in name resolution"),
    "cut body": http.client.IncompleteRead(b"", 10),
    "aiohttp status": named("ClientResponseError", status=503),
    "aiohttp payload": named("ClientPayloadError"),
    "gcsfs": named("HttpError", code=429),
    "azure": named("HttpResponseError", status_code=500),
    "lost connection of paramiko": EOFError(),
    "paramiko": named("SSHException"),
    "aiohttp disconnected": named("ServerDisconnectedError"),
    "google": named("ServiceUnavailable"),
    "bad request": named("ClientResponseError", OSError, status=400),
    "botocore time-out of a body": botocore("RequestTimeout", 400),
    "requests": named("HTTPError", OSError, response=_Response()),
    "requests connection": named("ConnectionError", OSError),
    "botocore": botocore("SlowDown", 503),
    "botocore time-out": named("ReadTimeoutError"),
    "s3fs": caused(OSError(errno.EBUSY, "Please reduce your request rate"), botocore("SlowDown", 503)),
    "behind another": caused(ValueError("cannot open"), TimeoutError()),
    "arrow s3": OSError(
        "When reading information for key 'k' in bucket 'b': AWS Error NETWORK_CONNECTION during HeadObject"
    ),
    "arrow s3 status": OSError("AWS Error UNKNOWN (HTTP status 503) during GetObject operation: No response body."),
    "arrow gcs": OSError("google::cloud::Status(UNAVAILABLE: Retry policy exhausted)"),
    "arrow azure": OSError("GetProperties failed. Azure Error: [] Fail to get a new connection for: https://x"),
    "fsspec http": caused(FileNotFoundError("http://x"), named("ClientResponseError", status=503)),
}
REFUSED = {
    "local": PermissionError(errno.EACCES, "Permission denied"),
    "aiohttp": named("ClientResponseError", status=401),
    "azure": named("ClientAuthenticationError", status_code=401),
    "no credentials": named("NoCredentialsError"),
    "google": named("DefaultCredentialsError"),
    "botocore": botocore("AccessDenied", 403),
    "expired": botocore("ExpiredToken", 400),
    "s3fs": caused(OSError(errno.EIO, "The provided token has expired"), botocore("ExpiredToken", 400)),
    "arrow s3": OSError("AWS Error ACCESS_DENIED during HeadObject operation: No response body."),
    "arrow gcs": OSError("google::cloud::Status(PERMISSION_DENIED: no)"),
    "fsspec http": caused(FileNotFoundError("http://x"), named("ClientResponseError", status=403)),
}
GONE = {
    "local": FileNotFoundError(errno.ENOENT, "No such file"),
    "botocore": botocore("NoSuchKey", 404),
    "aiohttp": named("ClientResponseError", status=404),
    "status of an OSError": named("HTTPError", OSError, status=404),
    "no longer": named("HTTPError", OSError, status=410),
    "arrow s3": OSError("AWS Error NO_SUCH_BUCKET during HeadObject operation"),
    "ours": DatasetNotFound("nothing there"),
    "fsspec http": caused(FileNotFoundError("http://x"), named("ClientResponseError", status=404)),
}
CHANGED = {
    "other etag": named("HttpResponseError", status_code=412),
    "shorter": botocore("InvalidRange", 416),
}
NEITHER = {
    "damaged page": OSError("Corrupt snappy compressed data."),
    "short page": OSError("Unexpected end of stream"),
    "thrift": OSError("Couldn't deserialize thrift: TProtocolException: Invalid data"),
    "arrow": pa.ArrowInvalid("Parquet magic bytes not found in footer"),
    "a folder": IsADirectoryError(errno.EISDIR, "Is a directory"),
    "disk full": OSError(errno.ENOSPC, "No space left on device"),
    "a bug": TypeError("unhashable"),
    "ours": BadFile("damaged", path="x"),
    "no error status": named("Odd", code=200),
    "callable code": named("RpcError", code=lambda: 503),
}


KINDS = {"unavailable": UNAVAILABLE, "refused": REFUSED, "gone": GONE, "changed": CHANGED, None: NEITHER}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        pytest.param(error, kind, id=f"{kind}: {name}")
        for kind, errors in KINDS.items()
        for name, error in errors.items()
    ],
)
def test_errors_of_all_libraries_are_of_one_kind(error, kind):
    assert fault_of(error) == kind


def test_causes_that_go_in_a_circle_end():
    error = ValueError("a")
    error.__cause__ = error
    assert fault_of(error) is None


class Failing:
    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "bytes"


def test_an_unavailable_store_is_asked_again_after_growing_pauses(pauses):
    request = Failing(*[TimeoutError("slow")] * (ATTEMPTS - 1))
    assert attempt(request, "s3://b/k") == "bytes"
    assert request.calls == ATTEMPTS
    assert len(pauses) == ATTEMPTS - 1
    assert all(0.1 * 2**number <= one <= 0.2 * 2**number for number, one in enumerate(pauses[:4]))
    assert max(pauses) <= 5.0


def test_the_last_attempt_ends_in_an_error_that_names_url_and_attempts(pauses):
    request = Failing(*[TimeoutError("slow")] * 100)
    with pytest.raises(
        StoreUnavailable, match=rf"^s3://b/k is unavailable after {ATTEMPTS} attempts \(TimeoutError: slow\)"
    ) as f:
        attempt(request, "s3://b/k")
    assert (f.value.url, f.value.attempts, request.calls) == ("s3://b/k", ATTEMPTS, ATTEMPTS)
    assert isinstance(f.value.__cause__, TimeoutError)
    assert "damage" not in str(f.value)


def test_a_refusal_is_raised_at_once(pauses):
    request = Failing(*[PermissionError("no")] * 9)
    with pytest.raises(StoreRefused, match=r"^s3://b/k: access refused \(PermissionError: no\)") as found:
        attempt(request, "s3://b/k")
    assert request.calls == 1
    assert not pauses
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("error", NEITHER.values(), ids=NEITHER)
def test_other_errors_pass_unchanged(error, pauses):
    request = Failing(error)
    with pytest.raises(type(error)) as found:
        attempt(request, "x")
    assert found.value is error
    assert request.calls == 1


def test_a_request_inside_another_is_not_repeated_twice(pauses):
    request = Failing(*[TimeoutError()] * 100)
    with pytest.raises(StoreUnavailable, match="inner"):
        attempt(lambda: attempt(request, "inner"), "outer")
    assert request.calls == ATTEMPTS


def test_no_further_attempt_when_the_first_ones_took_too_long(pauses, monkeypatch):
    monkeypatch.setattr(faults, "_LONGEST_S", -1.0)
    request = Failing(*[TimeoutError()] * 9)
    with pytest.raises(StoreUnavailable, match="after 1 attempt "):
        attempt(request, "x")
    assert request.calls == 1


def test_work_that_was_stopped_does_not_wait_for_the_store():
    halted = threading.Event()
    halted.set()
    request = Failing(*[TimeoutError()] * 9)
    with halt.until(halted), pytest.raises(StoreUnavailable):
        attempt(request, "x")
    assert request.calls == 1


def test_the_cause_that_tells_is_named():
    error = caused(FileNotFoundError("http://x"), named("ClientResponseError", status=403))
    assert "(ClientResponseError: the message)" in str(store_error(error, "http://x"))


def test_store_errors_stay_the_same_object():
    error = StoreUnavailable("x", url="x", attempts=2)
    assert store_error(error, "y") is error
    assert store_error(ValueError("x"), "y") is None


@pytest.mark.parametrize(
    ("status", "kind"), [(401, "refused"), (403, "refused"), (404, "gone"), (429, "unavailable"), (503, "unavailable")]
)
def test_the_s3_client_of_pyarrow_is_understood(status, kind):
    fs = pytest.importorskip("pyarrow.fs")

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        store = fs.S3FileSystem(
            access_key="key",
            secret_key="secret",
            region="us-east-1",
            scheme="http",
            endpoint_override=f"127.0.0.1:{server.server_port}",
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
        )
        with pytest.raises(OSError, match="k") as found:
            store.open_input_file("bucket/key")
        server.shutdown()
    assert fault_of(found.value) == kind
