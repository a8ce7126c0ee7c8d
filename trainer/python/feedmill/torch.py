"""For code that wants a torch data set. Imports torch; the rest of the package does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import get_worker_info

from .batch import Batch
from .errors import ConfigError
from .loader import Loader


class IterableDataset(torch.utils.data.IterableDataset):
    """A loader's micro batches as a data set, for ``DataLoader(dataset, batch_size=None, num_workers=0)``.

    transform: what is made of each :class:`feedmill.Batch`; default ``batch.torch()``, tensors on the CPU.
    source and settings: as for :class:`feedmill.Loader`.

    The loader prefetches by itself, so ``num_workers=0`` is right; 1 works, and makes the loader in that process, whose
    state is then not to be had here; more would read every batch several times, and are refused.
    """

    def __init__(self, source: Any, *, transform: Callable[[Batch], Any] | None = None, **settings: Any) -> None:
        super().__init__()
        self._source, self._settings, self._transform = source, settings, transform
        self._state: Mapping[str, Any] | None = None
        self._loader: Loader | None = None

    @property
    def loader(self) -> Loader:
        """The loader of this process, made when it is first asked for."""
        if self._loader is None:
            self._loader = Loader(self._source, **self._settings)
            if self._state is not None:
                self._loader.load_state_dict(self._state)
        return self._loader

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        if info is not None and info.num_workers > 1:
            raise ConfigError(f"{info.num_workers} DataLoader workers would read every batch so many times; use num_workers=0")
        transform = self._transform or Batch.torch
        for batch in self.loader:
            yield transform(batch)

    def __len__(self) -> int:
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`feedmill.Loader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :meth:`feedmill.Loader.load_state_dict`."""
        self._state = state
        if self._loader is not None:
            self._loader.load_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        # Another process makes a loader of its own, from where this one stands.
        state = self._loader.state_dict() if self._loader is not None else self._state
        return self.__dict__ | {"_loader": None, "_state": state}
