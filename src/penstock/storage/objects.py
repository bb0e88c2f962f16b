"""Objects of an object store by URL: read whole, by range and as a stream, written and listed.

The client is obstore. Credentials, regions and endpoints are the client's own: the variables AWS_*, GOOGLE_* and
AZURE_*, and the roles of machines. Every failure is an error of penstock.errors that names the URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn, TypeGuard

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
from penstock.storage.client import client, works_here
from penstock.storage.coroutines import run_alone

#: URLs that are read from an object store.
SCHEMES = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "https", "http", "file", "memory")

# The client repeats a request that failed before its first byte; storage.download goes on where a body was cut off.
_RETRIES: Any = {
    "max_retries": 4,
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2.0},
    "retry_timeout": timedelta(seconds=30),
}
_TIMEOUTS = {"timeout": "60s", "connect_timeout": "5s"}

# What the client says of each failure, in words of its own or of the store. The first match counts.
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
    (r"412 Precondition", ChangedObject, "the object was replaced since the dataset was opened; open the dataset anew"),
    (
        r"507 |InsufficientStorage|StorageFull|QuotaExceeded|quotaExceeded",
        StoreFull,
        "the store has no space, or no quota, for more; free some, and run the same again: what is finished is kept",
    ),
    (
        r"401 Unauthorized|403 Forbidden|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|PermissionDenied|"
        r"Unauthenticated",
        AccessRefused,
        "the store refuses access with these credentials",
    ),
    (r"404 Not Found|NotFound|No such file", MissingObject, "there is no such object"),
    (
        r"HTTP error|error sending request|tcp connect|dns error|timed out|timeout|connection|5\d\d [A-Z]|429 |"
        r"error decoding response body|after \d+ retries",
        StoreUnreachable,
        "the store does not answer; check the endpoint and the network",
    ),
)


def is_url(path: object) -> TypeGuard[str]:
    """Return whether a path is the URL of an object store."""
    return isinstance(path, str) and path.partition("://")[0].lower() in SCHEMES and "://" in path


@dataclass(frozen=True)
class ObjectInfo:
    """What a store says of an object."""

    size: int
    """In bytes."""
    etag: str | None
    """Differs between contents of one name; None: the store has none."""


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
        self._open()

    def _open(self) -> None:
        self._check_process("")
        obstore = client()
        options: dict[str, Any] = dict(_TIMEOUTS)
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
        if any(url.startswith("http://") for url in (self.url, endpoint, os.environ.get("AWS_ENDPOINT", ""))):
            options["allow_http"] = True
        try:
            if self.url.startswith(("file://", "memory://")):
                self._store = obstore.store.from_url(self._given)
            else:
                self._store = obstore.store.from_url(self._given, client_options=options, retry_config=_RETRIES)
        except Exception as error:
            self._raise(error, "")

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self._given}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"])  # type: ignore[misc]

    def url_of(self, name: str) -> str:
        """Return the URL of an object."""
        return f"{self.url}/{name}" if name else self.url

    @property
    def usable(self) -> bool:
        """Whether this process may use the client, whose threads do not exist in a forked child."""
        return works_here()

    def _check_process(self, name: str) -> None:
        if not self.usable:
            raise StorageError(
                f"{self.url_of(name)}: the client of object stores does not work in a process forked after its "
                "first use: make the dataset before the fork, or start processes by 'spawn'",
                url=self.url_of(name),
            )

    def info(self, name: str) -> ObjectInfo:
        """Return the size and etag of an object. Raises StorageError."""
        try:
            return run_alone(self.info_soon(name))
        except MissingObject:
            self.read(name)  # HEAD has no text; a GET, whose answer has one, says whether the bucket is there
            raise

    async def info_soon(self, name: str) -> ObjectInfo:
        """Return the size and etag of an object, without holding up the thread. Raises StorageError."""
        self._check_process(name)
        try:
            found = await client().head_async(self._store, name)
        except Exception as error:
            self._raise(error, name)
        return ObjectInfo(int(found["size"]), found["e_tag"])

    def read(self, name: str) -> bytes:
        """Return an object. Raises StorageError."""
        return run_alone(self._read_soon(name))

    async def _read_soon(self, name: str) -> bytes:
        self._check_process(name)
        try:
            answer = await client().get_async(self._store, name)
            return bytes(await answer.bytes_async())
        except Exception as error:
            self._raise(error, name)

    def read_range(self, name: str, begin: int, end: int) -> bytes:
        """Return the bytes of an object from begin to end - 1. Raises StorageError."""
        return run_alone(self.read_ranges(name, [(begin, end)]))[0] if begin < end else b""

    async def read_ranges(self, name: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of ranges (begin, end) of an object, close ones by one request. Raises StorageError."""
        self._check_process(name)
        try:
            found = await client().get_ranges_async(
                self._store, name, starts=[begin for begin, _ in ranges], ends=[end for _, end in ranges]
            )
        except Exception as error:
            self._raise(error, name)
        for part, (begin, end) in zip(found, ranges, strict=True):
            self.check_length(name, len(part), end - begin)
        return [bytes(part) for part in found]

    def sizes(self) -> dict[str, int]:
        """Return all objects under the URL with their bytes. Raises StorageError."""
        return run_alone(self._sizes_soon())

    async def _sizes_soon(self) -> dict[str, int]:
        self._check_process("")
        found: dict[str, int] = {}
        try:
            async for page in client().list(self._store):
                found |= {str(one["path"]): int(one["size"]) for one in page}
        except Exception as error:
            self._raise(error, "")
        return found

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
            self._check_process(name)
            await client().put_async(
                self._store, name, data if isinstance(data, bytes) else parts(data), chunk_size=_PART, max_concurrency=4
            )

        try:
            run_alone(put())
        except Exception as error:
            if raised:
                raise raised[0] from None
            self._raise(error, name)

    def put_new(self, name: str, data: bytes) -> bool:
        """Write an object; False: there is one of that name, as far as the store can tell. Raises StorageError."""
        obstore = client()

        async def put() -> None:
            self._check_process(name)
            await obstore.put_async(self._store, name, data, mode="create")

        try:
            run_alone(put())
        except obstore.exceptions.AlreadyExistsError:
            return False
        except obstore.exceptions.NotSupportedError:
            self.put(name, data)
        except Exception as error:
            self._raise(error, name)
        return True

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects. Raises StorageError."""

        async def delete() -> None:
            self._check_process("")
            await client().delete_async(self._store, list(names))

        try:
            if names:
                run_alone(delete())
        except Exception as error:
            self._raise(error, "")

    async def stream(self, name: str, begin: int, end: int, etag: str | None) -> AsyncIterator[Any]:
        """Yield the bytes of an object from begin to end - 1 as they come, in buffers. Raises StorageError.

        A body that is cut off may end without an error: the caller counts the bytes.
        """
        self._check_process(name)
        options: dict[str, Any] = {"range": (begin, end)}
        if etag is not None:
            options["if_match"] = etag
        try:
            answer = await client().get_async(self._store, name, options=options)
            async for buffer in answer.stream(min_chunk_size=_CHUNK):
                yield buffer
        except Exception as error:
            self._raise(error, name)

    def check_length(self, name: str, found: int, wanted: int) -> None:
        """Raise ChangedObject where an object ended before a range did."""
        if found != wanted:
            url = self.url_of(name)
            raise ChangedObject(f"{url}: the object ends {wanted - found:,} bytes early; was it replaced?", url=url)

    def _raise(self, error: Exception, name: str) -> NoReturn:
        """Raise what an error of the client means."""
        if isinstance(error, StorageError):
            raise error
        url, said = self.url_of(name), str(error)
        cause = error if said == without_secrets(said) else None
        brief = said.partition("\n\nDebug source:")[0].strip()
        for pattern, kind, meaning in _MEANINGS:
            if re.search(pattern, said):
                raise kind(f"{url}: {meaning} ({_one_line(brief)})", url=url) from cause
        raise StorageError(f"{url}: {_one_line(brief)}", url=url) from cause

    def __repr__(self) -> str:
        return f"<ObjectStore {self.url}>"


#: Bytes of a stream that are handed on at a time, at least; and of an object that are sent by one request.
_CHUNK, _PART = 256 << 10, 8 << 20


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 400 else line[:400] + "..."
