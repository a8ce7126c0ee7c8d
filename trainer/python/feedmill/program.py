"""``feedmill-worker`` as pip installs it: becomes the program that this package brings."""

from __future__ import annotations

import os
import sys

from .nodes import packaged_program


def main() -> None:
    """Does not return."""
    program = packaged_program()
    if program is None:
        sys.exit("feedmill-worker: this package was installed without the program; `make wheel` builds one with it")
    os.execv(program, [program, *sys.argv[1:]])
