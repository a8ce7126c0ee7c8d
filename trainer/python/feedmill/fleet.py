"""Takes what a loader's source and access are, gives the fleet it reads from."""

from __future__ import annotations

import os
from collections.abc import Sequence

from . import _feedmill
from .nodes import NodeWorkers

#: The environment variable that names the socket of this node's agent.
AGENT_VARIABLE = "FEEDMILL_AGENT"


def connect(
    source: str | os.PathLike[str] | Sequence[str],
    node: NodeWorkers | None,
    run: str,
    timeout: float,
    verify: bool,
    token: str | None,
    token_file: str | None,
    ca_file: str | None,
) -> _feedmill.Fleet:
    """The workers that ``source`` names, or those of ``node``, which were started for this loader. What is not given of token
    and ca_file comes from the environment. Asks nobody yet."""
    agent = os.environ.get(AGENT_VARIABLE) or None
    if node is not None:
        # Nobody else reads what they make.
        addresses, token_file, agent = [node.source], node.token_file, None
    elif isinstance(source, (list, tuple)):
        addresses = [str(address) for address in source]
    else:
        addresses = [os.fspath(source)]  # type: ignore[arg-type]
    if token is None and token_file is None:
        token_file = os.environ.get("FEEDMILL_TOKEN_FILE") or None
    ca_file = ca_file or os.environ.get("FEEDMILL_CA_FILE") or None
    return _feedmill.Fleet(
        addresses, run, timeout, verify, token=token, token_file=token_file, ca_file=ca_file, agent=agent
    )
