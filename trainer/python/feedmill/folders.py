"""Takes what the environment says, gives the folders of sets of workers: made safely, held, and swept when nobody holds them.

They are this user's alone, and locks say who is at work in them. A folder whose holders were killed is swept by a later set.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile

from .errors import ConfigError

#: Folders of runs whose ranks were killed are looked for in this many at most, when a set is started.
MOST_SWEPT = 100


def runtime_folder() -> str:
    """Where folders with locks, pipes and tokens are made."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK):
        return private(os.path.join(base, "feedmill"))
    return temporary_folder()


def temporary_folder() -> str:
    """On disk, where there is room for copies of manifests: what XDG_RUNTIME_DIR names is memory."""
    return private(os.path.join(tempfile.gettempdir(), f"feedmill-{os.getuid()}"))


def private(folder: str) -> str:
    """The folder, made where there is none; ConfigError for one that others made, or may write into."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    about = os.lstat(folder)
    # Somebody else's folder could hold somebody else's addresses.
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o022:
        raise ConfigError(f"folder {folder} belongs to another user, or others may write into it")
    return folder


def sweep(runtime: str, temporary: str) -> None:
    """Takes away folders of sets whose holders were killed."""
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(runtime))[:MOST_SWEPT]:
            folder = os.path.join(runtime, name)
            with contextlib.suppress(OSError):
                lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CLOEXEC)
                try:
                    # Who has it is at work there; this set's own is had, too.
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if is_still(lock, os.path.join(folder, "lock")) and not is_held(folder):
                        remove(folder, os.path.join(temporary, name, "cache"))
                finally:
                    # First, and not by closing alone: a fork may have the descriptor too, and with it the lock.
                    fcntl.flock(lock, fcntl.LOCK_UN)
                    os.close(lock)
        for name in sorted(os.listdir(temporary))[:MOST_SWEPT] if temporary != runtime else []:
            # What XDG_RUNTIME_DIR named may be gone, or be another one.
            cache = os.path.join(temporary, name, "cache")
            with contextlib.suppress(OSError):
                file = os.open(cache, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(os.path.dirname(cache), ignore_errors=True)
                finally:
                    fcntl.flock(file, fcntl.LOCK_UN)
                    os.close(file)


def kept(folder: str) -> int:
    """A folder, made and shared with the set's other holders: nobody takes it away before the descriptor is closed."""
    while True:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        try:
            file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        fcntl.flock(file, fcntl.LOCK_SH)
        if is_still(file, folder):
            return file
        os.close(file)


def is_held(folder: str) -> bool:
    """Whether a rank holds the set; under its lock."""
    return is_locked(os.open(os.path.join(folder, "held"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), fcntl.LOCK_EX)


def is_locked(file: int, kind: int) -> bool:
    """Whether others hold a lock on a file that goes against this kind of one; closes the file."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        # A lock is the open file's, which a fork of this moment has too: it would keep what closing leaves.
        fcntl.flock(file, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def remove(folder: str, cache: str) -> None:
    """Takes away a set's folder, and the one that its cache is in."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(os.path.dirname(cache), ignore_errors=True)


def is_still(file: int, path: str) -> bool:
    """Whether a path names an open file, and not one that was made there since."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except OSError:
        return False
