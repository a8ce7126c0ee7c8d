"""Takes a torch DeviceMesh, gives the data-parallel rank. Torch is not imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .errors import ConfigError


def mesh_ranks(mesh: Any, wanted: Sequence[str]) -> tuple[int, int, int]:
    """The rank over the dimensions ``wanted``, in the mesh's order, their size, and the size of all others."""
    names = list(mesh.mesh_dim_names or ())
    for name in wanted:
        if name not in names:
            raise ConfigError(f"the mesh has no dimension {name!r}; it has {', '.join(map(str, names)) or 'none'}")
    rank, size = 0, 1
    for name in (name for name in names if name in wanted):
        extent = mesh.size(names.index(name))
        rank = rank * extent + mesh.get_local_rank(name)
        size *= extent
    others = 1
    for index, name in enumerate(names):
        if name not in wanted:
            others *= mesh.size(index)
    return rank, size, others
