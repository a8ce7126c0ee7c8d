"""For Hugging Face's Trainer. Imports transformers; the rest of the package does not.

>>> class Trainer(feedmill.hf.TrainerMixin, transformers.Trainer): ...
>>> trainer = Trainer(model=model, args=args, feedmill={"source": "http://workers:8470"})
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import get_last_checkpoint

from .errors import ConfigError, StateError
from .loader import Loader
from .nodes import NodeWorkers

#: Settings that the Trainer's arguments decide.
_DECIDED = ("dp_rank", "dp_size", "global_batch", "micro_batch", "epochs", "max_steps", "model_parallel_size")


class TrainerMixin:
    """Put before ``transformers.Trainer``: batches come from Feedmill, everything else stays the Trainer's.

    feedmill: settings of :class:`feedmill.Loader`, at least ``source``; ranks, micro batch, global batch and the end come
        from the training arguments. ``layout``, ``pad_to_multiple_of`` and ``per_segment_multiple`` go to
        :meth:`feedmill.Batch.torch`, ``dtype`` too.
    feedmill_eval: the same for evaluation, and ``samples``, how many of its stream are read: every time the same ones,
        from its begin. What it does not say is as in ``feedmill``. ``evaluate(other)`` evaluates another data set as ever.

    Data never goes through ``accelerator.prepare``, which would shard or re-order it. Resuming costs the same at any step:
    the checkpoint's trainer_state.json holds the loader's state, so nothing is skipped by reading it. On other ranks or with
    another batch size ``max_steps`` counts all steps, and ``num_train_epochs`` ends where the data does. Each checkpoint
    also gets a plan.json. The whole training is one pass over one dataloader without a length: save, evaluate and log by
    steps, not by epochs.

    A loss that is the mean over a micro batch's own tokens is 0/0 where all rows are filler, as on some ranks in the last step
    of an epoch: ``average_tokens_across_devices`` is set, and a model that takes no ``num_items_in_batch``, as Qwen's, is refused
    where filler can come, unless ``compute_loss_func=feedmill.hf.token_loss``, or another one, is given.
    """

    def __init__(
        self,
        *positional: Any,
        feedmill: Mapping[str, Any],
        feedmill_eval: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> None:
        self._feedmill = _settings("feedmill", feedmill)
        given = {key: value for key, value in self._feedmill.items() if key not in ("ledger", "skips", "consumed")}
        self._feedmill_eval = None if feedmill_eval is None else given | _settings("feedmill_eval", feedmill_eval)
        if self._feedmill_eval is not None:
            samples = self._feedmill_eval.get("samples")
            if not isinstance(samples, int) or samples < 1:
                raise ConfigError(f"feedmill_eval needs samples, how many are read; it has {samples!r}")
            if named.get("eval_dataset") is not None:
                raise ConfigError("feedmill_eval and eval_dataset both say what is evaluated; give evaluate() the other data set")
            # The Trainer wants to see that there is something.
            named["eval_dataset"] = _Samples(samples)
        #: The loader of the running training.
        self.feedmill_loader: Loader | None = None
        #: The state of the checkpoint that is resumed from, and its count of steps.
        self._feedmill_resumed: tuple[Mapping[str, Any] | None, int] = (None, 0)
        #: The steps that epochs were made into, and thus not the user's.
        self._feedmill_steps: int | None = None
        #: This machine's workers, kept from one evaluation to the next.
        self._feedmill_workers: NodeWorkers | None = None
        super().__init__(*positional, **named)
        arguments = self.args  # type: ignore[attr-defined]
        arguments.remove_unused_columns = False
        arguments.ignore_data_skip = True
        arguments.average_tokens_across_devices = True
        if "epoch" in (arguments.eval_strategy, arguments.save_strategy, arguments.logging_strategy):
            raise ConfigError('eval_strategy, save_strategy and logging_strategy must be by "steps" here, not by "epoch"')
        self._feedmill_callback = FeedmillCallback(self)
        self.add_callback(self._feedmill_callback)  # type: ignore[attr-defined]

    # What the Trainer asks for.

    def train(self, resume_from_checkpoint: Any = None, *positional: Any, **named: Any) -> Any:
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)  # type: ignore[attr-defined]
        # How many steps there are must be known before the schedule of learning rates is made.
        self._feedmill_resumed = _resumed(folder) if folder else (None, 0)
        # Where there is none, the Trainer says so.
        return super().train(folder or resume_from_checkpoint, *positional, **named)  # type: ignore[misc]

    def get_train_dataloader(self) -> Any:
        arguments = self.args  # type: ignore[attr-defined]
        shared = self._feedmill_model_parallel()
        dp_size = arguments.world_size // shared
        micro_batch = arguments.per_device_train_batch_size
        if self.feedmill_loader is not None:
            self.feedmill_loader.close()
        settings, tensors = _split(self._feedmill)
        begin = settings.pop("consumed", 0)
        by_epochs = arguments.max_steps <= 0 or arguments.max_steps == self._feedmill_steps
        if settings.get("last_step", "pad") == "pad" and (by_epochs or "max_samples" in settings):
            self._feedmill_check_loss("the last step of the training has filler rows", 'feedmill={"last_step": "drop"}')
        loader = self.feedmill_loader = Loader(
            settings.pop("source"),
            dp_rank=arguments.process_index // shared,
            dp_size=dp_size,
            global_batch=micro_batch * arguments.gradient_accumulation_steps * dp_size,
            micro_batch=micro_batch,
            epochs=arguments.num_train_epochs if by_epochs else None,
            max_steps=None if by_epochs else arguments.max_steps,
            model_parallel_size=shared,
            **settings,
        )
        saved, done = self._feedmill_resumed
        if saved is not None:
            loader.load_state_dict({**saved, "steps": done})
        elif done:
            # A checkpoint of another data pipeline: its own count of steps is all there is.
            loader.seek(done * loader._size_at(0), steps=done)
        elif begin:
            # The Trainer counts from here.
            loader.seek(begin, steps=0)
        if by_epochs:
            # The Trainer counts steps: those that were taken, whatever their size, and those that are left of this size.
            arguments.max_steps = self._feedmill_steps = max(done + len(loader) // arguments.gradient_accumulation_steps, 1)
        return _Batches(loader, tensors)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        asked = self.eval_dataset if eval_dataset is None else eval_dataset  # type: ignore[attr-defined]
        if self._feedmill_eval is None or not isinstance(asked, _Samples):
            return super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]
        arguments = self.args  # type: ignore[attr-defined]
        shared = self._feedmill_model_parallel()
        dp_size = arguments.world_size // shared
        micro_batch = arguments.per_device_eval_batch_size
        settings, tensors = _split(self._feedmill_eval)
        samples = settings.pop("samples")
        if 0 < samples % (micro_batch * dp_size) <= micro_batch * (dp_size - 1):
            whole = micro_batch * dp_size
            self._feedmill_check_loss(
                f"{samples} samples of feedmill_eval are no multiple of {whole}, so that some ranks have filler only",
                f"{math.ceil(samples / whole) * whole} samples",
            )
        return _EvalBatches(
            self,
            settings.pop("source"),
            tensors,
            samples,
            dp_rank=arguments.process_index // shared,
            dp_size=dp_size,
            global_batch=micro_batch * dp_size,
            micro_batch=micro_batch,
            max_samples=samples,
            model_parallel_size=shared,
            **settings,
        )

    def log(self, logs: dict[str, float], *positional: Any, **named: Any) -> None:
        loader = self.feedmill_loader
        if loader is not None and loader._puller is not None and "loss" in logs:
            logs = logs | loader.log()
        super().log(logs, *positional, **named)  # type: ignore[misc]

    def _feedmill_check_loss(self, because: str, otherwise: str) -> None:
        """ConfigError where the loss of filler rows would be 0/0."""
        if getattr(self, "model_accepts_loss_kwargs", False) or getattr(self, "compute_loss_func", None) is not None:
            return
        raise ConfigError(
            f"{because}, and the loss of this model is the mean over a micro batch's own tokens, 0/0 = NaN there: it takes no "
            f"num_items_in_batch. Give the Trainer compute_loss_func=feedmill.hf.token_loss, or {otherwise}"
        )

    def _feedmill_model_parallel(self) -> int:
        sizes = ("get_tp_size", "get_cp_size", "get_sp_size")
        shared: int = 1
        for size in sizes:
            shared *= getattr(self, size)() if hasattr(self, size) else 1
        return shared


def token_loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """The Trainer's ``compute_loss_func``: cross entropy, summed over the tokens that are learnt and divided by how many of
    them the step has on all ranks, so that neither their number nor filler rows weigh. 0 where nothing is learnt."""
    from torch.nn.functional import cross_entropy

    logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
    logits, wanted = logits[..., :-1, :], labels[..., 1:].to(logits.device)
    total = cross_entropy(logits.float().flatten(0, -2), wanted.flatten(), ignore_index=-100, reduction="sum")
    count = (wanted != -100).sum() if num_items_in_batch is None else num_items_in_batch
    return total / (count.to(total.device).clamp(min=1) if hasattr(count, "clamp") else max(count, 1))


class FeedmillCallback(TrainerCallback, ExportableState):
    """Carries the loader's state in and out of checkpoints."""

    def __init__(self, trainer: TrainerMixin) -> None:
        self._trainer = trainer

    def state(self) -> dict[str, Any]:
        loader = self._trainer.feedmill_loader
        return {"args": {}, "attributes": {"feedmill": loader.state_dict() if loader is not None else None}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        loader = self._trainer.feedmill_loader
        if loader is None:
            return
        if loader.steps != state.global_step:
            raise StateError(
                f"the Trainer stands at step {state.global_step} and the loader at {loader.steps}: resume by "
                "train(resume_from_checkpoint=...)"
            )
        # All ranks begin alike, or it is an error here and no hang in the first step.
        loader.wait_ready()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        loader = self._trainer.feedmill_loader
        if loader is not None:
            state.epoch = loader.consumed / loader.samples_per_epoch

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        loader = self._trainer.feedmill_loader
        if loader is not None and state.is_world_process_zero:
            loader.save_plan(f"{args.output_dir}/checkpoint-{state.global_step}")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        loader = self._trainer.feedmill_loader
        if loader is not None:
            loader.close()


class _Batches:
    """The training's batches, without a length: the Trainer stops at max_steps."""

    def __init__(self, loader: Loader, tensors: Mapping[str, Any]) -> None:
        self._loader, self._tensors = loader, tensors

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield batch.torch(**self._tensors)


class _Samples:
    """Stands for a data set of so many samples."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count


class _EvalBatches:
    """Evaluation's batches, every time from the begin of their stream."""

    def __init__(self, trainer: TrainerMixin, source: Any, tensors: Mapping[str, Any], samples: int, **settings: Any) -> None:
        self.dataset = _Samples(samples)
        self.batch_size = settings["micro_batch"]
        self._trainer, self._source, self._tensors, self._settings = trainer, source, tensors, settings

    def __len__(self) -> int:
        size: int = self._settings["global_batch"]
        return -(-len(self.dataset) // size)

    def __iter__(self) -> Iterator[Any]:
        with Loader(self._source, **self._settings) as loader:
            for batch in loader:
                yield batch.torch(**self._tensors)
            # This machine's workers stay for the next evaluation, as long as the trainer.
            node = loader._workers.hand_over()
            if node is not None:
                self._trainer._feedmill_workers = node


def _resumed(folder: Any) -> tuple[Mapping[str, Any] | None, int]:
    """The loader's state in a checkpoint, None where another data pipeline wrote it, and the Trainer's count of steps."""
    path = os.path.join(folder, "trainer_state.json")
    try:
        with open(path, encoding="utf-8") as file:
            said = json.load(file)
        kept = said.get("stateful_callbacks", {}).get(FeedmillCallback.__name__) or {}
        # The Trainer keeps a list where two callbacks have one name.
        kept = kept[-1] if isinstance(kept, list) else kept
        saved, done = kept.get("attributes", {}).get("feedmill"), said["global_step"]
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise StateError(f"checkpoint {folder} cannot be resumed from: {path}: {error}") from error
    return saved, done


def _settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    for setting in _DECIDED:
        if setting in given:
            raise ConfigError(f"{name} has {setting}, which the training arguments decide")
    if name == "feedmill" and "source" not in given:
        raise ConfigError("feedmill needs source: where workers are, or a pipeline's file")
    return dict(given)


def _split(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the loader takes, and what Batch.torch takes."""
    names = ("layout", "pad_to_multiple_of", "per_segment_multiple", "dtype")
    return (
        {key: value for key, value in settings.items() if key not in names},
        {key: value for key, value in settings.items() if key in names},
    )


__all__ = ["FeedmillCallback", "TrainerMixin", "token_loss"]
