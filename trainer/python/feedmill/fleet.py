"""Takes what a loader's source and access are, gives the fleet it reads from, and starts this machine's own workers for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from . import _feedmill
from .errors import WorkersFailed, WorkersUnreachable
from .nodes import NodeWorkers
from .settings import is_fleet

#: The environment variable that names the socket of this node's agent.
AGENT_VARIABLE = "FEEDMILL_AGENT"

#: A pipeline's file or workers' address, or a list of addresses, as :mod:`feedmill.kinds` leaves it.
Source = str | list[str]

Answer = TypeVar("Answer")


class Workers:
    """A loader's hold on the workers it reads from: those that its source names, or this machine's, which are started when they
    are asked first."""

    def __init__(
        self,
        source: Source,
        *,
        timeout: float,
        verify: bool,
        token: str | None,
        token_file: str | None,
        ca_file: str | None,
        count: int,
        threads: int | None,
    ) -> None:
        self._source, self._timeout, self._verify = source, timeout, verify
        self._token, self._token_file, self._ca_file = token, token_file, ca_file
        self._count, self._threads = count, threads
        self._fleet: _feedmill.Fleet | None = None
        #: After those who read its list of workers: that is how they are forgotten.
        self.node: NodeWorkers | None = None
        #: What the fleet counted, when it is let go.
        self._asked_before: dict[str, int] = {}

    def fleet(self, run: str) -> _feedmill.Fleet:
        """The fleet, the same one each time. What is not given of token and ca_file comes from the environment. Asks nobody yet."""
        if self._fleet is not None:
            return self._fleet
        addresses = self._source if isinstance(self._source, list) else [self._source]
        token_file, agent = self._token_file, os.environ.get(AGENT_VARIABLE) or None
        if not is_fleet(self._source):
            if self.node is None:
                self.node = NodeWorkers(addresses[0], run=run, count=self._count, threads=self._threads)
            # Nobody else reads what they make.
            addresses, token_file, agent = [self.node.source], self.node.token_file, None
        if self._token is None and token_file is None:
            token_file = os.environ.get("FEEDMILL_TOKEN_FILE") or None
        ca_file = self._ca_file or os.environ.get("FEEDMILL_CA_FILE") or None
        self._fleet = _feedmill.Fleet(
            addresses, run, self._timeout, self._verify, token=self._token, token_file=token_file, ca_file=ca_file, agent=agent
        )
        return self._fleet

    def plan(self, run: str, stream: str, rank: int) -> tuple[_feedmill.Fleet, dict[str, Any]]:
        """The fleet, and the stream's plan as it has it. WorkersFailed where workers of this machine end before they have read
        their data; they are let go then, and started anew by the next call."""
        fleet = self.fleet(run)
        trouble = None if self.node is None else self.node.await_one(self._timeout)
        if trouble is not None:
            # Forgotten here too, and not kept by the error's traceback: it reads the list of what is let go.
            del fleet
            self.let_go()
            raise WorkersFailed(f"rank {rank}: {trouble}", rank=rank, stream=stream, reason=trouble)
        return fleet, self.asked(lambda: fleet.plan(stream, rank))

    def asked(self, what: Callable[[], Answer]) -> Answer:
        """What workers answer; WorkersFailed where it is this machine's own that died under the question."""
        try:
            return what()
        except WorkersUnreachable as error:
            trouble = None if self.node is None else self.node.trouble(self._timeout)
            if trouble is None:
                raise
            raise WorkersFailed(
                f"{error}; {trouble}", rank=error.rank, stream=error.stream, range=error.range, worker=error.worker, reason=trouble
            ) from error

    def stats(self) -> dict[str, int]:
        """What the fleet counted; nothing before it was asked for."""
        return self._fleet.stats() if self._fleet is not None else self._asked_before

    def agent(self) -> tuple[int, int, int]:
        """Of an agent's memory: bytes lent, this process's share, batches copied out of it."""
        agent = self._fleet.agent() if self._fleet is not None else None
        return agent or (0, 0, 0)

    def hand_over(self) -> NodeWorkers | None:
        """This machine's workers, which somebody else holds from now on."""
        node, self.node = self.node, None
        return node

    def close(self) -> None:
        """Lets go of this machine's workers. Another thread that waits for a plan gives up."""
        if self._fleet is not None:
            self._fleet.close()
        self.let_go()

    def let_go(self) -> None:
        """Lets go of this machine's workers."""
        if self.node is None:
            return
        # Who reads the list of workers goes before it does.
        if self._fleet is not None:
            self._asked_before, self._fleet = self._fleet.stats(), None
        self.node.close()
        self.node = None
