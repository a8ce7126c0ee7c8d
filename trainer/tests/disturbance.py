"""Workers that things happen to while ranks read from them: killed, frozen, cut off, drained, and started again at their address."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import socket
import subprocess
from collections import Counter
from typing import Any

from feedmill.nodes import worker_program

#: A worker that was told to end is given this long, and is killed then.
DRAIN_SECONDS = 5

_numbers = itertools.count(1)


class Net:
    """A network of its own for one worker, which can be cut and mended: an unplugged cable, that nobody is told of."""

    def __init__(self) -> None:
        number = next(_numbers)
        self.name = f"feedmill-{os.getpid()}-{number}"
        self._link = f"fm{os.getpid()}n{number}"
        # RFC 2544's networks, which nobody routes; one /30 for each pair of process and number.
        block = (os.getpid() * 64 + number) % (1 << 15)
        here, there = (f"198.{18 + (block >> 14)}.{(block >> 6) & 255}.{((block & 63) << 2) + end}" for end in (1, 2))
        self.address = there
        _ip("netns", "add", self.name)
        try:
            _ip("link", "add", self._link, "type", "veth", "peer", "name", "worker", "netns", self.name)
            _ip("address", "add", f"{here}/30", "dev", self._link)
            _ip("link", "set", self._link, "up")
            _ip("-n", self.name, "address", "add", f"{there}/30", "dev", "worker")
            _ip("-n", self.name, "link", "set", "worker", "up")
            _ip("-n", self.name, "link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    def cut(self) -> None:
        # The worker's end: this side's route stays, and what is sent vanishes.
        _ip("-n", self.name, "link", "set", "worker", "down")

    def mend(self) -> None:
        _ip("-n", self.name, "link", "set", "worker", "up")

    def close(self) -> None:
        _ip("netns", "delete", self.name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def no_networks() -> str | None:
    """Why networks cannot be made here; None where they can."""
    try:
        Net().close()
    except FileNotFoundError:
        return "there is no program ip"
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be made: {error.stderr.strip()}"
    return None


class Slot:
    """One address, and the worker that may listen there."""

    def __init__(self, pipeline: str, name: str, net: Net | None = None) -> None:
        self._pipeline, self.name, self.net = pipeline, name, net
        #: "gone", "up", "frozen", "cut" or "draining".
        self.state = "gone"
        self._process: subprocess.Popen[bytes] | None = None
        if net is None:
            # An address of this slot's own, so that nobody else is given its port while nobody listens there.
            host = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(2, 255)}"
            with socket.create_server((host, 0)) as probe:
                port = probe.getsockname()[1]
        else:
            host, port = net.address, 8470
        self._listen = f"{host}:{port}"
        self.url = f"http://{self._listen}"

    def start(self) -> None:
        """A worker at this address; it may still be reading its manifests."""
        self._reap()
        command = [worker_program(), "--pipeline", self._pipeline, "--listen", self._listen, "--exit-with-stdin"]
        command += ["--name", self.name, "--threads", "1", "--drain-seconds", str(DRAIN_SECONDS)]
        if self.net is not None:
            # Nobody but this machine reaches its address.
            command = ["ip", "netns", "exec", self.net.name, *command, "--insecure-no-token"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"{self.name} does not start: {self._process.stderr.read().decode(errors='replace')}")
        json.loads(line)
        self.state = "up"

    def kill(self) -> None:
        if self.state == "cut" and self.net is not None:
            self.net.mend()
        self._signal(signal.SIGKILL)
        self._reap()
        self.state = "gone"

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)
        self.state = "frozen"

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)
        self.state = "up"

    def drain(self) -> None:
        self._signal(signal.SIGTERM)
        self.state = "draining"

    def cut(self) -> None:
        assert self.net is not None
        self.net.cut()
        self.state = "cut"

    def mend(self) -> None:
        assert self.net is not None
        self.net.mend()
        self.state = "up"

    def close(self) -> None:
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._reap()
        if self.net is not None:
            self.net.close()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            os.kill(self._process.pid, number)

    def _reap(self) -> None:
        """Waits for the one before, which was told to end or killed."""
        if self._process is None:
            return
        try:
            self._process.wait(timeout=DRAIN_SECONDS + 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"{self.name} was told to end and did not") from None
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        self._process = None


#: From a slot's state, what may happen to it.
EVENTS: dict[str, tuple[str, ...]] = {
    "gone": ("start",),
    "draining": ("start",),
    "up": ("kill", "freeze", "drain", "cut"),
    "frozen": ("thaw", "kill"),
    "cut": ("mend", "kill"),
}

#: What takes a worker away from the ranks.
TAKING = ("kill", "freeze", "drain", "cut")


class Disturbance:
    """Slots, a file that lists the workers among them, and a die that says what happens next. Kinds of events are drawn first, so
    that each of them comes often. Workers that were killed or told to end stay in the list until the next one is added: nobody
    is told of a death."""

    def __init__(self, slots: list[Slot], seed: int, listed: str, *others: str) -> None:
        self.slots, self.seed, self._listed = slots, seed, listed
        self._list()
        self._draw = random.Random(seed)
        #: Kinds that are not the slots' business, and what they do.
        self._others = others
        self.happened: list[str] = []

    def next(self) -> str:
        """Makes one event happen; its kind."""
        possible: dict[str, list[Slot]] = {}
        well = sum(slot.state == "up" for slot in self.slots)
        for slot in self.slots:
            for kind in EVENTS[slot.state]:
                if kind in TAKING and slot.state == "up" and well < 2:
                    # Somebody has to make the data; a fleet that is away altogether is another test.
                    continue
                if kind == "cut" and slot.net is None:
                    continue
                possible.setdefault(kind, []).append(slot)
        # Of three, the one that came less often: all kinds come in a run of some length.
        so_far = self.kinds()
        kind = min((self._draw.choice(sorted([*possible, *self._others])) for _ in range(3)), key=lambda kind: so_far[kind])
        if kind in self._others:
            self.happened.append(kind)
            return kind
        slot = self._draw.choice(possible[kind])
        {
            "start": slot.start,
            "kill": slot.kill,
            "freeze": slot.freeze,
            "thaw": slot.thaw,
            "drain": slot.drain,
            "cut": slot.cut,
            "mend": slot.mend,
        }[kind]()
        if kind == "start":
            self._list()
        self.happened.append(f"{kind} {slot.name}")
        return kind

    def _list(self) -> None:
        with open(f"{self._listed}.new", "w", encoding="utf-8") as file:
            file.writelines(f"{slot.url}\n" for slot in self.slots if slot.state not in ("gone", "draining"))
        os.replace(f"{self._listed}.new", self._listed)

    def choice(self, of: Any) -> Any:
        return self._draw.choice(of)

    def kinds(self) -> Counter[str]:
        return Counter(event.split()[0] for event in self.happened)

    def __str__(self) -> str:
        return f"seed {self.seed}, so far: " + ", ".join(self.happened)
