"""The loader: one rank's micro batches, and where it stands."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from . import _feedmill, state as states
from .account import Account
from .batch import ENDS, SELECTABLE, Batch, known_model
from .course import Progress, counted_batches, with_steps
from .errors import ConfigError, FeedmillError
from .fleet import Workers
from .kinds import at_least, checked
from .ledger import open_ledger
from .mesh import mesh_ranks
from .nodes import NodeWorkers
from .runs import run_name
from .settings import check_access, check_own_workers, check_ranks, checked_skips, checked_tensors, is_fleet
from .steps import GlobalBatch, Limits, size_at, steps_between

_log = logging.getLogger("feedmill")


class Loader:
    """Iterates the micro batches of one data-parallel rank, for one thread at a time.

    In the step that begins when ``c`` samples are consumed, the k-th micro batch of rank r is the ``micro_batch``
    samples from c + (k * dp_size + r) * micro_batch on: Megatron's order. Iterating goes on where it stopped; a new
    epoch needs no new loader.

    source: ``http://HOST:PORT`` of a worker or a headless service (all addresses of a name are workers, also those that
        come later), several of them as a list or with commas between, ``file:PATH`` of a list that is read again when it
        changes; or a pipeline's file, for which workers are started on this machine, one set for all ranks of the run.
        Where FEEDMILL_AGENT names the socket of this node's agent, batches come from there by reference, and addresses are
        not asked.
    stream: which of the pipeline's streams.
    dp_rank, dp_size: the data-parallel rank and size, never global ones. ``dp_size * model_parallel_size`` must be
        WORLD_SIZE where a launcher set that.
    global_batch: samples of one optimizer step over all ranks; or a schedule: a function of the samples consumed.
    micro_batch: samples in one batch.
    epochs, max_steps, max_samples: where training ends, counted from its very begin; None = never. The smallest counts. Steps
        are those that were taken, with whatever global batch: after a resume ``max_steps`` less those of the state are left.
        Epochs follow each other within one loop: a second one over a loader that has come to its end gives nothing.
    last_step: "pad" makes the step that crosses the end full with filler rows without loss; "drop" leaves it out.
    ensure_image: a batch without an image gets one more row with a small masked one, so that every rank runs the
        vision tower.
    skips: stretches (start, end) of positions that are left out; each begins where a step begins.
    token, token_file: the workers' bearer token, as it is or as the first line of a file, which is read again when a worker
        refuses it; else FEEDMILL_TOKEN_FILE. Workers of a pipeline's file need none: they get one of their own.
    ca_file: authorities, PEM, that certificates of https:// workers must be signed by; else FEEDMILL_CA_FILE, else those of
        this machine.
    max_bad: largest share of rows that may stand in for records that cannot be used; counted after 1,000 rows and 20
        bad ones.
    on_bad: "raise" BadSamples above it, or "warn" once.
    ledger: a file that gets one line of JSON a step, from rank 0; with ``{rank}`` in it from every rank.
    run: one name for each start of the training, shared by its ranks; found by itself under torchrun, Slurm and
        torch.distributed.
    accept_plan: a plan's digest that a checkpoint may be resumed with although it was written with another.
    consumed: samples that were consumed before; what ``seek`` sets.
    model_parallel_size: ranks that share one data-parallel rank (tensor x pipeline x context parallel).
    tensors: names of tensors that :class:`Batch` makes; a pipeline stage without the vision tower leaves out
        pixel_values.
    window: micro batches in hand and asked for ahead, always so many; 0 asks only for the one that is waited for. None
        finds the number by itself: enough to keep the fleet busy, within ``window_bytes``.
    window_bytes: bytes of the batches in hand and on their way, by the size of those that came, that a number found by itself keeps
        within; one batch is asked for whatever its size, and a ``window`` that is given is kept whatever its batches' size.
    timeout: seconds to wait for a batch before WorkersUnreachable.
    verify: hash the samples of each batch again and ask another worker where they do not have the hashes that came with
        them; for a network or memory that is not trusted.
    workers, threads: how many worker processes a pipeline's file gets on this machine, and threads in each; for nothing else.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str],
        *,
        stream: str = "train",
        dp_rank: int,
        dp_size: int,
        global_batch: GlobalBatch,
        micro_batch: int,
        epochs: float | None = None,
        max_steps: int | None = None,
        max_samples: int | None = None,
        last_step: str = "pad",
        ensure_image: bool = False,
        skips: Iterable[tuple[int, int]] = (),
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        max_bad: float = 0.01,
        on_bad: str = "raise",
        ledger: str | os.PathLike[str] | None = None,
        run: str | None = None,
        accept_plan: str | None = None,
        consumed: int = 0,
        model_parallel_size: int = 1,
        tensors: Collection[str] | None = None,
        window: int | None = None,
        window_bytes: int = 1 << 30,
        timeout: float = 300.0,
        verify: bool = False,
        workers: int = 1,
        threads: int | None = None,
    ) -> None:
        # Each as its kind has it; from here on nothing reads what was given.
        of = checked(locals())
        check_ranks(of["dp_rank"], of["dp_size"], of["model_parallel_size"])
        check_access(of["source"], of["token"], of["token_file"])
        check_own_workers(of["source"], of["workers"], of["threads"])
        self.stream: str = of["stream"]
        self.dp_rank: int = of["dp_rank"]
        self.dp_size: int = of["dp_size"]
        self.micro_batch: int = of["micro_batch"]
        #: No other process may be this rank. Alone a training takes nothing from others, and ranks that share a model are the same one.
        self._is_sole: bool = of["dp_size"] > 1 and of["model_parallel_size"] == 1
        self.last_step: str = of["last_step"]
        self.ensure_image: bool = of["ensure_image"]
        self.max_bad: float = of["max_bad"]
        self.on_bad: str = of["on_bad"]
        self.accept_plan: str | None = of["accept_plan"]
        self._global_batch: GlobalBatch = of["global_batch"]
        self._limits = Limits(of["epochs"], of["max_steps"], of["max_samples"])
        self._skips = checked_skips(of["skips"])
        self._tensors = checked_tensors(of["tensors"], SELECTABLE | ENDS)
        self._window: int | None = of["window"]
        self._window_bytes: int = of["window_bytes"]
        self._puller: _feedmill.Puller | None = None
        #: After the puller, which reads from them: that is how they are forgotten.
        self._workers = Workers(
            of["source"],
            timeout=of["timeout"],
            verify=of["verify"],
            token=of["token"],
            token_file=of["token_file"],
            ca_file=of["ca_file"],
            count=of["workers"],
            threads=of["threads"],
        )
        #: What the checkpoint was written with.
        self._expected_plan: str | None = None
        self._plan: dict[str, Any] | None = None
        #: A batch that came and was not handed out, because something was raised in its stead.
        self._held: Batch | None = None
        self._closed = self._ready = False
        #: Whoever changes where it stands has it alone; closing it needs no turn.
        self._turns = _feedmill.Turns()
        #: It goes on elsewhere than it began, and nobody was told.
        self._turned = False
        #: Whether the end was come to, and whether that was said.
        self._ended = self._said_end = False
        # Arithmetic that does not divide is refused here, before anything is asked.
        begin: int = of["consumed"]
        course = self._new_course(begin, stop=None)
        steps = self._limits.known_steps(steps_between(self._global_batch, 0, begin), begin)
        self._progress = Progress(course, begin, steps)
        self.run = run_name(of["run"], self.dp_size)
        pipeline = None if is_fleet(of["source"]) else of["source"]
        self._account = Account(self.dp_rank, self.stream, open_ledger(of["ledger"], self.dp_rank), pipeline)

    # Making one from what a framework knows.

    @classmethod
    def from_megatron(cls, source: Any, *, args: Any = None, **settings: Any) -> Loader:
        """A loader for Megatron-LM: ranks from ``megatron.core.parallel_state``, global batch, micro batch and samples
        consumed from ``args`` (default ``megatron.training.get_args()``). A stream whose name begins with eval, val, test, dev or
        held begins at ``consumed_valid_samples``, with the whole global batch; ``consumed=0`` evaluates the same each time."""
        from . import megatron

        made: Loader = megatron.loader(cls, source, args=args, **settings)
        return made

    @classmethod
    def from_device_mesh(cls, source: Any, mesh: Any, dp: str | Sequence[str] = "dp", **settings: Any) -> Loader:
        """A loader for a torch DeviceMesh: ``dp`` names the dimension, or the dimensions, that data is split over; all
        others share a rank's batches."""
        rank, size, others = mesh_ranks(mesh, [dp] if isinstance(dp, str) else list(dp))
        settings.setdefault("model_parallel_size", others)
        return cls(source, dp_rank=rank, dp_size=size, **settings)

    # Iterating.

    def __iter__(self) -> Iterator[Batch]:
        if self._ended:
            self._say_end("this loop gets no batch. Epochs follow each other within one loop: epochs=N, not N loops")
        return self

    def __bool__(self) -> bool:
        """True, always: not the length, which an endless loader has not, and which asks the workers."""
        return True

    def __next__(self) -> Batch:
        with self._turns.take():
            batch = self._next()
        if batch is None:
            raise StopIteration
        return batch

    def __len__(self) -> int:
        """Micro batches of this rank from here to the end. TypeError where there is no end."""
        self._opened()
        progress, size = self._progress, self._global_batch
        if progress.course.end() is None:
            raise TypeError("this loader has no length: it was given neither epochs nor max_steps nor max_samples")
        if callable(size):
            stop = self._stop(progress.begin, progress.begin_steps)
            batches = counted_batches(self._fresh_course(progress.begin, stop), size)
        else:
            steps = progress.course.steps_left(progress.begin, size) or 0
            batches = steps * (size // (self.dp_size * self.micro_batch))
        return max(batches - progress.taken, 0)

    def wait_ready(self) -> None:
        """Waits until the first batch is there; checks the plan against the workers', and with the run's other ranks that
        all begin with the same stream, plan, global batch, micro batch, size and samples consumed, leave the same stretches out and end
        at the same position. Call it before the first collective: what
        is wrong is then an error here (RunMismatch, PlanChanged, WorkersUnreachable), and no hang there. It counts as no
        waiting; after ``load_state_dict`` or ``seek`` it does all that again."""
        with self._turns.take():
            self._begin_reading(counted=False)

    def _begin_reading(self, *, counted: bool) -> None:
        # Ranks that go on elsewhere are held against each other only where they ask for it: they may do so one after another.
        if self._ready and (counted or not self._turned):
            return
        self._open()
        assert self._puller is not None
        puller = self._puller
        self._progress.know_ahead(puller, self._global_batch, self._window)
        self._workers.asked(lambda: puller.wait_ready(counted))
        self._ready, self._turned = True, False

    def _opened(self) -> None:
        """As :meth:`_open`, for whoever only looks: also while another thread reads."""
        if self._puller is None:
            with self._turns.take():
                self._open()

    def _open(self) -> None:
        """Asks the workers for the plan; nothing of the stream yet."""
        if self._puller is not None:
            return
        if self._closed:
            raise FeedmillError("the loader is closed")
        fleet, plan = self._workers.plan(self.run, self.stream, self.dp_rank)
        # By another thread meanwhile, which may have found no workers yet.
        if self._closed:
            self._workers.let_go()
            raise FeedmillError("the loader is closed")
        self._plan = plan
        self._check_plan(plan)
        consumed, steps = self._progress.begin, self._progress.begin_steps
        course = self._new_course(consumed, self._stop(consumed, steps))
        self._puller = _feedmill.Puller(
            fleet,
            self.stream,
            self.dp_size,
            self.dp_rank,
            self.micro_batch,
            plan["plan"],
            self._window,
            self._window_bytes,
            course,
            self._is_sole,
        )
        self._adopt(course, consumed, steps)

    def _asked_plan(self) -> dict[str, Any]:
        self._opened()
        assert self._plan is not None
        return self._plan

    def close(self) -> None:
        """Takes back all requests; lets go of this machine's workers. The loader gives no more batches. Any thread may call it."""
        self._closed = True
        try:
            if self._puller is not None:
                self._puller.close()
        finally:
            self._account.close()
            self._workers.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Where it stands.

    @property
    def consumed(self) -> int:
        """Samples consumed by whole optimizer steps; within a step that of its begin."""
        return self._progress.consumed

    @property
    def steps(self) -> int | None:
        """Optimizer steps of the whole training so far; None where that is not known: after ``seek`` to what is no whole number of
        steps of this loader's global batch."""
        return self._progress.steps

    @property
    def position(self) -> int:
        """Where the stream stands: ``consumed`` plus what was skipped before."""
        return _feedmill.position_of(self.consumed, self._skips)

    @property
    def at_step_boundary(self) -> bool:
        """True when the next batch is the first of a step."""
        if self._held is not None:
            return False
        place = self._progress.next_place()
        return place is None or place[4] == 0

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """What a checkpoint holds: {"version": 1, "stream", "consumed", "steps", "skips", "plan"}.

        A step counts as soon as its last micro batch was handed out, so call it after ``optimizer.step()``, before the
        next batch; within a step it is the step's begin. A trainer that counts by itself gives its own ``consumed``.
        """
        plan: str = self._asked_plan()["plan"]
        progress = self._progress
        if consumed is None:
            consumed, steps = progress.stands
        else:
            consumed = at_least("consumed", consumed, 0)
            steps = progress.steps_at(self._global_batch, consumed)
        return states.written(self.stream, consumed, steps, self._skips, plan)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where a checkpoint was written, with any number of ranks, micro batch and global batch.

        Skips of the checkpoint stay; this loader's own ones come after where the checkpoint stands. Raises StateError for
        what is no state of this stream, and where ``max_steps`` is set and the state has no steps; PlanChanged when the workers
        have another plan and ``accept_plan`` is not that.
        """
        with self._turns.take():
            resumed = states.resumed(state, self.stream, self._skips, self._limits.max_steps)
            old = self._skips, self._expected_plan
            self._skips, self._expected_plan = resumed.skips, resumed.plan or self._expected_plan
            try:
                if resumed.plan is not None and self._plan is not None:
                    self._check_plan(self._plan)
                self._turn(resumed.consumed, resumed.steps)
            except BaseException:
                self._skips, self._expected_plan = old
                raise

    def seek(self, consumed: int, steps: int | None = None) -> None:
        """Goes on with the step that begins when ``consumed`` samples are consumed: Megatron's consumed_train_samples.

        steps: optimizer steps that were taken until then; without it, those that this loader's global batch makes of ``consumed``.
        StateError where ``max_steps`` is set and that is no whole number.
        """
        consumed = at_least("consumed", consumed, 0)
        steps = steps_between(self._global_batch, 0, consumed) if steps is None else at_least("steps", steps, 0)
        with self._turns.take():
            self._turn(consumed, self._limits.known_steps(steps, consumed))

    def set_global_batch(self, global_batch: GlobalBatch) -> None:
        """Another global batch, or schedule, from the next step on. Only between steps; on all ranks at the same one."""
        with self._turns.take():
            if not self.at_step_boundary:
                raise ConfigError("the global batch changes between steps only; this rank stands within one")
            old, steps = self._global_batch, self.steps
            self._global_batch = global_batch
            try:
                self._turn(self.consumed, steps)
            except BaseException:
                self._global_batch = old
                raise

    def plan(self) -> dict[str, Any]:
        """Everything that decides what stands at a position, to be written beside checkpoints: {"stream", "plan" (its
        digest), "samples_per_epoch", "datasets", "facts"}. ``feedmill diff`` compares two of them."""
        plan = self._asked_plan()
        return {
            "stream": self.stream,
            "plan": plan["plan"],
            "samples_per_epoch": plan["samples_per_epoch"],
            "datasets": list(plan["datasets"]),
            "facts": json.loads(plan["facts"]),
        }

    def save_plan(self, folder: str | os.PathLike[str]) -> str:
        """Writes plan.json into a checkpoint's folder, which is made where there is none, by one rename; returns its path.
        FeedmillError where that does not go."""
        path = os.path.join(folder, "plan.json")
        temporary = f"{path}.{os.getpid()}.tmp"
        plan = self.plan()
        try:
            os.makedirs(folder, exist_ok=True)
            with open(temporary, "w", encoding="utf-8") as file:
                # As the workers say it: the digest is over its facts, and the order of what is within one is part of that.
                json.dump(plan, file, indent=1)
                file.write("\n")
            os.replace(temporary, path)
        except OSError as error:
            raise FeedmillError(f"the plan cannot be written into folder {os.fspath(folder)}: {error.strerror or error}") from error
        return path

    @property
    def samples_per_epoch(self) -> int:
        """N: positions of one epoch."""
        samples: int = self._asked_plan()["samples_per_epoch"]
        return samples

    @property
    def model(self) -> dict[str, Any]:
        """What the model's processor is like: patch (side in pixels), merge (patches per side that become one token), temporal
        (frames per patch), pad_id, image_pad_id, vision_start_id, vision_end_id (token ids)."""
        facts = known_model(self._asked_plan()["model"])
        names = ("patch", "merge", "temporal", "pad_id", "image_pad_id", "vision_start_id", "vision_end_id")
        return {name: getattr(facts, name) for name in names}

    # Looking at it.

    def stats(self) -> dict[str, Any]:
        """How the queue stands: ready, outstanding and target (micro batches), steps, batches, consumed; seconds waited (in
        all), waiting (now), stepped (in whole steps) and pace (the trainer's own time for a micro batch); wait_ratio;
        batch_bytes; requests, hedged (asked of a second worker because the first was late) and silenced (workers that fell
        silent); rows, tokens, supervised, filler, bad, bytes, padding; rows_per_dataset; lent_bytes (of an
        agent's memory), copied_out (batches kept beyond the share of it); ledger_lost."""
        queue = self._puller.stats() if self._puller is not None else {}
        asked = self._workers.stats()
        if asked:
            queue |= {name: asked[name] for name in ("requests", "hedged", "silenced")}
        queue |= self._account.stats(self._dataset_names(), queue.get("waited", 0.0))
        queue["consumed"] = self.consumed
        # Batches own their memory, unless an agent lends it; then those kept beyond this process's share are copies.
        queue["lent_bytes"], _, queue["copied_out"] = self._workers.agent()
        return queue

    def log(self, prefix: str = "feedmill/") -> dict[str, float]:
        """Numbers for a training's log, since the last call: wait_pct, bad_rows, padding_pct, supervised_pct,
        rows/<data set>; and consumed."""
        waited = self._puller.stats()["waited"] if self._puller is not None else 0.0
        keys = self._account.log(self._dataset_names(), waited, self.consumed)
        return {prefix + key: value for key, value in keys.items()}

    # Inside.

    def _next(self) -> Batch | None:
        if self._held is None:
            begun = time.monotonic()
            self._begin_reading(counted=True)
            assert self._puller is not None
            self._progress.know_ahead(self._puller, self._global_batch, self._window)
            frame = self._workers.asked(self._puller.next)
            self._turned = False
            self._account.tick(begun)
            place = self._progress.next_place() if frame is not None else None
            if frame is None or place is None:
                if self._progress.taken == 0:
                    self._say_end("there is nothing to read from here")
                self._ended = True
                return None
            batch = Batch(
                frame,
                model=self._plan["model"] if self._plan else None,
                datasets=self._dataset_names(),
                step_consumed=place[2],
                global_batch=place[3],
                index_in_step=place[4],
                ensure_image=self.ensure_image,
                tensors=self._tensors,
            )
            self._account.add(self, batch, time.monotonic() - begun)
            self._held = batch
        self._account.check(self.max_bad, self.on_bad)
        batch, self._held = self._held, None
        ends_step = (batch.index_in_step + 1) * self.dp_size * self.micro_batch == batch.global_batch
        self._progress.take(ends_step)
        if ends_step:
            self._account.finish_step()
        return batch

    @property
    def _node(self) -> NodeWorkers | None:
        """This machine's workers, while a pipeline's file has them started."""
        return self._workers.node

    def _check_plan(self, plan: Mapping[str, Any]) -> None:
        states.check_plan(plan["plan"], self._expected_plan, self.accept_plan, self.dp_rank, self.stream)

    def _dataset_names(self) -> list[str]:
        return list(self._plan["datasets"]) if self._plan is not None else []

    def _size_at(self, consumed: int | None) -> int:
        return size_at(self._global_batch, consumed)

    def _stop(self, consumed: int, steps: int | None) -> int | None:
        """The position at which training ends, as :meth:`Limits.stop` says it of this loader."""
        samples = None if self._plan is None else self._plan["samples_per_epoch"]
        return self._limits.stop(self._global_batch, self._skips, samples, consumed, steps)

    def _fresh_course(self, consumed: int, stop: int | None) -> _feedmill.Course:
        drop_last = self.last_step == "drop"
        return _feedmill.Course(self.dp_size, self.dp_rank, self.micro_batch, consumed, self._skips, stop, drop_last)

    def _new_course(self, consumed: int, stop: int | None) -> _feedmill.Course:
        return with_steps(self._fresh_course(consumed, stop), self._global_batch, consumed)

    def _adopt(self, course: _feedmill.Course, consumed: int, steps: int | None) -> None:
        self._progress = Progress(course, consumed, steps)
        self._held, self._ended = None, False
        self._account.leave_step()

    def _turn(self, consumed: int, steps: int | None) -> None:
        course = self._new_course(consumed, stop=None if self._puller is None else self._stop(consumed, steps))
        # Before anything is changed: it may refuse.
        if self._puller is not None:
            self._puller.follow(course)
        self._turned = True
        self._adopt(course, consumed, steps)

    def _say_end(self, what: str) -> None:
        """A loop without batches looks like a training that is through: once, it is said why."""
        if self._said_end:
            return
        self._said_end = True
        _log.warning("rank %d: stream %r has come to its end at %d samples; %s", self.dp_rank, self.stream, self.consumed, what)

    def __getstate__(self) -> Any:
        raise TypeError(
            "a feedmill.Loader belongs to its process and cannot be pickled; give a DataLoader's workers a "
            "feedmill.torch.IterableDataset, which makes one where it is iterated"
        )
