"""A service that speaks S3, for tests: moto's server in a process of its own, on loopback."""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import boto3

from devstack.state import free_port
from devstack.supervisor import die_with_parent
from marketplace.catalog.buckets import Bucket


@contextmanager
def bucket_service() -> Iterator[Bucket]:
    """Yield an empty bucket of a new service, which ends with the context."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=die_with_parent(signal.SIGKILL),
    )
    try:
        deadline = time.monotonic() + 60
        while not _listens(port):
            assert process.poll() is None and time.monotonic() < deadline, "moto's server did not start"
            time.sleep(0.05)
        bucket = Bucket(
            f"packages-{secrets.token_hex(4)}", "eu", f"http://127.0.0.1:{port}", "us-east-1", "access", "not a secret"
        )
        boto3.client(
            "s3",
            endpoint_url=bucket.endpoint,
            region_name=bucket.region,
            aws_access_key_id=bucket.access_key,
            aws_secret_access_key=bucket.secret_key,
        ).create_bucket(Bucket=bucket.name)
        yield bucket
    finally:
        process.kill()
        process.wait(20)


def _listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0
