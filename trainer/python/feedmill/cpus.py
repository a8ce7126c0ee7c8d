"""CPUs that this process may use: its affinity, and what its cgroup's quota gives."""

from __future__ import annotations

import os


def usable(root: str = "/") -> int:
    """Whole CPUs, at least 1: the workers' own rule, for those that share a machine. ``root`` is where /proc and /sys are."""
    return max(1, min([len(os.sched_getaffinity(0)), *_quotas(root)]))


def _quotas(root: str) -> list[int]:
    """CPUs of each quota on the way from this process's cgroup to the root; a group's limit holds for those below it."""
    found = []
    for line in _text(os.path.join(root, "proc/self/cgroup")).splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            mount, unified = "sys/fs/cgroup", True
        elif "cpu" in controllers.split(","):
            mount, unified = f"sys/fs/cgroup/{controllers}", False
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            quota = _quota(os.path.join(root, mount, *parts[:depth]), unified)
            if quota is not None:
                found.append(quota)
    return found


def _quota(folder: str, unified: bool) -> int | None:
    if unified:
        said = _text(os.path.join(folder, "cpu.max")).split()
    else:
        said = [_text(os.path.join(folder, f"cpu.cfs_{name}_us")).strip() for name in ("quota", "period")]
    try:
        quota, period = (int(word) for word in said)
    except ValueError:
        # "max", or no such file.
        return None
    return quota // period if quota > 0 and period > 0 else None


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
