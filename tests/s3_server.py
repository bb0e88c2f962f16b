"""An S3 server (moto's) on the loopback interface, which tells what it was asked and can refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class S3:
    """A server with the bucket "packed".

    Attributes:
        url: of the bucket.
        requests: how often each was made, by method and the last part of the name.
        refuse: called with the method and the path of each request; returns the status and the XML code to refuse it
            with, or None.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint, self.url = endpoint, "s3://packed"
        self.requests: Counter[tuple[str, str]] = Counter()
        self.refuse: Callable[[str, str], tuple[str, str] | None] = lambda method, path: None

    def client(self) -> Any:
        """Return a client of boto3's."""
        boto3 = pytest.importorskip("boto3", reason="boto3, which moto brings, is not installed")
        return boto3.client("s3", endpoint_url=self.endpoint, region_name="us-east-1")

    def put(self, name: str, content: bytes) -> None:
        """Write an object."""
        self.client().put_object(Bucket="packed", Key=name, Body=content)

    def objects(self, folder: str) -> dict[str, bytes]:
        """Return the objects of a folder, by their names below it."""
        client = self.client()
        found = client.list_objects_v2(Bucket="packed", Prefix=f"{folder}/").get("Contents", [])
        return {
            one["Key"].removeprefix(f"{folder}/"): client.get_object(Bucket="packed", Key=one["Key"])["Body"].read()
            for one in found
        }


@contextmanager
def serve() -> Iterator[S3]:
    """Serve a bucket, which the variables of the environment speak of; skip the test where moto is not installed."""
    moto = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    pytest.importorskip("obstore", reason="the client of object stores (extra 'remote') is not installed")
    application = pytest.importorskip("moto.moto_server.werkzeug_app").DomainDispatcherApplication
    answer, served = application.__call__, S3("")

    def watched(self: Any, environ: dict[str, Any], start_response: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        served.requests[method, path.rpartition("/")[2]] += 1
        refused = served.refuse(method, path)
        if refused is None:
            return answer(self, environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response(refused[0], [("Content-Type", "application/xml")])
        return [f"<Error><Code>{refused[1]}</Code><Message>no</Message></Error>".encode()]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(application, "__call__", watched)
        server: Any = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        served.endpoint = f"http://{host}:{port}"
        for name, value in {
            "AWS_ENDPOINT_URL": served.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1,localhost",
        }.items():
            patch.setenv(name, value)
        served.client().create_bucket(Bucket="packed")
        try:
            yield served
        finally:
            server.stop()
