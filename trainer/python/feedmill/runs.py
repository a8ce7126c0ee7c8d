"""One name for each start of a training, shared by its ranks."""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
from collections.abc import Mapping

from .errors import ConfigError

#: What workers accept as a run's name.
PLAIN = re.compile(r"[A-Za-z0-9._:/@-]{1,128}")

#: Where the ranks of torch.distributed find the run's name.
STORE_KEY = "feedmill/run"


def run_name(given: str | None, dp_size: int, environment: Mapping[str, str] | None = None) -> str:
    """The run's name: given, or the launcher's id and restart count (torchelastic, Slurm), or one that the ranks of
    torch.distributed find in their store, whoever asks first, or, for a single rank, one of this process, always the same.

    Waits for no other rank. Raises ConfigError when the ranks have no name in common.
    """
    environment = os.environ if environment is None else environment
    name = given or environment.get("FEEDMILL_RUN") or _launcher(environment) or _distributed()
    if name is None:
        if dp_size > 1:
            raise ConfigError(
                f"{dp_size} ranks need one name in common: give run=, set FEEDMILL_RUN, start them by torchrun with "
                "--rdzv-id or by Slurm, or make the loader after torch.distributed.init_process_group"
            )
        name = _of_this_process()
    if not PLAIN.fullmatch(name):
        raise ConfigError(f"run {name!r} must have 1 to 128 characters out of letters, digits and ._:/@-")
    return name


def _launcher(environment: Mapping[str, str]) -> str | None:
    run = environment.get("TORCHELASTIC_RUN_ID")
    # "none" is what torchrun says when it was given no id: two trainings would have it in common.
    if run and run != "none":
        return f"{run}-{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    job = environment.get("SLURM_JOB_ID")
    # Only where srun starts the ranks: a shell within an allocation may start several trainings.
    step = environment.get("SLURM_STEP_ID")
    if job and step is not None and environment.get("SLURM_PROCID") is not None:
        return f"slurm-{job}.{step}-{environment.get('SLURM_RESTART_COUNT', '0')}"
    return None


def _distributed() -> str | None:
    """The name in the store of torch.distributed. A collective would hang where a loader is made on some ranks only, such as
    one for evaluation on rank 0."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    try:
        # Against nothing: it is set if nobody has, and what is there comes back.
        name: bytes = distributed.distributed_c10d._get_default_store().compare_set(STORE_KEY, "", _of_this_process())
    except (AttributeError, NotImplementedError, RuntimeError):
        # No store, as with MPI, or one that cannot do that.
        return None
    return name.decode()


#: Names that processes have made up, by their id: a fork is another process.
_made: dict[int, str] = {}


def _of_this_process() -> str:
    """One name a process, so that its loaders share this machine's workers."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64] or "host"
    return _made.setdefault(os.getpid(), f"{host}-{os.getpid()}-{secrets.token_hex(4)}")
