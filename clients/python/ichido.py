"""Ichido from Python: submit jobs, follow them, work on them.

One file, the standard library only, Python 3.9 or later. Copy it, or put its folder on your path.

    client = ichido.Client('https://jobs.example.org', token='…')
    job = client.submit('resize', {'url': url, 'width': 80}, queue='media', key=f'thumb-{image_id}')
    print(client.result(job.id))

    def resize(run):
        run.progress({'percent': 40})
        return {'bytes': make_thumbnail(run.payload['url'], run.payload['width'])}

    worker = ichido.Worker('https://jobs.example.org', 'ichido_enroll_…', queues=['media'], handlers={'resize': resize})
    worker.run()

On the command line: `python3 ichido.py --help`.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import ctypes
import dataclasses
import email.utils
import errno
import hashlib
import http.client
import importlib
import ipaddress
import itertools
import json
import logging
import math
import os
import platform
import queue as queues_of_threads
import random
import re
import selectors
import shutil
import signal
import socket
import ssl
import stat
import sys
import threading
import time
import traceback as tracebacks
import urllib.parse
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

__all__ = [
    'Client', 'Event', 'Fatal', 'Forbidden', 'IchidoError', 'Job', 'JobFailed', 'KeyReused', 'NotFound',
    'QuotaExceeded', 'Refused', 'ResultNotReady', 'Run', 'Stopped', 'Submission', 'Unauthenticated', 'Unreachable',
    'Worker',
]  # fmt: skip

log = logging.getLogger('ichido')


def _speak_up() -> None:
    """If the program has not set up logging, messages go to stderr."""
    if log.hasHandlers():
        return
    stderr = logging.StreamHandler()
    stderr.setFormatter(_Plain('ichido: %(message)s'))
    log.addHandler(stderr)
    log.setLevel(logging.INFO)


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _for_terminal(super().format(record))


#: Characters that a terminal obeys instead of showing: control characters, and marks that change the text direction.
_OBEYED = re.compile('[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]')


def _for_terminal(text: Any) -> str:
    """Makes text of workers and users safe for a terminal."""
    return _OBEYED.sub(' ', str(text))


T = TypeVar('T')

DEFAULT_URL = 'http://127.0.0.1:8001'
#: A long poll: waiting costs almost nothing, and this is shorter than the idle timeout of proxies.
WAIT_SECONDS = 20.0
CALL_SECONDS = 30.0
RETRY_FIRST_SECONDS = 1.0
RETRY_MAX_SECONDS = 30.0
RETRY_JITTER = 0.1


# ---------------------------------------------------------------------------------------------------------- errors


class IchidoError(Exception):
    """The base class of all errors. `retryable`: the same call may succeed later."""

    #: The HTTP status of the answer; 0 if there was none.
    status: int = 0

    def __init__(
        self, code: str, message: str, *, retryable: bool = False, retry_after: Optional[float] = None
    ) -> None:
        super().__init__(f'{code}: {message}')
        self.code = code
        self.message = message
        self.retryable = retryable
        self.retry_after = retry_after


class Unreachable(IchidoError):
    """No answer came from the server. The call may or may not have been executed."""


class Refused(IchidoError):
    """An error answer of the server, by its code: see docs/errors.md."""

    details: Mapping[str, Any] = {}
    request_id: Optional[str] = None


class Unauthenticated(Refused):
    """The token is missing, unknown, expired or revoked."""


class Forbidden(Refused):
    """The role does not allow this, or the worker was revoked or not enrolled for the queue."""


class NotFound(Refused):
    """It does not exist, or the caller may not see it."""


class KeyReused(Refused):
    """The key was used with a different request."""


class QuotaExceeded(Refused):
    """The user has reached the quota of active jobs, or the cost limit."""


class ResultNotReady(Refused):
    """The job has not ended within the wait time."""


class JobFailed(Refused):
    """The job ended without a result; `details` has its `state` and `error`, with the `code` of the failure."""


class JobCanceled(JobFailed):
    """The job was canceled, so it has no result."""


_BY_CODE = {
    'UNAUTHENTICATED': Unauthenticated,
    'FORBIDDEN': Forbidden,
    'OPEN_MODE_REFUSED': Forbidden,
    'CSRF_REFUSED': Forbidden,
    'NOT_FOUND': NotFound,
    'IDEMPOTENCY_KEY_REUSED': KeyReused,
    'QUOTA_EXCEEDED': QuotaExceeded,
    'COST_LIMIT_EXCEEDED': QuotaExceeded,
    'RESULT_NOT_READY': ResultNotReady,
    'JOB_FAILED': JobFailed,
}


def _refusal(status: int, error: Mapping[str, Any], retry_after: Optional[float] = None) -> Refused:
    code = str(error.get('code', f'HTTP_{status}'))
    # Only this conflict goes away by itself.
    retryable = status in (408, 429) or status >= 500 or code == 'IDEMPOTENCY_IN_PROGRESS'
    details = error.get('details') or {}
    canceled = code == 'JOB_FAILED' and details.get('state') == 'CANCELED'
    kind = JobCanceled if canceled else _BY_CODE.get(code, Refused)
    made = kind(code, str(error.get('message', '')), retryable=retryable, retry_after=retry_after)
    made.status = status
    made.details = details
    made.request_id = error.get('request_id')
    return made


# ------------------------------------------------------------------------------------------------------------ HTTP


def _without_credentials(url: str) -> str:
    return re.sub(r'^(\w+://)?[^/?#]*@', r'\1', url)


def _token_in(url: str) -> Optional[str]:
    """The token that a URL contains as its password: https://ci:TOKEN@host"""
    return urllib.parse.urlsplit(url).password or None


class _Http:
    """JSON calls over connections that are kept open. Threads can share it."""

    def __init__(
        self,
        url: str,
        token: Callable[[], Optional[str]],
        *,
        insecure: bool,
        heard: Callable[[Optional[IchidoError]], None] = lambda _: None,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ('http', 'https') or not parts.hostname:
            raise ValueError(f'{_without_credentials(url)!r} is not an http or https address')
        #: Shown to users, so it omits the token that the URL may contain.
        self._address = _without_credentials(url)
        if parts.scheme == 'http' and not insecure and not _is_loopback(parts.hostname):
            raise ValueError(
                f'{self._address} would show the token to everybody on the way: use https, or say insecure=True (--insecure)'
            )
        self._secure = parts.scheme == 'https'
        self._host = parts.hostname
        self._port = parts.port
        self._path = parts.path.rstrip('/')
        self._token = token
        #: Called with the outcome of each call, except for aborted calls.
        self._heard = heard
        self._tls = ssl.create_default_context() if self._secure else None
        #: Whether an untrusted certificate is an outage: it was trusted before, and may have expired for a minute.
        self.certificates_pass = False
        self._idle: List[http.client.HTTPConnection] = []
        self._busy: List[http.client.HTTPConnection] = []
        self._aborted = False

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout: float = CALL_SECONDS,
        fresh: bool = False,
        headers: Mapping[str, str] = {},
        into: Optional[Callable[[http.client.HTTPResponse], None]] = None,
    ) -> Tuple[Any, http.client.HTTPMessage]:
        """Returns the JSON of the answer (None for 204) and its headers; raises for any status but 2xx.

        A body may be a part of a file. Content other than JSON goes to `into`, which reads it while it arrives.
        """
        all_headers = {'Accept': 'application/json', **headers}
        payload: Union[None, bytes, _Part] = None
        if isinstance(body, _Part):
            payload = body
            all_headers.update({'Content-Type': _BYTES, 'Content-Length': str(body.size)})
        elif body is not None:
            payload = json.dumps(body, allow_nan=False).encode()
            all_headers['Content-Type'] = 'application/json'
        token = self._token()
        if token is not None:
            all_headers['Authorization'] = f'Bearer {token}'
        try:
            answer = self._ask(method, self._path + path, payload, all_headers, timeout, fresh, into)
        except IchidoError as error:
            if not self._aborted:
                self._heard(error)
            raise
        self._heard(None)
        return answer

    def abort(self) -> None:
        """Aborts the running calls and all later ones."""
        self._aborted = True
        for connection in list(self._busy):
            sock = connection.sock
            if sock is not None:
                with contextlib.suppress(OSError):
                    # TLS's own shutdown would remove the TLS object while another thread reads from it.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _ask(self, *request: Any) -> Tuple[Any, http.client.HTTPMessage]:
        try:
            status, answer_headers, raw = self._exchange(*request)
        except ssl.SSLCertVerificationError as error:
            text = _certificate_text(error)
            raise Unreachable('UNREACHABLE', text, retryable=self.certificates_pass) from error
        except (OSError, http.client.HTTPException) as error:
            text = f'No answer from {self._address}: {error or type(error).__name__}'
            raise Unreachable('UNREACHABLE', text, retryable=True) from error
        return _read_answer(status, answer_headers, raw), answer_headers

    def _exchange(
        self,
        method: str,
        path: str,
        payload: Union[None, bytes, _Part],
        headers: Dict[str, str],
        timeout: float,
        fresh: bool,
        into: Optional[Callable[[http.client.HTTPResponse], None]],
    ) -> Tuple[int, http.client.HTTPMessage, bytes]:
        connection = self._connection(timeout, fresh)
        self._busy.append(connection)
        try:
            if connection.sock is None:
                connection.connect()
            if self._aborted:
                raise ConnectionAbortedError('called off')
            # A server that gets too much data may stop reading, but still sends its answer.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, path, body=payload, headers=headers)
            response = connection.getresponse()
            if into is not None and 200 <= response.status < 300:
                into(response)
            raw = response.read()
        except BaseException:
            connection.close()
            raise
        finally:
            self._busy.remove(connection)
        if response.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        return response.status, response.headers, raw

    def _connection(self, timeout: float, fresh: bool) -> http.client.HTTPConnection:
        while self._idle and not fresh:
            with contextlib.suppress(IndexError):
                connection = self._idle.pop()
                if connection.sock is None or _readable(connection.sock):
                    # The server has closed the idle connection.
                    connection.close()
                    continue
                connection.timeout = timeout
                connection.sock.settimeout(timeout)
                return connection
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)


#: OpenSSL's error numbers for a certificate from an unknown issuer, or one that is self-signed.
_UNKNOWN_AUTHORITY = frozenset((2, 18, 19, 20, 21))


def _certificate_text(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code not in _UNKNOWN_AUTHORITY:
        return str(error)
    return f'{error}. Set SSL_CERT_FILE to the file of the authority that signed it'


def _readable(sock: socket.socket) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(0))


def _read_answer(status: int, headers: http.client.HTTPMessage, raw: bytes) -> Any:
    try:
        answer = json.loads(raw) if raw else None
    except ValueError:
        answer = _NOT_JSON
    if 200 <= status < 300 and answer is not _NOT_JSON:
        return answer
    if isinstance(answer, dict) and isinstance(answer.get('error'), dict):
        raise _refusal(status, answer['error'], _retry_after(headers))
    # The answer comes from a proxy or another server.
    message = raw[:200].decode(errors='replace')
    if status in (408, 429) or status >= 500 or status < 300:
        raise Unreachable(f'HTTP_{status}', message, retryable=True, retry_after=_retry_after(headers))
    raise _refusal(status, {'message': message})


_NOT_JSON = object()


def _retry_after(headers: http.client.HTTPMessage) -> Optional[float]:
    value = headers.get('Retry-After')
    if value is None:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    with contextlib.suppress(TypeError, ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None


def _is_loopback(host: str) -> bool:
    try:
        return host.lower() == 'localhost' or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _pause(failures: int, error: Optional[IchidoError] = None) -> float:
    """The pause after this many failures in a row."""
    if error is not None and error.retry_after is not None:
        return error.retry_after * random.uniform(1, 1 + RETRY_JITTER)
    seconds = min(RETRY_MAX_SECONDS, RETRY_FIRST_SECONDS * 2.0 ** min(failures, 10))
    return seconds * random.uniform(1 - RETRY_JITTER, 1 + RETRY_JITTER)


# ----------------------------------------------------------------------------------------------------------- files

_BYTES = 'application/octet-stream'
_BLOCK_BYTES = 256 * 1024
#: The server answers the last byte of a large file when the file is on its disk.
_FILE_SECONDS = 300.0
#: The most that is sent in vain when a call fails. The server keeps up to 1,000 parts, and an interrupted part leaves two.
_PART_BYTES = 4 * 1024 * 1024
_PARTS_MAX = 500


@contextlib.contextmanager
def _local(path: Path) -> Iterator[None]:
    """Turns a disk error into one that is not retried like a network error."""
    try:
        yield
    except OSError as error:
        raise IchidoError('FILE_ERROR', f'{path}: {error.strerror or error}') from error


#: A custom opener, as `open` takes it.
_Opener = Optional[Callable[[str, int], int]]


def _described(path: Path, name: Optional[str] = None, opener: _Opener = None) -> Dict[str, Any]:
    """The description of a file in a job's list."""
    digest, size = hashlib.sha256(), 0
    with _local(path), open(path, 'rb', opener=opener) as file:
        for block in iter(lambda: file.read(_BLOCK_BYTES), b''):
            digest.update(block)
            size += len(block)
    return {'name': name or path.name, 'sha256': digest.hexdigest(), 'size_bytes': size}


class _Part:
    """Bytes of a file as a body that is read while it is sent. It calls `look`, which may abort it."""

    def __init__(self, path: Path, start: int, size: int, look: Callable[[], None], opener: _Opener) -> None:
        self.size = size
        self._path = path
        self._opener = opener
        self._at, self._end = start, start + size
        self._look = look

    def read(self, _: int = -1) -> bytes:
        if self._at == self._end:
            return b''
        self._look()
        with _local(self._path), open(self._path, 'rb', opener=self._opener) as file:
            file.seek(self._at)
            block = file.read(min(_BLOCK_BYTES, self._end - self._at))
        if not block:
            raise IchidoError('FILE_ERROR', f'{self._path} became shorter while it was sent')
        self._at += len(block)
        return block


class _Upload:
    """An upload of a file. `go` may be called again: it asks for the offset and sends the rest."""

    def __init__(
        self,
        calls: _Http,
        path: Path,
        described: Mapping[str, Any],
        look: Callable[[], None] = lambda: None,
        opener: _Opener = None,
        **to: str,
    ) -> None:
        self._calls = calls
        self._path = path
        self._opener = opener
        self._size: int = described['size_bytes']
        self._part = max(_PART_BYTES, math.ceil(self._size / _PARTS_MAX))
        self._url = f'/v1/artifacts?{urllib.parse.urlencode({**described, **to})}'
        self._look = look
        self.at = 0

    def go(self) -> Dict[str, Any]:
        answer = self._send(0, 0)
        resumed = self.at > 0
        while answer is None:
            start, size = self.at, min(self._part, self._size - self.at)
            try:
                answer = self._send(start, size)
            except Refused as error:
                if not resumed or error.details.get('field') != 'sha256':
                    raise
                # The data of an earlier call was not the beginning of this file, and the server has removed it.
                resumed, self.at = False, 0
                continue
            if answer is None and (size == 0 or self.at != start + size):
                # Data that was sent before a connection broke may still be arriving.
                raise Unreachable('UNREACHABLE', f'{self._path} is not there yet as it was sent', retryable=True)
        return answer

    def _send(self, start: int, size: int) -> Optional[Dict[str, Any]]:
        """Returns the artifact when it is complete; otherwise `at` is the next offset."""
        part = _Part(self._path, start, size, self._look, self._opener)
        place = {'Upload-Offset': str(start)}
        try:
            answer, headers = self._calls.call('POST', self._url, part, headers=place, timeout=_FILE_SECONDS)
        except Refused as error:
            if error.code != 'UPLOAD_OFFSET_MISMATCH':
                raise
            self.at = error.details['upload_offset']
            return None
        if answer['state'] == 'ready':
            return dict(answer)
        self.at = int(headers['Upload-Offset'])
        return None


class _Download:
    """A download into a file, which appears when it is complete. `go` may be called again to continue."""

    def __init__(
        self, calls: _Http, artifact_id: str, path: Path, look: Callable[[], None] = lambda: None
    ) -> None:
        self._calls = calls
        self._url = f'/v1/artifacts/{urllib.parse.quote(artifact_id, safe="")}'
        self._path = path
        self._aside = path.with_name(f'.{uuid.uuid4().hex}.part')
        self._look = look
        self._etag = ''
        self._digest = hashlib.sha256()
        self.at = 0

    def __enter__(self) -> _Download:
        return self

    def __exit__(self, *_: Any) -> None:
        with contextlib.suppress(OSError):
            self._aside.unlink()

    def go(self) -> Path:
        headers = {'Accept': _BYTES}
        if self.at > 0:
            headers.update({'Range': f'bytes={self.at}-', 'If-Range': self._etag})
        self._calls.call('GET', self._url, headers=headers, into=self._take)
        if self._etag.strip('"') != self._digest.hexdigest():
            self.at = 0
            raise Unreachable('UNREACHABLE', f'{self._path} did not arrive as it was sent', retryable=True)
        with _local(self._path):
            os.replace(self._aside, self._path)
        return self._path

    def _take(self, response: http.client.HTTPResponse) -> None:
        if response.status != 206:
            self._digest, self.at = hashlib.sha256(), 0
        self._etag = response.headers.get('ETag', '')
        left = response.length
        with contextlib.ExitStack() as stack:
            with _local(self._aside):
                file = stack.enter_context(open(self._aside, 'ab' if self.at > 0 else 'wb'))
            for block in iter(lambda: response.read(_BLOCK_BYTES), b''):
                self._look()
                with _local(self._aside):
                    file.write(block)
                self._digest.update(block)
                self.at += len(block)
                left = None if left is None else left - len(block)
            with _local(self._aside):
                file.flush()
                os.fsync(file.fileno())
        if left:
            raise ConnectionResetError(f'The connection broke off {left} bytes before the end')


# ---------------------------------------------------------------------------------------------------------- client


def _new_key() -> str:
    return f'python-{uuid.uuid4()}'


@dataclasses.dataclass
class Submission:
    """A job to be submitted. Its key is generated once, so a repeated submission gets the same job."""

    kind: str
    payload: Any = None
    key: str = dataclasses.field(default_factory=_new_key)
    queue: Optional[str] = None
    priority: Optional[int] = None
    run_at: Optional[Union[datetime, str]] = None
    delay_seconds: Optional[float] = None
    max_attempts: Optional[int] = None
    backoff: Optional[Mapping[str, float]] = None
    timeout_seconds: Optional[float] = None
    lease_ttl_seconds: Optional[int] = None
    continuation_seconds: Optional[int] = None
    labels: Optional[Mapping[str, str]] = None
    estimated_cost: Optional[float] = None
    reservation_id: Optional[str] = None
    #: The artifacts that the job waits for: `[{'name': …}, …]`. `upload` sends them.
    artifacts: Optional[Sequence[Mapping[str, Any]]] = None
    upload_ttl_seconds: Optional[int] = None
    key_ttl_hours: Optional[float] = None
    traceparent: Optional[str] = None
    #: A URL that gets a signed message about each end of the job.
    callback_url: Optional[str] = None

    def wire(self) -> Dict[str, Any]:
        body = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        body['idempotency_key'] = body.pop('key')
        if isinstance(self.run_at, datetime):
            body['run_at'] = self.run_at.astimezone(timezone.utc).isoformat()
        return {name: value for name, value in body.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Job:
    """An accepted job. `replayed`: the key had already made this job."""

    id: str
    kind: str
    queue: str
    state: str
    created_at: str
    run_at: str
    replayed: bool


@dataclasses.dataclass(frozen=True)
class Event:
    """A fact about the progress of a job. Continue after it with `watch(job_id, after=event.cursor)`."""

    cursor: int
    stage: str
    seq: int
    data: Any
    timestamp: str


_BATCH_JOBS = 1_000
_BATCH_BYTES = 8 * 1024 * 1024


class Client:
    """Submits jobs and follows them.

    Temporary failures (a broken connection, 408, 429, 5xx) are retried for `patience` seconds, with growing pauses.
    Without a url, ICHIDO_URL and ICHIDO_TOKEN are used. The url may contain the token: https://ci:TOKEN@host
    """

    def __init__(
        self, url: Optional[str] = None, token: Optional[str] = None, *, patience: float = 60.0, insecure: bool = False
    ) -> None:
        url = url or os.environ.get('ICHIDO_URL') or DEFAULT_URL
        token = token if token is not None else os.environ.get('ICHIDO_TOKEN') or _token_in(url)
        self._http = _Http(url, lambda: token, insecure=insecure)
        self._patience = patience

    def submit(
        self,
        kind: str,
        payload: Any = None,
        *,
        key: Optional[str] = None,
        files: Sequence[Union[str, Path]] = (),
        **options: Any,
    ) -> Job:
        """The options are the fields of `Submission`. Without a key, one is generated for this call.

        The `files` are uploaded, too: the job's run finds them under their names. Workers get the job after that.
        """
        paths = {Path(file).name: Path(file) for file in files}
        if len(paths) < len(files):
            raise ValueError('Two of the files have the same name')
        described = {name: _described(path) for name, path in paths.items()}
        if described:
            options['artifacts'] = [*(options.get('artifacts') or []), *described.values()]
        submission = Submission(kind, payload, key if key is not None else _new_key(), **options)
        body, headers = self._call('POST', '/v1/jobs', submission.wire())
        job = _job(body, headers.get('Idempotent-Replayed') == 'true')
        for artifact in self.artifacts(job.id) if described else []:
            if artifact['state'] == 'awaited' and artifact['name'] in described:
                self._upload(paths[artifact['name']], described[artifact['name']], job_id=job.id)
        return job

    def submit_many(self, submissions: Iterable[Submission]) -> List[Union[Job, IchidoError]]:
        """One outcome for each, in the same order: a refused job does not affect the others."""
        outcomes: List[Union[Job, IchidoError]] = []
        for batch in _batches([submission.wire() for submission in submissions]):
            outcomes += self._submit_batch(batch)
        return outcomes

    def get(self, job_id: str) -> Dict[str, Any]:
        """The job with all its runs."""
        return dict(self._call('GET', _job_path(job_id))[0])

    def result(self, job_id: str, wait: Optional[float] = None) -> Any:
        """Waits until the job has ended, for at most `wait` seconds. Raises JobFailed, JobCanceled or ResultNotReady."""
        until = math.inf if wait is None else time.monotonic() + wait
        while True:
            left = max(0.0, min(WAIT_SECONDS, until - time.monotonic()))
            try:
                path = f'{_job_path(job_id)}/result?wait_seconds={left:.3f}'
                return self._call('GET', path, timeout=left + CALL_SECONDS)[0]['result']
            except ResultNotReady:
                if time.monotonic() >= until:
                    raise

    def cancel(self, job_id: str) -> Dict[str, Any]:
        """Ends a waiting job, asks a running job to stop."""
        return dict(self._call('POST', f'{_job_path(job_id)}/cancel')[0])

    def retry(self, job_id: str) -> Dict[str, Any]:
        """Another run of the same job, with a full retry budget. The call has no key, so it is sent only once."""
        return dict(self._call('POST', f'{_job_path(job_id)}/retry', {}, repeat=False)[0])

    def watch(self, job_id: str, after: int = 0) -> Iterator[Event]:
        """Yields every event once, in order, after a cursor, until the job has ended."""
        while True:
            path = f'{_job_path(job_id)}/events?after={after}&wait_seconds={WAIT_SECONDS:g}'
            page = self._call('GET', path, timeout=WAIT_SECONDS + CALL_SECONDS)[0]
            for event in page['events']:
                after = event['cursor']
                yield Event(after, event['stage'], event['seq'], event['data'], event['timestamp'])
            if page['ended']:
                return

    def logs(self, job_id: str) -> str:
        """The log of all runs of the job so far, oldest first."""
        text: List[bytes] = []

        def take(response: http.client.HTTPResponse) -> None:
            text[:] = [response.read()]

        self._patiently(
            lambda: self._http.call('GET', f'{_job_path(job_id)}/logs', headers={'Accept': 'text/plain'}, into=take)
        )
        return text[0].decode()

    def artifacts(self, job_id: str) -> List[Dict[str, Any]]:
        """The files that the job waits for, was given and has made."""
        return list(self._call('GET', f'{_job_path(job_id)}/artifacts')[0]['data'])

    def download(self, artifact_id: str, path: Union[str, Path]) -> Path:
        """Writes an artifact to a file, which appears when it is complete and its SHA-256 matches."""
        with _Download(self._http, artifact_id, Path(path)) as download:
            return self._patiently(download.go, progress=lambda: download.at)

    def upload(
        self, path: Union[str, Path], *, job_id: Optional[str] = None, name: Optional[str] = None
    ) -> Dict[str, Any]:
        """Sends a file that the job lists under this name (default: its own); without a job, for future jobs."""
        to = {} if job_id is None else {'job_id': job_id}
        return self._upload(Path(path), _described(Path(path), name), **to)

    def _upload(self, path: Path, described: Mapping[str, Any], **to: str) -> Dict[str, Any]:
        upload = _Upload(self._http, path, described, **to)
        return self._patiently(upload.go, progress=lambda: upload.at)

    def _submit_batch(self, batch: List[Dict[str, Any]]) -> List[Union[Job, IchidoError]]:
        outcomes: Dict[int, Union[Job, IchidoError]] = {}
        until = time.monotonic() + self._patience
        for failures in itertools.count():
            left = [i for i in range(len(batch)) if i not in outcomes]
            answers = self._call('POST', '/v1/jobs/batch', {'jobs': [batch[i] for i in left]})[0]['data']
            pause = _pause(failures)
            for i, answer in zip(left, answers):
                error = _refusal(answer['status'], answer['error']) if 'error' in answer else None
                if error is None:
                    outcomes[i] = _job(answer['body'], answer['replayed'])
                elif not error.retryable or time.monotonic() + pause >= until:
                    outcomes[i] = error
            if len(outcomes) == len(batch):
                break
            time.sleep(pause)
        return [outcomes[i] for i in range(len(batch))]

    def _call(
        self, method: str, path: str, body: Any = None, *, timeout: float = CALL_SECONDS, repeat: bool = True
    ) -> Tuple[Any, http.client.HTTPMessage]:
        return self._patiently(
            lambda: self._http.call(method, path, body, timeout=timeout, fresh=not repeat), repeat=repeat
        )

    def _patiently(self, call: Callable[[], T], *, repeat: bool = True, progress: Callable[[], int] = lambda: 0) -> T:
        until = time.monotonic() + self._patience
        failures, came_to = 0, 0
        while True:
            try:
                return call()
            except IchidoError as error:
                if progress() > came_to:
                    # Patience limits only the time without any progress.
                    until, failures, came_to = time.monotonic() + self._patience, 0, progress()
                pause = _pause(failures, error)
                unsure = isinstance(error, Unreachable) and not repeat
                if not error.retryable or unsure or time.monotonic() + pause >= until:
                    raise
                log.info('%s; trying again in %.1f s', error, pause)
                time.sleep(pause)
                failures += 1


def _job(body: Mapping[str, Any], replayed: bool) -> Job:
    fields = {name: body[name] for name in ('kind', 'queue', 'state', 'created_at', 'run_at')}
    return Job(id=body['job_id'], replayed=replayed, **fields)


def _job_path(job_id: str) -> str:
    return f'/v1/jobs/{urllib.parse.quote(job_id, safe="")}'


def _batches(items: Sequence[Dict[str, Any]]) -> Iterator[List[Dict[str, Any]]]:
    batch: List[Dict[str, Any]] = []
    size = 0
    for item in items:
        item_size = len(json.dumps(item, allow_nan=False))
        if batch and (len(batch) == _BATCH_JOBS or size + item_size > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item_size
    if batch:
        yield batch


# -------------------------------------------------------------------------------------------- what a handler is given


class Fatal(Exception):
    """A handler raises it to say that a retry would not help."""

    def __init__(self, code: str, message: Optional[str] = None) -> None:
        super().__init__(message or code)
        self.code = code


class Stopped(BaseException):
    """Raised in a handler, at any place, when it must end now: clean up and let it through.

    `reason` is CANCELED, TIMEOUT, STOPPED (the worker shuts down), LEASE_LOST or CONTINUATION_LOST. As with
    KeyboardInterrupt, `except Exception` does not catch it. A handler that continues anyway is killed.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


_EVENT_BYTES_MAX = 64 * 1024
_OPEN_STAGES: Mapping[str, Mapping[str, int]] = {'progress': {'from': 0, 'to': 999_999}}
#: The range of seqs for a stage that the job does not declare.
_UNDECLARED_STAGE: Mapping[str, int] = {'from': 0, 'to': 9}
_COST_MAX = 1_000_000_000


class Run:
    """One attempt at a job, for its handler. Pass `(job_id, attempt, lease_id)` to the systems that you call."""

    def __init__(self, lease: Mapping[str, Any], slot: int, send: Callable[[Dict[str, Any]], None]) -> None:
        self.job_id: str = lease['job_id']
        self.attempt: int = lease['attempt']
        self.lease_id: str = lease['lease_id']
        self.queue: str = lease['queue']
        self.kind: str = lease['kind']
        self.payload: Any = lease['payload']
        self.traceparent: Optional[str] = lease['traceparent']
        #: The last progress of earlier attempts, to continue from; None if there is none.
        self.last_progress: Any = lease['last_progress']
        #: A number from 0 to below the worker's concurrency. No other run has it at the same time.
        self.slot = slot
        #: Set when `Stopped` is raised, for the handler's own threads.
        self.stopping = threading.Event()
        self._send = send
        #: The stages that the job declares, by name; None means one open stage, `progress`.
        self._stages: Optional[Mapping[str, Mapping[str, int]]] = lease.get('stages')
        self._subs = itertools.count(1)

    def progress(self, data: Any) -> None:
        """Publishes progress. The next attempt finds the latest as `last_progress`."""
        self.publish('progress', self.next_seq('progress', next(self._subs)), data)

    def next_seq(self, stage: str, sub: int = 0) -> int:
        """The seq of an event, from its number inside its stage, counted from 0, for `publish`."""
        stages = _OPEN_STAGES if self._stages is None else self._stages
        known = stages.get(stage, _UNDECLARED_STAGE)
        seq = known['from'] + sub
        if sub < 0 or seq > known['to']:
            room = known['to'] - known['from']
            raise ValueError(f'The stage {stage} of this job has the numbers 0 to {room}, not {sub}')
        return seq

    def publish(self, stage: str, seq: int, data: Any = None) -> None:
        """Publishes an event of a stage. Its identity is (job, stage, seq): a repeat is the same event."""
        if len(json.dumps(data, allow_nan=False).encode()) > _EVENT_BYTES_MAX:
            raise ValueError(f"An event's data may have at most {_EVENT_BYTES_MAX} bytes")
        self._send({'event': {'stage': stage, 'seq': seq, 'data': data}})

    def cost(self, amount: float) -> None:
        """Reports the cost of this run, in the unit of the cost limits. The last report counts.

        When the run succeeds, its cost replaces the job's `estimated_cost`.
        """
        if not 0 <= amount <= _COST_MAX:
            raise ValueError(f'cost must be a number from 0 to {_COST_MAX}, not {amount}')
        # Money is often a Decimal, which JSON does not have.
        self._send({'cost': float(amount)})


Handler = Callable[[Run], Any]


# ----------------------------------------------------------------------------------------------------------- clocks


class _Mark(NamedTuple):
    """A time by several clocks: monotonic time stands still while a machine sleeps, and wall time can be set."""

    monotonic: float
    uptime: float
    wall: float


def _now() -> _Mark:
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, 'CLOCK_BOOTTIME') else 0.0
    return _Mark(time.monotonic(), uptime, time.time())


def _elapsed(since: _Mark, until: Optional[_Mark] = None) -> float:
    """The longest time that any of the clocks has measured."""
    return max(later - earlier for earlier, later in zip(since, until or _now()))


#: The control plane waits for the whole continuation time before it retries a job. The run ends after this part of it.
CONTINUATION_PART = 0.8
#: After this part of that time a handler is asked to stop, so that it can end before it is killed.
TELL_PART = 0.9
#: The grace time of a handler that is stopped for another reason.
GRACE_SECONDS = 10.0
#: The grace time if the worker is dead, or another worker has the run.
SHORT_GRACE_SECONDS = 1.0


def _alone_seconds(lease: Mapping[str, Any]) -> float:
    """How long a run may continue after its last confirmed heartbeat was sent."""
    # Without a continuation time the control plane does not wait, so the lease is the limit.
    return float(lease['continuation_seconds'] or lease['lease_ttl_seconds']) * CONTINUATION_PART


class _Lines:
    """Reads JSON lines from a stream."""

    def __init__(self) -> None:
        self._parts: List[bytes] = []

    def add(self, data: bytes) -> List[Dict[str, Any]]:
        self._parts.append(data)
        if b'\n' not in data:
            return []
        *lines, rest = b''.join(self._parts).split(b'\n')
        self._parts = [rest]
        return [json.loads(line) for line in lines]


# ------------------------------------------------------------------------------------------------------- supervisor
#
# A worker consists of three sorts of processes. The worker itself talks to the server. The supervisor, forked first and
# with a single thread, forks a process for each run and watches its clock. It keeps running while the worker is stopped
# (SIGSTOP), and notices its death (the end of their socket). A handler can be killed with everything it started.
#
#   worker ──orders, heartbeats──▶ supervisor ──fork, stop, kill──▶ handler ──output, events, outcome──▶ worker


@dataclasses.dataclass
class _Child:
    """A run as the supervisor sees it."""

    pid: int
    lease_id: str
    control: int
    confirmed: _Mark
    alone: float
    times_out_at: float
    reason: Optional[str] = None
    kill_at: float = math.inf
    status: Optional[int] = None
    rounds: int = 0


_TICK_SECONDS = 0.1
_KILL_TICK_SECONDS = 0.01
#: After SIGKILL no process runs. A process that still shows after this many rounds is a zombie of another parent.
_KILL_ROUNDS_MAX = 200


class _Supervisor:
    """The process beside a worker that starts, stops and kills its handlers."""

    def __init__(self, worker: socket.socket, handlers: Mapping[str, Handler]) -> None:
        self._worker = worker
        self._handlers = handlers
        self._children: Dict[str, _Child] = {}
        self._orders = _Lines()
        self._fds: List[int] = []
        self._orphaned = False
        self._selector = selectors.DefaultSelector()
        self._pid = os.getpid()

    def run(self) -> None:
        # The supervisor has its own session, so that signals to the worker's group do not reach it.
        os.setsid()
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, signal.SIG_IGN)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write)
        self._selector.register(self._worker, selectors.EVENT_READ, self._hear)
        self._selector.register(wake_read, selectors.EVENT_READ, lambda: os.read(wake_read, 4096))
        while self._children or not self._orphaned:
            for key, _ in self._selector.select(self._tick()):
                key.data()
            self._look()

    def _tick(self) -> Optional[float]:
        if any(child.status is not None for child in self._children.values()):
            return _KILL_TICK_SECONDS
        return _TICK_SECONDS if self._children else None

    def _hear(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._worker, 65536, 64)
        except OSError:
            data, fds = b'', []
        self._fds += fds
        if not data:
            self._orphaned = True
            self._selector.unregister(self._worker)
            for child in self._children.values():
                self._stop(child, 'STOPPED', SHORT_GRACE_SECONDS)
        for order in self._orders.add(data):
            self._obey(order)

    def _obey(self, order: Dict[str, Any]) -> None:
        child = self._children.get(order['lease_id'])
        if order['do'] == 'begin':
            self._begin(order)
        elif child is None:
            return
        elif order['do'] == 'stop':
            self._stop(child, order['reason'], order['grace'])
        elif child.reason is None:
            # After a stop order the remaining time is fixed, and a heartbeat does not extend it.
            child.confirmed = _Mark(*order['confirmed'])

    def _begin(self, order: Dict[str, Any]) -> None:
        fds, self._fds = self._fds[:3], self._fds[3:]
        lease = order['lease']
        confirmed, alone = _Mark(*order['confirmed']), _alone_seconds(lease)
        if _elapsed(confirmed) >= alone * TELL_PART:
            # The order came too late: the machine slept, or the worker was stopped.
            self._tell(lease['lease_id'], status=None, reason='CONTINUATION_LOST')
        else:
            control_read, control = os.pipe()
            pid = os.fork()
            if pid == 0:
                inherited = [self._worker.fileno(), control, *(child.control for child in self._children.values())]
                _Handling(self._handlers, order, control_read, fds).run(self._pid, inherited)
            with contextlib.suppress(OSError):
                # The handler does this too. Whichever comes first, the group exists before anything can kill it.
                os.setpgid(pid, pid)
            os.close(control_read)
            timeout = lease['timeout_seconds']
            times_out_at = math.inf if timeout is None else order['began'] + timeout
            child = _Child(pid, lease['lease_id'], control, confirmed, alone, times_out_at)
            self._children[child.lease_id] = child
            self._tell(child.lease_id, pid=pid)
        for fd in fds:
            os.close(fd)

    def _stop(self, child: _Child, reason: str, grace: float) -> None:
        child.kill_at = min(child.kill_at, time.monotonic() + grace)
        if child.reason is not None:
            return
        child.reason = reason
        with contextlib.suppress(OSError):
            os.write(child.control, reason.encode() + b'\n')

    def _look(self) -> None:
        self._reap()
        now = _now()
        for child in list(self._children.values()):
            if child.status is not None:
                # A run ends when none of its processes is left, so the handler's leftovers are killed with it.
                child.rounds += 1
                if _kill_all(child.pid, child.lease_id) or child.rounds > _KILL_ROUNDS_MAX:
                    self._conclude(child)
                continue
            alone = _elapsed(child.confirmed, now)
            if alone >= child.alone * TELL_PART:
                self._stop(child, 'CONTINUATION_LOST', math.inf)
            elif now.monotonic >= child.times_out_at:
                self._stop(child, 'TIMEOUT', GRACE_SECONDS)
            if alone >= child.alone or now.monotonic >= child.kill_at:
                _kill_all(child.pid, child.lease_id)

    def _reap(self) -> None:
        by_pid = {child.pid: child for child in self._children.values() if child.status is None}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in by_pid:
                by_pid[pid].status = status

    def _conclude(self, child: _Child) -> None:
        del self._children[child.lease_id]
        os.close(child.control)
        self._tell(child.lease_id, status=child.status, reason=child.reason)

    def _tell(self, lease_id: str, **notice: Any) -> None:
        with contextlib.suppress(OSError):
            self._worker.sendall(json.dumps({'lease_id': lease_id, **notice}).encode() + b'\n')


#: The variable that identifies a run's processes, even those that left their group.
_MARKER = 'ICHIDO_LEASE_ID'


def _kill_all(group: int, lease_id: str) -> bool:
    """Sends SIGKILL to all processes of a run. True if there was none left."""
    found = False
    try:
        os.killpg(group, signal.SIGKILL)
        found = True
    except OSError:
        pass
    for pid in _marked(lease_id):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            found = True
    return not found


def _all_killed(lease_id: str) -> bool:
    """Kills all processes that a run has started. True if none is left; always False without /proc (macOS)."""
    for _ in range(_KILL_ROUNDS_MAX if os.path.isdir('/proc') else 0):
        found = _marked(lease_id)
        if not found:
            return True
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_KILL_TICK_SECONDS)
    return False


def _marked(lease_id: str) -> List[int]:
    """The processes of a run. Without /proc (macOS) only the group is known."""
    mark = f'{_MARKER}={lease_id}'.encode()
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc') if os.path.isdir('/proc') else []):
        with contextlib.suppress(OSError):
            if mark in Path(f'/proc/{pid}/environ').read_bytes().split(b'\0'):
                found.append(int(pid))
    return found


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


# ---------------------------------------------------------------------------------------------------------- handler

_MESSAGE_MAX = 10_000
_TRACEBACK_MAX = 50_000


class _Handling:
    """The process of one run's handler."""

    def __init__(
        self, handlers: Mapping[str, Handler], order: Mapping[str, Any], control: int, fds: Sequence[int]
    ) -> None:
        self._handlers = handlers
        self._env: Mapping[str, str] = order['env']
        self._folder: str = order['folder']
        self._control = control
        self._messages, self._stdout, self._stderr = fds
        # A separate thread writes the messages: `Stopped` must not interrupt a line.
        self._outbox: queues_of_threads.SimpleQueue[Optional[Dict[str, Any]]] = queues_of_threads.SimpleQueue()
        self._reason = 'STOPPED'
        self._run = Run(order['lease'], order['slot'], self._outbox.put)

    def run(self, supervisor: int, inherited: Sequence[int]) -> None:
        """Runs the handler, and never returns."""
        try:
            self._settle_in(supervisor, inherited)
            writer = threading.Thread(target=self._write)
            writer.start()
            threading.Thread(target=self._listen, daemon=True).start()
            self._outbox.put(self._outcome())
            self._outbox.put(None)
            writer.join()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        except BaseException:
            tracebacks.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(70)

    def _settle_in(self, supervisor: int, inherited: Sequence[int]) -> None:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for name in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(name, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, self._raise)
        for fd in inherited:
            os.close(fd)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(70)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (self._stdout, 1), (self._stderr, 2)):
            os.dup2(source, target)
            os.close(source)
        sys.stdin = open(0, closefd=False)
        sys.stdout = open(1, 'w', buffering=1, encoding='utf-8', errors='backslashreplace', closefd=False)
        sys.stderr = open(2, 'w', buffering=1, encoding='utf-8', errors='backslashreplace', closefd=False)
        names = {
            'ICHIDO_JOB_ID': self._run.job_id,
            'ICHIDO_ATTEMPT': str(self._run.attempt),
            _MARKER: self._run.lease_id,
            'ICHIDO_SLOT': str(self._run.slot),
            'ICHIDO_AGENT_DIR': os.getcwd(),
        }
        for name in [name for name in os.environ if not _is_inherited(name)]:
            del os.environ[name]
        os.environ.update({**self._env, **names})
        # The entry '' means the current folder. It stays importable after the change of folder.
        sys.path[:] = [entry or os.getcwd() for entry in sys.path]
        os.chdir(self._folder)

    def _outcome(self) -> Dict[str, Any]:
        try:
            try:
                result = self._handlers[self._run.kind](self._run)
            finally:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            return {'result': _as_json(result)}
        except Fatal as error:
            return {'failure': _failure(error, error.code, retryable=False)}
        except Stopped as stopped:
            return {'failure': _failure(stopped, stopped.reason, retryable=True)}
        except SystemExit as error:
            return {'failure': _failure(error, 'EXITED', retryable=True)}
        except BaseException as error:
            return {'failure': _failure(error, type(error).__name__, retryable=True)}

    def _write(self) -> None:
        while True:
            message = self._outbox.get()
            if message is None:
                return
            data = memoryview(json.dumps(message).encode() + b'\n')
            while data:
                data = data[os.write(self._messages, data) :]

    def _listen(self) -> None:
        """Waits for an order to stop or, where there is no parent-death signal, for the death of the supervisor."""
        while True:
            reason = os.read(self._control, 100)
            if not reason:
                os.killpg(0, signal.SIGKILL)
            self._reason = reason.decode().strip()
            self._run.stopping.set()
            # The signal goes to this thread, so that it interrupts a blocking call.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _raise(self, *_: Any) -> None:
        self._run.stopping.set()
        raise Stopped(self._reason)


def _as_json(result: Any) -> Any:
    try:
        json.dumps(result, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Fatal('INVALID_RESULT', f'The result is not JSON: {error}') from error
    return result


#: The variables that a handler inherits from the worker; a name that ends in * stands for a prefix. The agent has the
#: same list, and so does docs/workers.md.
_INHERITED = (
    'PATH HOME USER LOGNAME SHELL HOSTNAME TERM NO_COLOR LANG LANGUAGE LC_* TZ TZDIR TMPDIR TMP TEMP XDG_* '
    'HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy '
    'SSL_CERT_FILE SSL_CERT_DIR CURL_CA_BUNDLE REQUESTS_CA_BUNDLE '
    'LD_LIBRARY_PATH LD_PRELOAD DYLD_* MALLOC_* GLIBC_TUNABLES JAVA_HOME NODE_* '
    'PYTHON* VIRTUAL_ENV CONDA_* _CE_* MAMBA_* PERL5LIB R_HOME R_LIBS* JULIA_* '
    'MODULEPATH MODULESHOME LOADEDMODULES LMOD_* EBROOT* SPACK_* APPTAINER_* SINGULARITY_* DOCKER_HOST '
    'OMP_* KMP_* GOMP_* MKL_* OPENBLAS_* BLIS_* NUMEXPR_* VECLIB_* '
    'OMPI_* OPAL_* PRTE_* PMI_* PMIX_* MPI_* MPICH_* I_MPI_* MV2_* HYDRA_* UCX_* FI_* PSM* SLURM_* PBS_* LSB_* '
    'CUDA* NVIDIA_* NCCL_* CUBLAS_* CUDNN_* GPU_* ROCR_* ROCM_* HIP_* HSA_* '
    'ONEAPI_* ZE_* SYCL_* TF_* XLA_* JAX_* TORCH_* PYTORCH_* '
    'ESPRESSO_* BIN_DIR PSEUDO_DIR'
).split()
_SECRET = re.compile(r'TOKEN|SECRET|PASSW|CREDENTIAL|JWT|_KEY$', re.IGNORECASE)


def _is_inherited(name: str) -> bool:
    if _SECRET.search(name):
        return False
    return any(name.startswith(known[:-1]) if known.endswith('*') else name == known for known in _INHERITED)


def _added_env(given: Iterable[str]) -> Dict[str, str]:
    """The variables that NAME and NAME=VALUE add."""
    added = {}
    for text in given:
        name, equals, value = text.partition('=')
        if not re.fullmatch(r'[A-Za-z_]\w*', name, re.ASCII):
            raise ValueError(f'env must be NAME or NAME=VALUE, not {text!r}')
        if not equals and name not in os.environ:
            raise ValueError(f'env {name}: there is no such variable here; use {name}=VALUE')
        added[name] = value if equals else os.environ[name]
    return added


def _failure(error: BaseException, code: str, *, retryable: bool) -> Dict[str, Any]:
    lines = tracebacks.format_exception(type(error), error, error.__traceback__)
    return {
        'error_code': _clean(code, 200) or 'ERROR',
        'error_message': _clean(str(error) or code, _MESSAGE_MAX),
        'traceback': _clean(''.join(lines), _TRACEBACK_MAX),
        'retryable': retryable,
    }


def _clean(text: str, limit: int) -> str:
    """Replaces NUL and half characters, which cannot be stored, so that a failure can always be recorded."""
    return text[:limit].replace('\0', '\N{REPLACEMENT CHARACTER}').encode(errors='replace').decode()


# --------------------------------------------------------------------------------------------------- worker identity

ENROLL_PREFIX = 'ichido_enroll_'
DEFAULT_TOKEN_FILE = Path('~/.ichido/python-worker.json')
_WARN_SECONDS = 24 * 3600


class _Identity:
    """The identity of a worker, in a file for its owner only, so that it survives restarts and renewals."""

    def __init__(self, url: str, given: Optional[str], file: Path, name: Optional[str]) -> None:
        self._url = url
        self._given = given
        self._file = file
        self._name = name
        self._kept: Dict[str, Any] = {}

    def token(self) -> Optional[str]:
        return self._kept.get('worker_token')

    def __str__(self) -> str:
        # Nothing else is known about a worker token that was passed in.
        name, worker_id = self._kept.get('name'), self._kept.get('worker_id')
        who = ', '.join(filter(None, [worker_id, f'process {os.getpid()}']))
        return ' '.join(filter(None, ['worker', name, f'({who})']))

    def establish(self, http_calls: _Http, stopping: threading.Event) -> None:
        """Registers if necessary: the first time, and with each new enroll token."""
        self._kept = self._read()
        if self._given is not None:
            given = hashlib.sha256(self._given.encode()).hexdigest()
            if given == self._kept.get('given'):
                pass
            elif self._given.startswith(ENROLL_PREFIX):
                # The id is stored before its use, so that the same registration can be repeated after a crash.
                self._keep(given=given, register_id=uuid.uuid4().hex, enrolling=True)
            else:
                self._keep(given=given, worker_token=self._given, worker_id=None, name=None, renew_at=0.0, enrolling=False)
            if self._kept['enrolling']:
                self._register(http_calls, stopping)
        if self.token() is None:
            raise ValueError(f'{self._file} has no token of this worker: pass an enroll token')

    def reload(self) -> bool:
        """Reads the file again: another process of this worker may have renewed the token. True if it changed."""
        before = self.token()
        kept = self._read()
        if kept.get('worker_token') in (None, before):
            return False
        self._kept = kept
        return True

    def renew_if_due(self, http_calls: _Http) -> None:
        if time.time() < self._kept.get('renew_at', 0.0):
            return
        try:
            answer = http_calls.call('POST', '/v1/workers/renew')[0]
            self._keep(**_token_fields(answer))
        except IchidoError as error:
            left = self._kept.get('expires_at', math.inf) - time.time()
            if left < _WARN_SECONDS:
                log.warning('the token expires in %.1f hours and could not be renewed: %s', left / 3600, error)

    def _register(self, http_calls: _Http, stopping: threading.Event) -> None:
        before = {name: self._kept[name] for name in ('worker_id', 'worker_token') if self._kept.get(name)}
        meta = {'hostname': platform.node(), 'python': platform.python_version(), 'system': platform.system()}
        body = {'enroll_token': self._given, 'register_id': self._kept['register_id'], 'meta': meta}
        if self._name is not None:
            # Without a name the worker has the one of its enrollment.
            body['name'] = self._name
        for failures in itertools.count():
            try:
                answer = http_calls.call('POST', '/v1/workers/register', {**body, **before})[0]
                break
            except IchidoError as error:
                if not error.retryable:
                    raise
                _warn(error, 'cannot register yet')
                if stopping.wait(_pause(failures, error)):
                    raise
        self._keep(worker_id=answer['worker_id'], name=answer['name'], enrolling=False, **_token_fields(answer))

    def _read(self) -> Dict[str, Any]:
        try:
            kept = json.loads(self._file.read_text())
        except FileNotFoundError:
            return {}
        # A token is sent only to the server that issued it.
        return dict(kept) if kept.get('url') == self._url else {}

    def _keep(self, **changes: Any) -> None:
        self._kept = {**self._kept, 'url': self._url, **changes}
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._file.with_name(f'{self._file.name}.{uuid.uuid4().hex}')
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), 'w') as file:
            json.dump(self._kept, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._file)


def _token_fields(answer: Mapping[str, str]) -> Dict[str, Any]:
    # `fromisoformat` accepts no Z before Python 3.11.
    expires_at = datetime.fromisoformat(answer['expires_at'].replace('Z', '+00:00')).timestamp()
    now = time.time()
    return {
        'worker_token': answer['worker_token'],
        'expires_at': expires_at,
        'renew_at': now + (expires_at - now) / 2,
    }


# ------------------------------------------------------------------------------------------------------ run folders


class _RunFolders:
    """The folders of this process's runs, beside the token file.

    A lock tells whether any process of this worker process lives. The supervisor takes it, and each handler inherits
    it. It is free when all of them have ended, in whatever way.
    """

    def __init__(self, root: Path, process: str) -> None:
        self._root = root
        self._own = root / process

    def lock(self) -> None:
        """Holds the lock as long as the calling process and its forks live."""
        self._own.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _lock(self._own / 'lock.new') is not None:
            # The lock appears under its name only when it is held. A folder without a lock is ignored.
            os.replace(self._own / 'lock.new', self._own / 'lock')

    def others(self) -> List[Path]:
        return [lock.parent for lock in self._root.glob('*/lock') if lock.parent != self._own]

    def make(self, lease: Mapping[str, Any]) -> Path:
        """Creates the working folder of a run, with an empty `outputs`."""
        work = self._of(lease) / 'work'
        known = {name: lease[name] for name in ('job_id', 'attempt', 'lease_id', 'kind')}
        with _local(work):
            (work / 'outputs').mkdir(mode=0o700, parents=True)
            (self._of(lease) / _LEASE_FILE).write_text(json.dumps(known))
        return work

    def drop(self, lease: Mapping[str, Any]) -> None:
        shutil.rmtree(self._of(lease), ignore_errors=True)

    def close(self) -> None:
        shutil.rmtree(self._own, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._root.rmdir()

    def open_outputs(self, lease: Mapping[str, Any]) -> int:
        """Opens `outputs` without following links, because the handler could have put one there."""
        fd = os.open(self._own, os.O_RDONLY | os.O_DIRECTORY)
        for name in (self._of(lease).name, 'work', 'outputs'):
            above = fd
            try:
                fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
            except NotADirectoryError as error:
                raise IchidoError(_FILE_REFUSED, f'{name} is not a folder of its own') from error
            finally:
                os.close(above)
        return fd

    def _of(self, lease: Mapping[str, Any]) -> Path:
        return self._own / f'{lease["job_id"]}.{lease["attempt"]}'


_LEASE_FILE = 'lease.json'
#: The error code of a run that leaves a file that may not be read. It is final.
_FILE_REFUSED = 'FILE_REFUSED'


def _open_regular(name: str, what: str, dir_fd: Optional[int] = None) -> int:
    """Opens a regular file only. A handler can replace it with anything: a link, or a pipe that nobody writes to."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise IchidoError(_FILE_REFUSED, f'{what} is a symbolic link') from error
        if error.errno == errno.ENXIO:
            raise IchidoError(_FILE_REFUSED, f'{what} is not a regular file') from error
        raise
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise IchidoError(_FILE_REFUSED, f'{what} is not a regular file')


def _leases_in(process: Path) -> List[Dict[str, Any]]:
    """The leases that a process held."""
    leases = []
    for file in process.glob(f'*/{_LEASE_FILE}'):
        # An incomplete file belongs to a run that never began.
        with contextlib.suppress(OSError, ValueError, IchidoError):
            with open(file, opener=lambda path, _: _open_regular(path, _LEASE_FILE)) as text:
                leases.append(json.loads(text.read(_LEASE_CHARACTERS_MAX)))
    return leases


_LEASE_CHARACTERS_MAX = 64 * 1024


def _lock(path: Path) -> Optional[int]:
    """Returns the descriptor that holds the lock, or None if another process holds it."""
    # Windows has no fcntl, and only the client runs there.
    import fcntl

    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except OSError:
            os.close(fd)
    return None


class _CalledOff(Exception):
    """The transfer of a run's file is no longer needed."""


@contextlib.contextmanager
def _failing_with(what: str, kinds: Any = Refused) -> Iterator[None]:
    """Makes a failed transfer the error of its run, unless another worker has the run."""
    try:
        yield
    except kinds as error:
        if error.code in _GONE:
            raise
        raise IchidoError(error.code, f'{what}: {error.message}') from error


# ----------------------------------------------------------------------------------------------------------- worker

#: The number of heartbeats in the time that a lease or run is safe without one, so that three may get lost.
_BEATS = 4
_BEATS_PER_CALL = 500
#: The pause before another attempt to listen for stop orders.
_DEAF_SECONDS = 10.0
#: Each run has its own process. Beyond this number, start another worker.
CONCURRENCY_MAX = 100
_RENEW_LOOK_SECONDS = 30.0
#: Refusals which mean that this worker no longer has the run, or that its outcome is recorded.
_GONE = frozenset(('LEASE_LOST', 'NOT_ASSIGNED', 'ALREADY_ENDED', 'OUTCOME_ALREADY_RECORDED', 'NOT_FOUND'))
#: The number of tries for a step that may fail the run.
_TRIES_MAX = 6


def _is_away(error: Optional[IchidoError]) -> bool:
    # A permanent error ends the worker, which then reports it.
    if error is None or not error.retryable:
        return False
    # A full store refuses everything else, too. A full artifact disk does not.
    is_full = error.code == 'STORE_FULL' and error.details.get('place') == 'store'
    return is_full or isinstance(error, Unreachable) or error.code == 'UNAVAILABLE'


def _is_passing(error: IchidoError) -> bool:
    # Another process of this worker may be renewing the token.
    return error.retryable or isinstance(error, Unauthenticated)


def _is_unable(error: IchidoError) -> bool:
    """The control plane answers, but cannot do it: it stores no artifacts, or its disk is full. That may last."""
    return error.status >= 500 and isinstance(error, Refused) and not _is_away(error)


def _warn(error: IchidoError, what: Any) -> None:
    """Logs an error, but not an outage: `_Reach` logs that once for all callers."""
    if not _is_away(error):
        log.warning('%s: %s', what, error)


class _Reach:
    """Logs when the control plane cannot be reached, and when it answers again, once each.

    A certificate error is logged even during an outage, because an operator must fix it.
    """

    def __init__(self) -> None:
        #: 0: it answers; 1: it cannot be reached; 2: it cannot be reached because of a certificate.
        self._said = 0
        self._changing = threading.Lock()

    def heard(self, error: Optional[IchidoError]) -> None:
        trouble = 0
        if error is not None and _is_away(error):
            trouble = 2 if isinstance(error.__cause__, ssl.SSLCertVerificationError) else 1
        with self._changing:
            said = self._said
            # A change from 2 to 1 is not news.
            self._said = max(said, trouble) if trouble else 0
        if trouble > said:
            log.warning('the control plane cannot be reached: %s', error)
        elif not trouble and said:
            log.info('the control plane answers again')


class _Held:
    """A lease, until the outcome of its run is reported."""

    def __init__(self, lease: Dict[str, Any], sent: _Mark, slot: int) -> None:
        self.lease = lease
        self.lease_id: str = lease['lease_id']
        self.slot = slot
        #: The time at which the last confirmed call was sent.
        self.confirmed = sent
        self.last_beat = sent
        self.beat_seconds = min(lease['lease_ttl_seconds'], _alone_seconds(lease)) / _BEATS
        self.lost = threading.Event()
        self.ended = threading.Event()
        self.pid: Optional[int] = None
        self.status: Optional[int] = None
        self.reason: Optional[str] = None
        #: The reason to stop, even if the run has not begun.
        self.told: Optional[str] = None

    def __str__(self) -> str:
        return f'job {self.lease["job_id"]} ({self.lease["kind"]}, attempt {self.lease["attempt"]})'

    @property
    def path(self) -> str:
        return f'/v1/leases/{urllib.parse.quote(self.lease_id, safe="")}'

    def out_of_time(self) -> bool:
        """True when the control plane can no longer be waiting for this worker."""
        return _elapsed(self.confirmed) > float(self.lease['lease_ttl_seconds'] + self.lease['continuation_seconds'])


class Worker:
    """Leases runs, runs their handlers, and reports the outcomes.

    `token` is an enroll token, which makes this machine a worker once, or a worker token. After the first start the
    token in `token_file` is enough. The worker logs to the logger `ichido` or, if your program has set up no
    logging, to stderr. `handlers` has a function for each kind of job. Each run has its own process, forked from
    this one as it is when `run()` is called: call it before you start threads. It inherits few variables
    (docs/workers.md lists them); `env` adds others, as NAME or NAME=VALUE.
    """

    def __init__(
        self,
        url: str,
        token: Optional[str] = None,
        *,
        queues: Sequence[str],
        handlers: Mapping[str, Handler],
        concurrency: int = 1,
        name: Optional[str] = None,
        token_file: Union[str, Path] = DEFAULT_TOKEN_FILE,
        drain_seconds: float = 20.0,
        insecure: bool = False,
        env: Iterable[str] = (),
    ) -> None:
        if not hasattr(os, 'fork'):
            raise RuntimeError('A worker needs Linux or macOS; the client works everywhere')
        if not queues or not handlers:
            raise ValueError('A worker needs at least one queue and one handler')
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise ValueError(f'concurrency must be from 1 to {CONCURRENCY_MAX}')
        self._queues = list(queues)
        self._handlers = dict(handlers)
        self._concurrency = concurrency
        self._drain_seconds = drain_seconds
        self._env = _added_env(env)
        file = Path(token_file).expanduser()
        self._identity = _Identity(url.rstrip('/'), token, file, name)
        heard = _Reach().heard
        self._http = _Http(url, self._identity.token, insecure=insecure, heard=heard)
        self._polling = _Http(url, self._identity.token, insecure=insecure, heard=heard)
        self._listening = _Http(url, self._identity.token, insecure=insecure)
        self._url = url.rstrip('/')
        # Names this process, so that a repeated start is one start.
        self._start_id = str(uuid.uuid4())
        self._folders = _RunFolders(file.with_name(f'{file.name}.runs').absolute(), self._start_id)
        self._held: Dict[str, _Held] = {}
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._hurrying = threading.Event()
        self._closed = threading.Event()
        self._beat_now = threading.Event()
        self._failure: Optional[Exception] = None
        self._orders: Optional[socket.socket] = None
        self._ordering = threading.Lock()

    def run(self) -> None:
        """Works until SIGTERM, SIGINT or `stop()`; raises an error that makes it impossible to continue."""
        _speak_up()
        supervisor = self._start_supervisor()
        before: Dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._identity.establish(self._http, self._stopping)
            # From here on there may be no user who could fix a certificate and start again.
            for calls in (self._http, self._polling, self._listening):
                calls.certificates_pass = True
            log.info('%s takes %s from %s', self._identity, ', '.join(self._queues), self._url)
            self._thread(self._hear)
            self._thread(self._beat)
            self._thread(self._listen)
            self._thread(self._settle)
            poll = self._thread(self._poll)
            while not self._stopping.is_set():
                self._identity.renew_if_due(self._http)
                self._stopping.wait(_RENEW_LOOK_SECONDS)
            self._drain(poll)
        finally:
            self._closed.set()
            self._beat_now.set()
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            os.waitpid(supervisor, 0)
            self._socket.close()
            self._http.close()
            self._polling.close()
            self._listening.abort()
            self._listening.close()
            self._folders.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._failure is not None:
            raise self._failure
        log.info('stopped')

    def stop(self) -> None:
        """Takes no more work, waits `drain_seconds` for its runs, and releases the others. A second call skips the wait."""
        if self._stopping.is_set():
            self._hurrying.set()
        self._stopping.set()
        self._polling.abort()
        with self._changed:
            self._changed.notify_all()

    def _on_signal(self, *_: Any) -> None:
        # This needs a separate thread, because the signal may interrupt code that holds a lock.
        threading.Thread(target=self._signaled).start()

    def _signaled(self) -> None:
        if self._held and not self._stopping.is_set():
            log.info('takes no more work and waits for its runs; press Ctrl-C again to stop them')
        self.stop()

    def _drain(self, poll: threading.Thread) -> None:
        poll.join()
        until = time.monotonic() + self._drain_seconds
        while self._held and time.monotonic() < until and not self._hurrying.wait(0.05):
            pass
        for held in list(self._held.values()):
            self._stop_run(held, 'STOPPED')
        with self._changed:
            while self._held:
                self._changed.wait(1.0)

    def _thread(self, target: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                target()
            except Exception as error:
                self._fail(error)

        thread = threading.Thread(target=run, name=target.__name__, daemon=True)
        thread.start()
        return thread

    # Leasing

    def _poll(self) -> None:
        poll_id, failures = str(uuid.uuid4()), 0
        while self._has_room():
            sent = _now()
            try:
                leases = self._lease(self._polling, poll_id, WAIT_SECONDS)
            except IchidoError as error:
                if self._stopping.is_set():
                    break
                renewed = isinstance(error, Unauthenticated) and self._identity.reload()
                if not (error.retryable or renewed or error.code.startswith('HTTP_')):
                    raise
                _warn(error, 'no work')
                failures += 1
                self._stopping.wait(_pause(failures - 1, error))
                continue
            # The id is kept until the poll is answered: after a lost answer the server returns the same leases for it.
            poll_id, failures = str(uuid.uuid4()), 0
            for lease in leases:
                self._take(lease, sent)
            if not leases and _elapsed(sent) < 1.0:
                # The server is stopping, or a proxy does not let calls wait.
                self._stopping.wait(_pause(0))
        self._collect(poll_id)

    def _has_room(self) -> bool:
        """Waits for a free slot. False if the worker is stopping."""
        with self._changed:
            while len(self._held) >= self._concurrency and not self._stopping.is_set():
                self._changed.wait()
        return not self._stopping.is_set()

    def _lease(self, calls: _Http, poll_id: str, wait: float) -> List[Dict[str, Any]]:
        body = {
            'queues': self._queues,
            'kinds': list(self._handlers),
            'max': self._concurrency - len(self._held),
            'wait_seconds': wait,
            'poll_id': poll_id,
        }
        answer = calls.call('POST', '/v1/leases', body, timeout=wait + CALL_SECONDS)[0]
        return [] if answer is None else list(answer['leases'])

    def _collect(self, poll_id: str) -> None:
        """Releases the leases of a poll that was aborted before its answer came."""
        if len(self._held) >= self._concurrency:
            return
        try:
            for lease in self._lease(self._http, poll_id, 0):
                self._take(lease, _now())
        except IchidoError as error:
            log.warning('the last leases could not be given back and end by themselves: %s', error)

    def _take(self, lease: Dict[str, Any], sent: _Mark) -> None:
        with self._changed:
            if lease['lease_id'] in self._held:
                return
            taken = {held.slot for held in self._held.values()}
            held = _Held(lease, sent, next(slot for slot in range(CONCURRENCY_MAX + 1) if slot not in taken))
            self._held[held.lease_id] = held
        self._beat_now.set()
        threading.Thread(target=self._work, args=(held,), name=f'run-{held.slot}').start()

    # One run

    def _work(self, held: _Held) -> None:
        try:
            if self._stopping.is_set():
                self._deliver(held, 'release', {})
            else:
                self._carry_out(held)
        except Refused as error:
            log.warning('%s: %s', held, error)
        except Unreachable as error:
            log.error('%s could not be reported: %s', held, error)
        finally:
            self._folders.drop(held.lease)
            with self._changed:
                del self._held[held.lease_id]
                self._changed.notify_all()

    def _carry_out(self, held: _Held) -> None:
        began = self._start(held)
        log.info('%s began', held)
        feed = _Feed(held, lambda path, body: self._post(path, body, _FEED_SECONDS))
        try:
            folder = self._folders.make(held.lease)
            self._fetch_inputs(held, folder)
            verb, body = self._conclusion(held, self._follow(held, feed, folder, began))
            if verb == 'result':
                with _local(folder / 'outputs'):
                    outputs = self._folders.open_outputs(held.lease)
                try:
                    self._send_outputs(held, folder / 'outputs', outputs)
                finally:
                    os.close(outputs)
        except _CalledOff:
            verb, body = 'release', {}
        except IchidoError as error:
            if isinstance(error, Unreachable) or error.code in _GONE:
                raise
            verb, body = 'failed', {'error_code': error.code, 'error_message': error.message}
            if error.code == _FILE_REFUSED:
                # A retry would fail, too.
                body['retryable'] = False
        log.info('%s %s, after %.1f s', held, _end_text(held, verb, body), time.monotonic() - began)
        if not held.lost.is_set():
            self._flush(held, feed)
            self._report(held, verb, body)

    def _fetch_inputs(self, held: _Held, folder: Path) -> None:
        """Fetches the inputs. The run has not begun, so after a failure another worker can try."""

        def look() -> None:
            if held.told is not None or held.lost.is_set() or self._hurrying.is_set():
                raise _CalledOff

        for artifact in held.lease['artifacts']:
            look()
            path = folder / os.path.basename(artifact['name'])
            with _failing_with(f'{path.name} could not be fetched', (Refused, Unreachable)):
                with _Download(self._http, artifact['artifact_id'], path, look) as download:
                    self._insist(held, download.go, look, tries=_TRIES_MAX)
        look()

    def _send_outputs(self, held: _Held, folder: Path, fd: int) -> None:
        """Sends the files in the folder, without subfolders. The run has its result: while the server accepts files, only
        a lost run or a hurried stop aborts this."""

        def look() -> None:
            if held.lost.is_set() or self._hurrying.is_set():
                raise _CalledOff

        def look_again() -> None:
            look()
            if held.told is not None:
                raise _CalledOff

        def opener(path: str, _: int) -> int:
            name = os.path.basename(path)
            return _open_regular(name, f'outputs/{name}', fd)

        with _local(folder):
            entries = [entry.name for entry in os.scandir(fd) if not entry.is_dir(follow_symlinks=False)]
            # Desktops and editors create hidden files, which are not outputs.
            names = sorted(name for name in entries if not name.startswith('.'))
        refused: List[IchidoError] = []
        for file in [folder / name for name in names]:
            try:
                described = _described(file, None, opener)
            except IchidoError as error:
                if error.code != _FILE_REFUSED:
                    raise
                # A refused file does not prevent the upload of the others, which may be hours of work.
                refused.append(error)
                continue
            upload = _Upload(self._http, file, described, look, opener, lease_id=held.lease_id)
            with _failing_with(f'The control plane did not accept outputs/{file.name}'):
                self._insist(held, upload.go, look_again)
        if refused:
            raise refused[0]

    def _start(self, held: _Held) -> float:
        began: List[_Mark] = []

        def start() -> _Mark:
            sent = _now()
            began.append(sent)
            answer = self._post(f'{held.path}/start', {'start_id': self._start_id})
            if answer['repeated']:
                # The first start may have been long ago, and the control plane may be about to retry the job. Only a
                # heartbeat tells.
                sent = _now()
                self._post(f'{held.path}/heartbeat', {})
            return sent

        sent = self._insist(held, start)
        held.confirmed = held.last_beat = sent
        return began[0].monotonic

    def _follow(self, held: _Held, feed: _Feed, folder: Path, began: float) -> Dict[str, Any]:
        """Lets the supervisor start the run, forwards its output, and returns its outcome."""
        readers, writers = zip(*(os.pipe() for _ in range(3)))
        try:
            order = {'do': 'begin', 'lease': held.lease, 'slot': held.slot, 'folder': str(folder), 'began': began}
            self._order(held, {**order, 'env': self._env, 'confirmed': held.confirmed}, writers)
        finally:
            for fd in writers:
                os.close(fd)
        if held.told is not None:
            # That order may have come before there was anything to stop.
            self._stop_run(held, held.told, SHORT_GRACE_SECONDS if held.lost.is_set() else GRACE_SECONDS)
        outcome: Dict[str, Any] = {}
        cost: Dict[str, Any] = {}
        with selectors.DefaultSelector() as selector:
            messages = _Lines()
            for fd, stream in zip(readers, ('messages', 'stdout', 'stderr')):
                selector.register(fd, selectors.EVENT_READ, stream)
            while selector.get_map():
                # This is read before select: a worker that was stopped may find nothing, although there is data.
                ended = held.ended.is_set()
                ready = selector.select(0 if ended else 0.2)
                if not ready and ended:
                    break
                for key, _ in ready:
                    data = os.read(key.fd, 65536)
                    if not data:
                        selector.unregister(key.fd)
                    elif key.data != 'messages':
                        feed.print(key.data, data)
                    else:
                        for message in messages.add(data):
                            if 'event' in message:
                                feed.publish(message['event'])
                            elif 'cost' in message:
                                cost = message
                            else:
                                outcome = {**message, **cost}
                feed.flush()
        for fd in readers:
            os.close(fd)
        held.ended.wait()
        feed.close()
        return outcome

    def _flush(self, held: _Held, feed: _Feed) -> None:
        """Sends the remaining output before the outcome, because the server accepts none after it."""

        def flush() -> None:
            error = feed.flush(now=True)
            if error is not None:
                raise error

        with contextlib.suppress(Refused):
            self._insist(held, flush)

    def _report(self, held: _Held, verb: str, body: Dict[str, Any]) -> None:
        try:
            self._deliver(held, verb, body)
        except Refused as error:
            if verb != 'result' or error.code in _GONE:
                raise
            # If a result is too large or cannot be stored, the run fails with that error.
            failure = {'error_code': error.code, 'error_message': error.message, 'retryable': False}
            log.info('%s %s', held, _end_text(held, 'failed', failure))
            self._deliver(held, 'failed', failure)

    def _deliver(self, held: _Held, verb: str, body: Dict[str, Any]) -> None:
        # There is no other report to send instead.
        self._insist(held, lambda: self._post(f'{held.path}/{verb}', body), unable_tries=math.inf)

    def _conclusion(self, held: _Held, outcome: Dict[str, Any]) -> Tuple[str, Dict[str, Any]]:
        if held.status is None:
            # The run was not started, or the supervisor is gone.
            return 'release', {}
        failure = outcome.get('failure')
        final = failure is not None and not failure['retryable']
        if held.reason in ('TIMEOUT', 'CONTINUATION_LOST') and not final:
            # A result that a handler returns after its timeout may be incomplete.
            return 'failed', {'error_code': held.reason, 'error_message': _WHY[held.reason]}
        if 'result' in outcome:
            return 'result', {name: outcome[name] for name in ('result', 'cost') if name in outcome}
        if held.reason == 'STOPPED' and not final:
            return 'release', {}
        if failure is not None:
            return 'failed', failure
        if held.reason is not None:
            return 'failed', {'error_code': held.reason, 'error_message': _WHY[held.reason]}
        return 'failed', {'error_code': 'HANDLER_DIED', 'error_message': _how_it_ended(held.status)}

    def _insist(
        self,
        held: _Held,
        call: Callable[[], Any],
        look: Callable[[], None] = lambda: None,
        *,
        tries: float = math.inf,
        unable_tries: float = _TRIES_MAX,
    ) -> Any:
        """Retries as long as the lease may be valid, but at most `unable_tries` times if the control plane is unable.
        Between tries it calls `look`, which may abort it."""
        failures = unable = 0
        while True:
            try:
                return call()
            except IchidoError as error:
                if not _is_passing(error):
                    raise
                look()
                failures += 1
                unable += _is_unable(error)
                given_up = failures >= tries or unable >= unable_tries
                if given_up or held.lost.is_set() or held.out_of_time() or self._hurrying.is_set():
                    raise
                _warn(error, held)
                pause = _pause(failures - 1, error)
            self._rest(held, pause, look)

    def _rest(self, held: _Held, seconds: float, look: Callable[[], None]) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not (held.lost.wait(_TICK_SECONDS) or self._hurrying.is_set()):
            look()
        look()

    # Runs of an earlier process

    def _settle(self) -> None:
        """Reports the runs of a dead process of this worker as failed, once none of their processes lives."""
        until = time.monotonic() + _LEFTOVERS_SECONDS
        left = self._folders.others()
        while left and time.monotonic() < until:
            left = [process for process in left if not self._settle_one(process)]
            if left and self._stopping.wait(_TICK_SECONDS):
                return

    def _settle_one(self, process: Path) -> bool:
        """False while any of its processes lives: there may be two processes of this worker."""
        lock = _lock(process / 'lock')
        if lock is None:
            return False
        for lease in _leases_in(process):
            if _all_killed(lease['lease_id']):
                self._tell_died(lease)
        if not self._stopping.is_set():
            shutil.rmtree(process, ignore_errors=True)
        os.close(lock)
        return True

    def _tell_died(self, lease: Dict[str, Any]) -> None:
        path = f'/v1/leases/{urllib.parse.quote(lease["lease_id"], safe="")}/failed'
        for failures in itertools.count():
            try:
                self._post(path, _DIED)
                log.info('delivered what was left of job %s: it failed with AGENT_DIED', lease['job_id'])
                return
            except IchidoError as error:
                if not _is_passing(error):
                    log.info('the control plane refuses what was left of job %s: %s', lease['job_id'], error)
                    return
                if self._stopping.wait(_pause(failures, error)):
                    return

    # Heartbeats

    def _beat(self) -> None:
        while not self._closed.is_set():
            self._beat_now.clear()
            now = _now()
            all_held = [held for held in list(self._held.values()) if not held.lost.is_set()]
            if any(_elapsed(held.last_beat, now) >= held.beat_seconds for held in all_held):
                # Leases that are nearly due are included, so that all leases get into one rhythm.
                due = [held for held in all_held if _elapsed(held.last_beat, now) >= held.beat_seconds / 2]
                for at in range(0, len(due), _BEATS_PER_CALL):
                    self._send_beats(due[at : at + _BEATS_PER_CALL])
                continue
            left = [held.beat_seconds - _elapsed(held.last_beat, now) for held in all_held]
            self._beat_now.wait(max(0.01, min([1.0, *left])))

    def _send_beats(self, due: List[_Held]) -> None:
        sent = _now()
        for held in due:
            held.last_beat = sent
        timeout = max(1.0, min(10.0, *(held.beat_seconds * 2 for held in due)))
        try:
            answer = self._post('/v1/leases/heartbeat', {'lease_ids': [held.lease_id for held in due]}, timeout)
        except Forbidden:
            # A revoked worker holds no lease.
            answer = {'data': [{'held': False}] * len(due)}
        except IchidoError as error:
            _warn(error, 'no heartbeat')
            return
        for held, beat in zip(due, answer['data']):
            if not beat['held']:
                held.lost.set()
                self._stop_run(held, 'LEASE_LOST', SHORT_GRACE_SECONDS)
            elif beat['cancel_requested']:
                # This is no confirmation: the control plane's wait began earlier, at the cancel request.
                self._stop_run(held, 'CANCELED')
            else:
                held.confirmed = sent
                self._order(held, {'do': 'confirm', 'confirmed': sent})

    def _listen(self) -> None:
        """Listens for stop orders. Heartbeats deliver them, too, but seconds later."""
        told: List[str] = []
        while not self._closed.wait(1.0):
            if not self._held:
                continue
            body = {'known': told, 'wait_seconds': WAIT_SECONDS}
            try:
                answer, _ = self._listening.call('POST', '/v1/leases/cancels', body, timeout=WAIT_SECONDS + CALL_SECONDS)
            except IchidoError as error:
                log.debug('cannot wait for cancellations: %s', error)
                self._closed.wait(_DEAF_SECONDS)
                continue
            told = answer['lease_ids'] or told
            for held in [held for held in list(self._held.values()) if held.lease_id in told]:
                self._stop_run(held, 'CANCELED')

    # The supervisor

    def _start_supervisor(self) -> int:
        ours, its = socket.socketpair()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                self._folders.lock()
                _Supervisor(its, self._handlers).run()
            except BaseException:
                tracebacks.print_exc()
            finally:
                os._exit(0)
        its.close()
        self._orders = ours
        return pid

    @property
    def _socket(self) -> socket.socket:
        if self._orders is None:
            raise RuntimeError('The worker is not running')
        return self._orders

    def _order(self, held: _Held, order: Dict[str, Any], fds: Sequence[int] = ()) -> None:
        line = json.dumps({**order, 'lease_id': held.lease_id}).encode() + b'\n'
        with self._ordering, contextlib.suppress(OSError):
            sent = socket.send_fds(self._socket, [line], fds) if fds else 0
            self._socket.sendall(line[sent:])

    def _stop_run(self, held: _Held, reason: str, grace: float = GRACE_SECONDS) -> None:
        held.told = held.told or reason
        self._order(held, {'do': 'stop', 'reason': reason, 'grace': grace})

    def _hear(self) -> None:
        """Reads the messages of the supervisor."""
        notices = _Lines()
        while True:
            try:
                data = self._socket.recv(65536)
            except OSError:
                data = b''
            if not data:
                break
            for notice in notices.add(data):
                held = self._held.get(notice['lease_id'])
                if held is None:
                    continue
                if 'pid' in notice:
                    held.pid = notice['pid']
                else:
                    held.status, held.reason = notice['status'], notice['reason']
                    held.ended.set()
        if self._closed.is_set():
            return
        # The supervisor was killed, and its handlers died with it. This process kills the handlers' children.
        self._stopping.set()
        for held in list(self._held.values()):
            if not held.ended.is_set():
                while held.pid is not None and not _kill_all(held.pid, held.lease_id):
                    time.sleep(_KILL_TICK_SECONDS)
                held.ended.set()
        raise RuntimeError('The supervisor process has ended')

    def _fail(self, error: Exception) -> None:
        log.error('takes no more work: %s', error)
        self._failure = error
        self.stop()

    def _post(self, path: str, body: Any, timeout: float = CALL_SECONDS) -> Any:
        try:
            return self._http.call('POST', path, body, timeout=timeout)[0]
        except Unauthenticated:
            if not self._identity.reload():
                raise
            return self._http.call('POST', path, body, timeout=timeout)[0]


#: A supervisor without its worker gives its handlers a second, and kills for two at most.
_LEFTOVERS_SECONDS = 10.0
_DIED = {'error_code': 'AGENT_DIED', 'error_message': 'The worker ended while the handler ran', 'retryable': True}

_WHY = {
    'CANCELED': 'The job was canceled',
    'TIMEOUT': 'The run took longer than its timeout_seconds',
    'CONTINUATION_LOST': 'No heartbeat was confirmed in time',
    'LEASE_LOST': 'The lease is lost',
}


_WORDS_MAX = 200


def _end_text(held: _Held, verb: str, body: Mapping[str, Any]) -> str:
    if held.lost.is_set():
        return 'was stopped, because its lease is lost'
    if 'CANCELED' in (held.reason, held.told):
        return 'canceled'
    if verb != 'failed':
        return 'succeeded' if verb == 'result' else 'released'
    words = body['error_message'].strip().split('\n')[0]
    text = words[:_WORDS_MAX] + '…' if len(words) > _WORDS_MAX else words
    return _for_terminal(f'failed with {body["error_code"]}: {text}')


def _how_it_ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f'The process of the handler was ended by {signal.Signals(os.WTERMSIG(status)).name}'
    return f'The process of the handler ended with {os.WEXITSTATUS(status)} and without an outcome'


_FEED_SECONDS = 10.0
_FLUSH_SECONDS = 1.0
_CHUNK_CHARACTERS = 64 * 1024
_WAITING_CHARACTERS = 1024 * 1024
_CHUNKS_PER_CALL = 16
_EVENTS_PER_CALL = 100


class _Feed:
    """Sends the output and events of a run to the server. Numbers identify duplicates, which count once."""

    def __init__(self, held: _Held, post: Callable[[str, Any], Any]) -> None:
        self._held = held
        self._post = post
        decoder = codecs.getincrementaldecoder('utf-8')
        self._decoders = {stream: decoder(errors='replace') for stream in ('stdout', 'stderr')}
        self._texts: List[Tuple[str, str]] = []
        self._waiting = 0
        self._cut_off = 0
        self._chunks: List[Dict[str, Any]] = []
        self._n = 0
        self._events: List[Dict[str, Any]] = []
        self._next = 0.0

    def print(self, stream: str, data: bytes) -> None:
        self._add(stream, self._decoders[stream].decode(data))

    def publish(self, event: Dict[str, Any]) -> None:
        if not self._events:
            self._next = 0.0
        self._events.append(event)

    def close(self) -> None:
        for stream, decoder in self._decoders.items():
            self._add(stream, decoder.decode(b'', final=True))
        if self._cut_off:
            self._texts.append(('stderr', f'\n[{self._cut_off} characters of output could not be sent]\n'))

    def flush(self, *, now: bool = False) -> Optional[IchidoError]:
        """Sends the pending data, unless it is too soon. Returns a temporary error."""
        if not (self._events or self._texts or self._chunks) or (not now and time.monotonic() < self._next):
            return None
        try:
            while self._events or self._texts or self._chunks:
                self._send_events()
                self._send_chunks()
            return None
        except IchidoError as error:
            return error
        finally:
            self._next = time.monotonic() + _FLUSH_SECONDS

    def _add(self, stream: str, text: str) -> None:
        if not text:
            return
        if self._waiting + len(text) > _WAITING_CHARACTERS:
            # The server cannot be reached, which must not block the run.
            self._cut_off += len(text)
            return
        self._waiting += len(text)
        text = text.replace('\0', '\N{REPLACEMENT CHARACTER}')
        if self._texts and self._texts[-1][0] == stream and len(self._texts[-1][1]) < _CHUNK_CHARACTERS:
            text = self._texts.pop()[1] + text
        self._texts.append((stream, text))

    def _send_events(self) -> None:
        while self._events:
            batch = self._events[:_EVENTS_PER_CALL]
            if self._take(f'{self._held.path}/events', {'events': batch}) is False and len(batch) > 1:
                # One event of the batch is bad, so each is sent alone.
                for event in batch:
                    self._take(f'{self._held.path}/events', {'events': [event]})
            del self._events[: len(batch)]

    def _send_chunks(self) -> None:
        if not self._chunks:
            texts, self._texts = self._texts[:_CHUNKS_PER_CALL], self._texts[_CHUNKS_PER_CALL:]
            for stream, text in texts:
                self._chunks.append({'n': self._n, 'stream': stream, 'text': text})
                self._n += 1
        if self._chunks:
            self._take(f'{self._held.path}/logs', {'chunks': self._chunks})
            self._waiting -= sum(len(chunk['text']) for chunk in self._chunks)
            self._chunks = []

    def _take(self, path: str, body: Any) -> bool:
        """False if it was refused for good."""
        try:
            self._post(path, body)
        except Refused as error:
            if _is_passing(error):
                raise
            log.warning('%s: %s was refused: %s', self._held, path.rsplit('/', 1)[1], error)
            return False
        return True


# ----------------------------------------------------------------------------------------------------- command line

_DONE, _FAILED, _USAGE, _TIMEOUT = 0, 1, 2, 3


def main(argv: Optional[Sequence[str]] = None) -> int:
    arguments = _parser().parse_args(argv)
    _speak_up()
    try:
        return int(arguments.command(arguments))
    except ResultNotReady as error:
        print(_for_terminal(error), file=sys.stderr)
        return _TIMEOUT
    except (IchidoError, RuntimeError) as error:
        print(_for_terminal(error), file=sys.stderr)
        return _FAILED
    except (ValueError, ImportError, AttributeError) as error:
        print(_for_terminal(error), file=sys.stderr)
        return _USAGE
    except KeyboardInterrupt:
        return _FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='ichido.py', description='Submit jobs to Ichido, and work on them.')
    common = argparse.ArgumentParser(add_help=False)
    url = os.environ.get('ICHIDO_URL') or DEFAULT_URL
    shown = _without_credentials(url).replace('%', '%%')
    common.add_argument('--url', default=url, help=f'the server (ICHIDO_URL; {shown})')
    common.add_argument('--insecure', action='store_true', help='allow plain HTTP to another machine')
    commands = parser.add_subparsers(required=True, metavar='submit|logs|artifacts|download|upload|work')

    submit = commands.add_parser('submit', parents=[common], help='submit a job (with ICHIDO_TOKEN)')
    submit.add_argument('kind')
    submit.add_argument('payload', nargs='?', default='null', help='JSON, or - to read it from stdin')
    submit.add_argument('--queue')
    submit.add_argument('--key', help='a repeated submission with the same key gets the same job')
    submit.add_argument('--file', action='append', default=[], help='a file for the job; repeat the option for several')
    submit.add_argument('--wait', nargs='?', type=_seconds, const=math.inf, metavar='TIME', help='print the result; stop waiting after this long, such as 10m')
    submit.set_defaults(command=_submit)

    for name, command, text in (
        ('logs', _logs, 'print the log of a job'),
        ('artifacts', _artifacts, 'list the files of a job, one line of JSON each'),
    ):
        of_job = commands.add_parser(name, parents=[common], help=text)
        of_job.add_argument('job_id')
        of_job.set_defaults(command=command)
    download = commands.add_parser('download', parents=[common], help='write an artifact to a file')
    download.add_argument('artifact_id')
    download.add_argument('path')
    download.set_defaults(command=_download)
    upload = commands.add_parser('upload', parents=[common], help='send a file that a job waits for')
    upload.add_argument('path')
    upload.add_argument('--job', help='the job that lists the file; without it, the file is for future jobs')
    upload.add_argument('--name', help="the name of the artifact (default: the file's own)")
    upload.set_defaults(command=_upload)

    work = commands.add_parser('work', parents=[common], help='work on jobs')
    work.add_argument('handlers', nargs='+', metavar='KIND=MODULE:FUNCTION')
    work.add_argument('--queue', action='append', required=True, help='a queue to work on; repeat the option for several')
    enroll = os.environ.get('ICHIDO_ENROLL_TOKEN')
    work.add_argument('--enroll', default=enroll, metavar='TOKEN', help='an enroll token, needed once (ICHIDO_ENROLL_TOKEN)')
    work.add_argument('--concurrency', type=int, default=1)
    work.add_argument('--name', help='the name of the worker (default: the one that it was enrolled under)')
    work.add_argument('--token-file', default=str(DEFAULT_TOKEN_FILE), help='%(default)s')
    work.add_argument('--env', action='append', default=[], metavar='NAME[=VALUE]', help='one more variable for handlers; repeat the option for several')
    work.add_argument('--drain', type=_seconds, default=20.0, metavar='TIME', help='how long runs may continue after SIGTERM, such as 10m')
    work.set_defaults(command=_work)
    return parser


def _seconds(text: str) -> float:
    """Reads 30s, 10m, 2h, 7d and 500ms; a plain number is in seconds."""
    found = re.fullmatch(r'(\d+(?:\.\d+)?)(ms|s|m|h|d)?', text, re.ASCII)
    if found is None:
        raise argparse.ArgumentTypeError(f'{text!r} is not a time like 30s, 10m, 2h or 7d')
    unit = {'ms': 0.001, 's': 1, 'm': 60, 'h': 3600, 'd': 86400}[found[2] or 's']
    return float(found[1]) * unit


def _submit(arguments: argparse.Namespace) -> int:
    payload = json.loads(sys.stdin.read() if arguments.payload == '-' else arguments.payload)
    client = _client(arguments)
    job = client.submit(arguments.kind, payload, key=arguments.key, queue=arguments.queue, files=arguments.file)
    if arguments.wait is None:
        print(json.dumps(dataclasses.asdict(job)))
    else:
        print(json.dumps(client.result(job.id, None if arguments.wait == math.inf else arguments.wait)))
    return _DONE


def _logs(arguments: argparse.Namespace) -> int:
    sys.stdout.write(_for_terminal(_client(arguments).logs(arguments.job_id)))
    return _DONE


def _artifacts(arguments: argparse.Namespace) -> int:
    for artifact in _client(arguments).artifacts(arguments.job_id):
        print(json.dumps(artifact))
    return _DONE


def _download(arguments: argparse.Namespace) -> int:
    _client(arguments).download(arguments.artifact_id, arguments.path)
    return _DONE


def _upload(arguments: argparse.Namespace) -> int:
    artifact = _client(arguments).upload(arguments.path, job_id=arguments.job, name=arguments.name)
    print(json.dumps(artifact))
    return _DONE


def _client(arguments: argparse.Namespace) -> Client:
    return Client(arguments.url, insecure=arguments.insecure)


def _work(arguments: argparse.Namespace) -> int:
    sys.path.insert(0, os.getcwd())
    worker = Worker(
        arguments.url,
        arguments.enroll,
        queues=arguments.queue,
        handlers=dict(map(_handler, arguments.handlers)),
        concurrency=arguments.concurrency,
        name=arguments.name,
        token_file=arguments.token_file,
        drain_seconds=arguments.drain,
        env=arguments.env,
        insecure=arguments.insecure,
    )
    worker.run()
    return _DONE


def _handler(text: str) -> Tuple[str, Handler]:
    kind, _, place = text.partition('=')
    module, _, function = place.partition(':')
    if not (kind and module and function):
        raise ValueError(f'{text!r} is not KIND=MODULE:FUNCTION')
    return kind, getattr(importlib.import_module(module), function)


if __name__ == '__main__':
    # A handler's `import ichido` must find this module: a second copy would have another `Fatal` class.
    sys.modules['ichido'] = sys.modules['__main__']
    sys.exit(main())
