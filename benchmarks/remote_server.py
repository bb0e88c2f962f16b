"""A process with moto's S3 server on the loopback interface: `python -m benchmarks.remote_server FOLDER`.

Serves the files of a folder as the bucket "bench", and prints its URL. It ends with the process that started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from pathlib import Path

BUCKET = "bench"
#: What every client needs to talk to the server.
ACCESS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"}


def serve(folder: Path) -> None:
    import boto3
    from moto.server import ThreadedMotoServer

    os.environ.update(ACCESS)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
    client.create_bucket(Bucket=BUCKET)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            readable = {"ACL": "public-read"}  # by plain HTTP, too
            client.upload_file(str(path), BUCKET, path.relative_to(folder).as_posix(), ExtraArgs=readable)
    print(f"http://{host}:{port}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a line for each request
    serve(Path(sys.argv[1]))
