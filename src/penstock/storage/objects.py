"""Objects of an object store by URL: read whole, by range and as a stream, written and listed.

The client is obstore. Credentials, regions and endpoints are the client's own: the variables AWS_*, GOOGLE_* and
AZURE_*, and the roles of machines. Every failure is an error of penstock.errors that names the URL.
"""

from __future__ import annotations

import asyncio
import os
import re
import textwrap
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from penstock.errors import (
    AccessRefused,
    ChangedObject,
    MissingBucket,
    MissingCredentials,
    MissingObject,
    StorageError,
    StoreFull,
    StoreUnreachable,
)
from penstock.showing import without_secrets
from penstock.system.words import counted

try:
    import obstore
    import obstore.exceptions
    import obstore.store
except ImportError:
    obstore = None  # type: ignore[assignment]

T = TypeVar("T")

_RETRIES: Any = {
    "max_retries": 4,
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2.0},
    "retry_timeout": timedelta(seconds=30),
}
_TIMEOUTS = {"timeout": "60s", "connect_timeout": "5s"}

# What the client says of each failure, in its words or the store's. The first match counts.
_MEANINGS: tuple[tuple[str, type[StorageError], str], ...] = (
    (
        r"NoSuchBucket|ContainerNotFound|specified bucket does not exist",
        MissingBucket,
        "the bucket does not exist; check its name and the endpoint",
    ),
    (
        r"169\.254\.169\.254|169\.254\.170\.2|metadata\.google|/metadata/identity|[Mm]issing credentials|"
        r"CredentialsNotLoaded|Account must be specified|no credentials",
        MissingCredentials,
        "no credentials were found; set those of the store (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
        "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY), or "
        "AWS_SKIP_SIGNATURE=true for a public bucket",
    ),
    (r"416 |Wanted range", ChangedObject, "the object is shorter than dataset.json says: it was damaged or replaced"),
    (
        r"507 |InsufficientStorage|StorageFull|QuotaExceeded|quotaExceeded",
        StoreFull,
        "the store has no space, or no quota, for more; free some, and pack again: finished shards are kept",
    ),
    (
        r"401 Unauthorized|403 Forbidden|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|PermissionDenied|"
        r"Unauthenticated",
        AccessRefused,
        "the store refuses access with these credentials",
    ),
    (r"404 Not Found|NotFound|No such file", MissingObject, "the object does not exist"),
    (
        r"HTTP error|error sending request|tcp connect|dns error|timed out|timeout|connection|5\d\d [A-Z]|429 |"
        r"error decoding response body|after \d+ retries",
        StoreUnreachable,
        "the store does not answer; check the endpoint and the network",
    ),
)

# What a store or a proxy repeats of a request's headers in the body of its refusal.
_ECHOED = re.compile(
    r"""(?i)((?<!invalid)access-?key-?id|security-token|signature|credential|authorization)([\\"']*\s*[=:>]\s*[\\"']*)"""
    r"""(bearer |basic |sharedkey )?[^\s"'<>,&\\]+"""
)

#: The process that used the client first: its threads, which no forked child has, serve all stores.
_FIRST: list[int] = []


def client() -> ModuleType:
    """Return the obstore package. Raises ImportError where it is not installed."""
    if not _FIRST:
        _FIRST.append(os.getpid())
    if obstore is None:
        raise ImportError('shards in an object store are read by obstore: pip install "penstock-loader[remote]"')
    return obstore


def run_alone(work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns, run in another thread, because the caller's may have an event loop."""
    result: Future[T] = Future()
    tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[T]]] = []

    async def main() -> T:
        tasks.append((asyncio.get_running_loop(), task := asyncio.ensure_future(work)))
        return await task

    def run() -> None:
        try:
            value = asyncio.run(main())
        except BaseException as error:
            result.set_exception(error)
        else:
            result.set_result(value)

    thread = threading.Thread(target=run, name="penstock-fetch", daemon=True)
    thread.start()
    try:
        return result.result()
    except BaseException:
        if not result.done():  # Ctrl-C
            for loop, task in tasks:
                with suppress(RuntimeError):  # it has ended
                    loop.call_soon_threadsafe(task.cancel)
        raise
    finally:
        thread.join(2.0)


class ObjectStore:
    """The objects under one URL; any number of threads may read.

    Args:
        url: of the folder that the objects lie in, such as ``s3://bucket/prefix``. The attribute ``url``, which
            messages show, has no user, password and query.

    Raises:
        ImportError: obstore is not installed.
        StorageError: the client refuses the URL.
    """

    def __init__(self, url: str) -> None:
        self._given = url.rstrip("/")
        self.url = without_secrets(self._given)
        options: dict[str, Any] = dict(_TIMEOUTS)
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
        if any(url.startswith("http://") for url in (self.url, endpoint, os.environ.get("AWS_ENDPOINT", ""))):
            options["allow_http"] = True
        with self._meaning(""):
            remote: dict[str, Any] = {"client_options": options, "retry_config": _RETRIES}
            local = self.url.startswith(("file://", "memory://"))
            self._store = client().store.from_url(self._given, **({} if local else remote))

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStore, (self._given,)

    def url_of(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    @contextmanager
    def _meaning(self, name: str) -> Iterator[None]:
        """Raise what an error of the client means; and StorageError in a forked child, which has not its threads."""
        if _FIRST and _FIRST[0] != os.getpid():
            raise StorageError(
                f"{self.url_of(name)}: the client of object stores does not work in a process forked after its first "
                "use: start worker processes by multiprocessing_context='spawn', or read in threads, by "
                "worker_method='thread'",
                url=self.url_of(name),
            )
        try:
            yield
        except ImportError:
            raise
        except Exception as error:
            self._raise(error, name)

    def _run(self, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def meant() -> T:
            with self._meaning(name):
                return await work()

        return run_alone(meant())

    def read(self, name: str) -> bytes:
        """Return an object. Raises StorageError."""

        async def read() -> bytes:
            answer = await client().get_async(self._store, name)
            return bytes(await answer.bytes_async())

        return self._run(name, read)

    def sizes(self) -> dict[str, int]:
        """Return all objects under the URL with their bytes. Raises StorageError."""
        return {name: size for name, (size, _) in self.entries().items()}

    def entries(self) -> dict[str, tuple[int, str]]:
        """Return the bytes and the version of all objects under the URL. Raises StorageError."""

        async def entries() -> dict[str, tuple[int, str]]:
            return {str(one["path"]): _entry(one) async for page in client().list(self._store) for one in page}

        return self._run("", entries)

    def entry(self, name: str) -> tuple[int, str]:
        """Return the bytes and the version of an object. Raises StorageError."""

        async def entry() -> tuple[int, str]:
            return _entry(await client().head_async(self._store, name))

        return self._run(name, entry)

    def put(self, name: str, data: bytes | Iterator[bytes]) -> None:
        """Write an object, which appears once all of it is there; parts of an iterator are sent as they come.

        Raises StorageError, and what the iterator raises.
        """
        raised: list[BaseException] = []

        def parts(given: Iterator[bytes]) -> Iterator[bytes]:
            try:
                yield from given
            except BaseException as error:
                raised.append(error)
                raise

        async def put() -> None:
            given = data if isinstance(data, bytes) else parts(data)
            await client().put_async(self._store, name, given, chunk_size=_PART, max_concurrency=4)

        try:
            self._run(name, put)
        except Exception:
            if raised:
                raise raised[0] from None
            raise

    def put_new(self, name: str, data: bytes) -> bool:
        """Write an object; False: there is one of that name, as far as the store can tell. Raises StorageError."""

        async def put() -> bool:
            exceptions = client().exceptions
            try:
                await client().put_async(self._store, name, data, mode="create")
            except exceptions.AlreadyExistsError:
                return False
            except exceptions.NotSupportedError:
                await client().put_async(self._store, name, data)
            return True

        return self._run(name, put)

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects. Raises StorageError."""

        async def delete() -> None:
            await client().delete_async(self._store, list(names))

        if names:
            self._run("", delete)

    async def read_part(self, name: str, begin: int, end: int, size: int, version: str | None = None) -> bytes:
        """Return the bytes from begin to end - 1 of an object that has so many bytes.

        version: of the object, as `entry` gives it; None: dataset.json knows only its bytes. Raises StorageError.
        """
        url = self.url_of(name)
        with self._meaning(name):
            answer = await client().get_async(self._store, name, options={"range": (begin, end)})
            if version is not None and _entry(answer.meta) != (size, version):
                raise ChangedObject(f"{url}: the object was replaced since the dataset was opened", url=url)
            if (found := int(answer.meta["size"])) != size:
                said = f"the object has {counted(found, 'byte')}, and dataset.json says {size:,}"
                raise ChangedObject(f"{url}: {said}: it was damaged or replaced", url=url)
            data = bytes(await answer.bytes_async())
        if len(data) != end - begin:
            raise StoreUnreachable(f"{url}: the connection was closed after {len(data):,} bytes", url=url)
        return data

    def _raise(self, error: Exception, name: str) -> NoReturn:
        if isinstance(error, StorageError):
            raise error
        url, said = self.url_of(name), _ECHOED.sub(r"\1\2***", str(error))
        cause = error if str(error) == without_secrets(said) else None
        brief = textwrap.shorten(said.partition("\n\nDebug source:")[0], 400, placeholder="...")
        key = re.escape(url.split("/", 3)[-1])  # which may read as a cause does
        cause_said = re.sub(rf'\b{key}\b|[^\s<>"]*\b{key.rpartition("/")[2]}\b', "", said)
        for pattern, kind, meaning in _MEANINGS:
            if re.search(pattern, cause_said):
                raise kind(f"{url}: {meaning} ({brief})", url=url) from cause
        raise StorageError(f"{url}: {brief}", url=url) from cause

    def __repr__(self) -> str:
        return f"<ObjectStore {self.url}>"


def _entry(meta: Any) -> tuple[int, str]:
    """Return the bytes and the version of an object: its ETag, else when it was written."""
    return int(meta["size"]), str(meta["e_tag"] or meta["last_modified"])


#: Bytes of an object that are sent by one request.
_PART = 8 << 20
