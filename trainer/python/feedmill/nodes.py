"""Workers on this machine, one set for all ranks of a run: they end when the last rank does, however it ends.

A folder for the run, which this user alone may look into, holds a lock, a named pipe, a list of addresses and the token
that these workers want: other users of the machine reach the addresses too, and not the file. The workers' standard input is the pipe, and each
rank keeps it open for writing: when the last rank is gone, also by SIGKILL, the workers read the end of their input and
stop. Nobody watches anybody.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
import weakref
from typing import Any

from .errors import ConfigError, WorkersFailed

#: Where the worker's program is looked for before the package's own.
PROGRAM = "FEEDMILL_WORKER"

#: Requests to this machine never go through a proxy.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NodeWorkers:
    """This rank's hold on the machine's workers for a pipeline and a run."""

    def __init__(self, pipeline: str, *, run: str, count: int = 1, threads: int | None = None) -> None:
        if count < 1:
            raise ConfigError(f"workers {count} must be at least 1")
        try:
            with open(pipeline, "rb") as file:
                text = file.read()
        except OSError as error:
            raise ConfigError(f"pipeline {pipeline}: {error.strerror or error}") from error
        path = os.path.abspath(pipeline)
        key = hashlib.sha256(b"\0".join([path.encode(), text, run.encode()])).hexdigest()[:24]
        self._folder = os.path.join(_runtime_folder(), key)
        #: Closes this rank's end of the pipe, once, and also when this is forgotten.
        self._let_go: weakref.finalize | None = None
        self._children: list[subprocess.Popen[bytes]] = []
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        lock = os.open(os.path.join(self._folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Held while workers start: the other ranks of the node wait here, and then share them.
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.addresses = self._join() or self._start(path, count, threads)
        finally:
            os.close(lock)

    def close(self) -> None:
        """Lets go of the workers; they end if no other rank of this machine holds them."""
        if self._let_go is not None:
            self._let_go()

    @property
    def token_file(self) -> str:
        """The file with the workers' token."""
        return self._path("token")

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _join(self) -> list[str] | None:
        """Takes hold of workers that run already; None when there are none."""
        try:
            pipe = os.open(self._path("stdin"), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            # No pipe, or nobody reads it any more.
            return None
        try:
            with open(self._path("workers.json"), encoding="utf-8") as file:
                addresses = json.load(file)["workers"]
        except (OSError, ValueError, KeyError):
            addresses = []
        if addresses and all(_serves(address) for address in addresses):
            self._let_go = weakref.finalize(self, os.close, pipe)
            return addresses
        # They have read the end of their input already, and are about to go.
        os.close(pipe)
        return None

    def _start(self, pipeline: str, count: int, threads: int | None) -> list[str]:
        program = worker_program()
        for name in ("stdin", "workers.json"):
            if os.path.exists(self._path(name)):
                os.unlink(self._path(name))
        pipe_path = self._path("stdin")
        os.mkfifo(pipe_path, 0o600)
        reading = os.open(pipe_path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._let_go = weakref.finalize(self, os.close, os.open(pipe_path, os.O_WRONLY | os.O_CLOEXEC))
        os.set_blocking(reading, True)
        threads = threads or max(1, (len(os.sched_getaffinity(0)) or 1) // count)
        try:
            self._write_token()
            self._children = [self._spawn(program, pipeline, index, threads, reading) for index in range(count)]
            addresses = [_listening(child, self._log(index)) for index, child in enumerate(self._children)]
        except BaseException:
            for child in self._children:
                child.kill()
                child.wait()
            self._let_go()
            raise
        finally:
            os.close(reading)
        for child in self._children:
            # They end when the last rank does, which may be another one; nobody here waits, and no zombie stays.
            threading.Thread(target=child.wait, name="feedmill-worker", daemon=True).start()
        with open(self._path("workers.json.tmp"), "w", encoding="utf-8") as file:
            json.dump({"workers": addresses}, file)
        os.replace(self._path("workers.json.tmp"), self._path("workers.json"))
        return addresses

    def _write_token(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.token_file)
        # Made anew, and by nobody else before: it is this user's alone from its first byte on.
        file = os.open(self.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, f"{secrets.token_urlsafe(32)}\n".encode())
        finally:
            os.close(file)

    def _log(self, index: int) -> str:
        return self._path(f"worker-{index}.log")

    def _spawn(self, program: str, pipeline: str, index: int, threads: int, stdin: int) -> subprocess.Popen[bytes]:
        cache = self._path(f"cache-{index}")
        shutil.rmtree(cache, ignore_errors=True)
        os.makedirs(cache, mode=0o700)
        command = [program, "--pipeline", pipeline, "--listen", "127.0.0.1:0", "--exit-with-stdin"]
        command += ["--token-file", self.token_file]
        command += ["--name", f"local-{index}", "--threads", str(threads), "--cache-dir", cache, "--drain-seconds", "5"]
        environment = os.environ | {"RUST_LOG": os.environ.get("RUST_LOG", "warn")}
        # They are this node's own: what is said of other workers is not theirs.
        for name in ("FEEDMILL_TLS_CERT", "FEEDMILL_TLS_KEY"):
            environment.pop(name, None)
        with open(self._log(index), "wb") as log:
            # A session of its own: Ctrl-C reaches the ranks, and the workers end with them.
            return subprocess.Popen(
                command, stdin=stdin, stdout=subprocess.PIPE, stderr=log, start_new_session=True, env=environment
            )


def worker_program() -> str:
    """The worker's program: FEEDMILL_WORKER, the package's own, or the one in PATH."""
    given = os.environ.get(PROGRAM)
    if given:
        if not os.access(given, os.X_OK):
            raise ConfigError(f"{PROGRAM}={given} is no program")
        return given
    own = os.path.join(os.path.dirname(__file__), "bin", "feedmill-worker")
    if os.path.exists(own):
        return own
    found = shutil.which("feedmill-worker")
    if found is None:
        raise ConfigError(f"a pipeline's file needs the worker's program, which is neither in this package nor in PATH; set {PROGRAM}")
    return found


def _runtime_folder() -> str:
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK):
        folder = os.path.join(base, "feedmill")
    else:
        folder = os.path.join(tempfile.gettempdir(), f"feedmill-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    about = os.stat(folder)
    # Somebody else's folder could hold somebody else's addresses.
    if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o022:
        raise ConfigError(f"folder {folder} belongs to another user, or others may write into it")
    return folder


def _listening(child: subprocess.Popen[bytes], log: str) -> str:
    """Where a worker says that it listens."""
    assert child.stdout is not None
    with child.stdout as output:
        line = output.readline()
    try:
        said: dict[str, Any] = json.loads(line)
        return f"http://{said['listening']}"
    except (ValueError, KeyError, TypeError):
        child.wait()
        raise WorkersFailed(f"a worker of this machine does not start: {_last_lines(log)}", reason=_last_lines(log)) from None


def _last_lines(path: str, count: int = 5) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return "\n".join(lines[-count:]) or "it says nothing"


def _serves(address: str) -> bool:
    """Whether a worker answers and is not about to end."""
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        try:
            with _direct.open(f"{address}/v1/status", timeout=1) as answer:
                return json.load(answer).get("state") != "draining"
        except TimeoutError:
            continue
        except (OSError, ValueError, urllib.error.URLError):
            return False
    return False
