"""Takes what the environment, this package and PATH have, gives the worker's program; as ``feedmill-worker`` that pip installs,
becomes it."""

from __future__ import annotations

import os
import shutil
import sys

from .errors import ConfigError

#: The program's name, and that of the command that pip installs in its stead.
NAME = "feedmill-worker"

#: Where the program is looked for first.
PROGRAM = "FEEDMILL_WORKER"

#: Set for what the command becomes when it is not this package's: a wrapper of the command itself comes back here, and would
#: for ever.
PASSED = "FEEDMILL_WORKER_PASSED"


def main() -> None:
    """Does not return."""
    program = found_program() if PASSED not in os.environ else packaged_program()
    if program is None:
        sys.exit(f"{NAME}: this package was installed without the program; `make wheel` builds one with it")
    if program != packaged_program():
        os.environ[PASSED] = "1"
    os.execv(program, [program, *sys.argv[1:]])


def worker_program() -> str:
    """The worker's program: FEEDMILL_WORKER, the package's own, or one in PATH."""
    given = os.environ.get(PROGRAM)
    if given:
        if not os.access(given, os.X_OK):
            raise ConfigError(f"{PROGRAM}={given} is no program")
        return given
    # In the end a command: it may be that of another environment, whose package has the program.
    found = found_program() or shutil.which(NAME)
    if found is None:
        raise ConfigError(f"a pipeline's file needs the worker's program, which is neither in this package nor in PATH; set {PROGRAM}")
    return found


def found_program() -> str | None:
    """The program in this package, or the first in PATH, past commands that only look for it here."""
    if (own := packaged_program()) is not None:
        return own
    for folder in os.get_exec_path():
        program = shutil.which(NAME, path=folder)
        if program is not None and not _is_command(program):
            return program
    return None


def packaged_program() -> str | None:
    own = os.path.join(os.path.dirname(__file__), "bin", NAME)
    return own if os.path.exists(own) else None


def _is_command(path: str) -> bool:
    """Whether a file is what pip writes for :func:`main`: a script that imports it."""
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError:
        return False
    return head.startswith(b"#!") and __name__.encode() in head
