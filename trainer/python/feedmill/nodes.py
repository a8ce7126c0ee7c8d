"""Workers on this machine, one set for all ranks of a run: they end when the last rank does, however it ends.

A folder for the run, which this user alone may look into, holds locks, a named pipe, a list of addresses and the token
that these workers want: other users of the machine reach the addresses too, and not the file. The workers' standard input is
the pipe, and each rank keeps it open for writing: when the last rank is gone, also by SIGKILL, the workers read the end of
their input and stop. A worker that dies is started again by whichever rank sees it first (:mod:`feedmill.watch`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import select
import subprocess
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

from . import cpus, folders
from .errors import ConfigError, FeedmillError, WorkersFailed
from .program import worker_program
from .ready import await_one
from .watch import Watch

#: Seconds in which a worker must say where it listens, which it does before it reads any data: the set's lock is held meanwhile.
SPEAKS_WITHIN = 60.0

#: So many lines of a log are quoted; and of its last error so many, which are enough for what is wrong in a pipeline's file with the lines
#: round it.
LAST_LINES, ERROR_LINES = 5, 20

#: A line of a worker's log, or of one that found no log to write to, that an error begins with.
_BEGINS_ERROR = re.compile(r"(\S+Z +ERROR|error:) ")


class NodeWorkers:
    """This rank's hold on the machine's workers for a pipeline and a run."""

    def __init__(self, pipeline: str, *, run: str, count: int = 1, threads: int | None = None) -> None:
        try:
            with open(pipeline, "rb") as file:
                text = file.read()
        except OSError as error:
            raise ConfigError(f"pipeline {pipeline}: {error.strerror or error}") from error
        path = os.path.abspath(pipeline)
        key = hashlib.sha256(b"\0".join([path.encode(), text, run.encode()])).hexdigest()[:24]
        folder = os.path.join(folders.runtime_folder(), key)
        self._set = WorkerSet(path, folder, os.path.join(folders.temporary_folder(), key, "cache"), threads)
        self._set.hold(count)
        # Once, and also when this is forgotten.
        self._let_go = weakref.finalize(self, self._set.let_go)

    @property
    def source(self) -> str:
        """What a fleet reads: the list of their addresses, which changes when one is started again."""
        return f"file:{self._set.path('workers')}"

    @property
    def addresses(self) -> list[str]:
        """Where they listen now."""
        return [worker["address"] for worker in self._set.record()]

    @property
    def pids(self) -> list[int]:
        """Their process ids now."""
        return [worker["pid"] for worker in self._set.record()]

    @property
    def token_file(self) -> str:
        """The file with the workers' token."""
        return self._set.path("token")

    def trouble(self, seconds: float) -> str | None:
        """What was said of workers that died in the last so many seconds; None when all is well."""
        return self._set.trouble(seconds)

    def await_one(self, seconds: float) -> str | None:
        """Waits until a worker has read its data; why none will, or None."""
        return await_one(self._set, seconds)

    def close(self) -> None:
        """Lets go of the workers; they end if no other rank of this machine holds them."""
        self._let_go()


class WorkerSet:
    """A run's workers on this machine, as one holder of them sees them."""

    def __init__(self, pipeline: str, folder: str, cache: str, threads: int | None) -> None:
        self._pipeline, self._folder, self._cache, self._threads = pipeline, folder, cache, threads
        self._pipe: int | None = None
        self._held: int | None = None
        self._cached: int | None = None
        self._watch: Watch | None = None
        self._owner = os.getpid()

    def path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def hold(self, count: int) -> None:
        """Takes hold of workers that run already, or starts them."""
        # Held while workers start: the other ranks of the node wait here, and then share them.
        with self.locked(make=True):
            try:
                self._cached = folders.kept(self._cache)
                if folders.is_held(self._folder) and self.record():
                    self._join()
                else:
                    # Workers without a holder have read the end of their input, and are about to go.
                    self._start(count)
                # Every holder has it, shared: who can have it alone is the last one.
                self._held = os.open(self.path("held"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._held, fcntl.LOCK_SH)
            except BaseException:
                self._close()
                raise
        self._watch = Watch(self)

    def let_go(self) -> None:
        """Closes this holder's end of the pipe. The last holder takes the folders away."""
        if os.getpid() != self._owner:
            # A fork, which holds as long as it lives; nothing else of this is its own.
            self._close()
            return
        if self._watch is not None:
            self._watch.stop()
        with contextlib.suppress(OSError), self.locked():
            self._close()
            if not folders.is_held(self._folder):
                folders.remove(self._folder, self._cache)
        self._close()

    def _close(self) -> None:
        for file in (self._pipe, self._held, self._cached):
            if file is not None:
                os.close(file)
        self._pipe = self._held = self._cached = None

    @contextlib.contextmanager
    def locked(self, make: bool = False) -> Iterator[None]:
        """Alone among all that hold, start or watch these workers. OSError when the folder is gone, unless it is to be made."""
        while True:
            if make:
                os.makedirs(self._folder, mode=0o700, exist_ok=True)
            try:
                lock = os.open(self.path("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                # Taken away just now.
                if make:
                    continue
                raise
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if folders.is_still(lock, self.path("lock")):
                    yield
                    return
            finally:
                # First, and not by closing alone: a fork of this moment has the descriptor too, and would keep the lock.
                fcntl.flock(lock, fcntl.LOCK_UN)
                os.close(lock)
            if not make:
                raise FileNotFoundError(self._folder)

    def record(self) -> list[dict[str, Any]]:
        """The workers, as they were started last."""
        try:
            with open(self.path("workers.json"), encoding="utf-8") as file:
                workers: list[dict[str, Any]] = json.load(file)["workers"]
                return workers
        except (OSError, ValueError, KeyError):
            return []

    def _write(self, record: list[dict[str, Any]]) -> None:
        self._replace("workers.json", json.dumps({"workers": record}))
        self._replace("workers", "".join(f"{worker['address']}\n" for worker in record))

    def _replace(self, name: str, text: str) -> None:
        with open(self.path(f"{name}.new"), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(self.path(f"{name}.new"), self.path(name))

    def _join(self) -> None:
        """Takes hold of workers that others hold."""
        # Opened for reading first: there is nobody else who reads when all have died.
        reading = os.open(self.path("stdin"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self._pipe = os.open(self.path("stdin"), os.O_WRONLY | os.O_CLOEXEC)
        finally:
            os.close(reading)

    def _start(self, count: int) -> None:
        program = worker_program()
        folders.sweep(os.path.dirname(self._folder), os.path.dirname(os.path.dirname(self._cache)))
        # Those that drain have their locks and logs as long as they need them, and nobody waits for them.
        theirs = [path for index in range(count) for path in (f"alive-{index}", f"worker-{index}.log")]
        for name in ("stdin", "workers", "workers.json", "ready", *theirs):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(name))
        os.mkfifo(self.path("stdin"), 0o600)
        reading = os.open(self.path("stdin"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._pipe = os.open(self.path("stdin"), os.O_WRONLY | os.O_CLOEXEC)
        os.set_blocking(reading, True)
        threads = self._threads
        if threads is None and count > 1:
            threads = max(1, cpus.usable() // count)
        children: list[subprocess.Popen[bytes]] = []
        try:
            self._write_token()
            for index in range(count):
                children.append(self._spawn(program, index, threads, reading))
            record = [
                {"address": self._listening(child, index), "pid": child.pid, "threads": threads, "deaths": 0, "died": 0.0, "wait": 0.0}
                for index, child in enumerate(children)
            ]
            self._write(record)
        except BaseException:
            for child in children:
                child.kill()
                child.wait()
            self._close()
            folders.remove(self._folder, self._cache)
            raise
        finally:
            os.close(reading)
        for child in children:
            _reap(child)

    def is_alive(self, index: int) -> bool:
        """Whether a worker lives: it has a lock that nobody takes from it while it does, whoever its parent was."""
        try:
            file = os.open(self.path(f"alive-{index}"), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        return folders.is_locked(file, fcntl.LOCK_SH)

    def restart(self, index: int, wait: float) -> str:
        """Starts a dead worker again, at another address, under the lock; what its log said last. The next time is ``wait`` seconds
        from now at the earliest. WorkersFailed when it does not start; OSError when not even that can be written down."""
        record = self.record()
        worker = record[index]
        worker |= {"deaths": worker["deaths"] + 1, "died": time.time(), "wait": wait, "said": last_lines(self._log(index))}
        said: str = worker["said"]
        try:
            reading = os.open(self.path("stdin"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.set_blocking(reading, True)
                child = self._spawn(worker_program(), index, worker["threads"], reading)
            finally:
                os.close(reading)
            _reap(child)
            worker |= {"address": self._listening(child, index), "pid": child.pid}
        except FeedmillError as error:
            worker["said"] = error.reason or str(error)
            raise
        except OSError as error:
            # No process to be had, or no memory for one: no log says so.
            worker["said"] = str(error)
            raise WorkersFailed(f"a worker of this machine cannot be started: {error}", reason=str(error)) from error
        finally:
            self._write(record)
        return said

    def trouble(self, seconds: float) -> str | None:
        """See :meth:`NodeWorkers.trouble`."""
        for index, worker in enumerate(self.record()):
            if worker["deaths"] and time.time() - worker["died"] <= seconds:
                return f"worker {index} of this machine ended, {worker['deaths']} times in all; at last it said: {worker['said']}"
        return None

    def was_ready(self) -> bool:
        """Whether any worker of the set has ever read its data."""
        return os.path.exists(self.path("ready"))

    def note_ready(self) -> None:
        """Says so to those who come later, and find workers that are just being started again."""
        with contextlib.suppress(OSError), open(self.path("ready"), "wb"):
            pass

    def said(self, index: int) -> str:
        """What a worker's log says last."""
        return last_lines(self._log(index))

    def _write_token(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path("token"))
        # Made anew, and by nobody else before: it is this user's alone from its first byte on.
        file = os.open(self.path("token"), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, f"{secrets.token_urlsafe(32)}\n".encode())
        finally:
            os.close(file)

    def _log(self, index: int) -> str:
        return self.path(f"worker-{index}.log")

    def _spawn(self, program: str, index: int, threads: int | None, stdin: int) -> subprocess.Popen[bytes]:
        command = [program, "--pipeline", self._pipeline, "--listen", "127.0.0.1:0", "--exit-with-stdin"]
        command += ["--token-file", self.path("token"), "--name", f"local-{index}"]
        command += ["--cache-dir", self._cache, "--drain-seconds", "5"]
        if threads is not None:
            command += ["--threads", str(threads)]
        environment = os.environ | {"RUST_LOG": os.environ.get("RUST_LOG", "warn")}
        # They are this node's own: what is said of other workers is not theirs.
        for name in ("FEEDMILL_TLS_CERT", "FEEDMILL_TLS_KEY"):
            environment.pop(name, None)
        alive = os.open(self.path(f"alive-{index}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # The worker has this descriptor alone when it is closed here, and the lock goes with its last holder.
            fcntl.flock(alive, fcntl.LOCK_EX)
            with open(self._log(index), "wb") as log:
                # A session of its own: Ctrl-C reaches the ranks, and the workers end with them.
                return subprocess.Popen(
                    command,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                    env=environment,
                    pass_fds=[alive],
                )
        finally:
            os.close(alive)

    def _listening(self, child: subprocess.Popen[bytes], index: int) -> str:
        """Where a worker says that it listens."""
        assert child.stdout is not None
        with child.stdout as output:
            line, in_time = _line(output.fileno(), time.monotonic() + SPEAKS_WITHIN)
        try:
            said: dict[str, Any] = json.loads(line)
            return f"http://{said['listening']}"
        except (ValueError, KeyError, TypeError):
            if line or not in_time:
                # It need not end by itself, as one does that closed its output.
                child.kill()
            child.wait()
            reason = last_lines(self._log(index))
            if not in_time:
                reason = f"it did not say within {SPEAKS_WITHIN:g} s where it listens; its log said last: {reason}"
            raise WorkersFailed(f"a worker of this machine does not start: {reason}", reason=reason) from None


def _line(output: int, deadline: float) -> tuple[bytes, bool]:
    """The first line of a pipe, or what came of it until it was closed; False when neither came before the deadline."""
    # Not select(): a trainer may have more files open than that can look at.
    spoke = select.poll()
    spoke.register(output, select.POLLIN)
    line = b""
    while not line.endswith(b"\n"):
        if not spoke.poll(max(deadline - time.monotonic(), 0) * 1000):
            return line, False
        # One by one: nothing behind the line is waited for, and it is short.
        byte = os.read(output, 1)
        if not byte:
            break
        line += byte
    return line, True


def _reap(child: subprocess.Popen[bytes]) -> None:
    """No zombie stays. They end when the last rank does, which may be another one, and nobody here waits."""
    threading.Thread(target=child.wait, name="feedmill-worker", daemon=True).start()


def last_lines(path: str) -> str:
    """What a log said last: its last error with all of its lines, where that is not long ago; else its last lines."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    first = max(len(lines) - ERROR_LINES, 0)
    errors = [number for number in range(first, len(lines)) if _BEGINS_ERROR.match(lines[number])]
    return "\n".join(lines[errors[-1] if errors else -LAST_LINES :]) or "it says nothing"
