"""Trains one point and measures it: time, bytes, quality, checkpoints. Methods only train; nothing here knows one.

Every process of the run calls ``run_point``; what it returns is the same on all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import resource
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from implementations import footprint, holding, rbm, recipe, registry
from implementations.checkpoint import Checkpoints
from implementations.clock import LABELS, Clock
from implementations.cluster import pace
from implementations.cluster.booked import BookedCommunicator
from implementations.cluster.communicator import Communicator
from implementations.cluster.hosts import counters
from implementations.cluster.hosts.plan import is_emulated
from implementations.cluster.ledger import Ledger
from implementations.data import loading
from implementations.data.dataset import Samples, Scored
from implementations.data.ranking import KS
from implementations.devices import Device
from implementations.errors import Diverged, OverMemory, UserError
from implementations.models.sigmoid_init import initialise_sigmoid
from implementations.models.worker_model import WorkerModel
from implementations.point import Point
from implementations.seeds import derive, torch_stream
from implementations.speech import wer
from implementations.target import at_target, crossing
from implementations.training import Shards, Training, order_of

# Between two pulses a run neither looks at the wall clock nor agrees on anything: that would cost a message a step.
PULSE_S = 1.0
EVAL_BATCH = 2000
REFERENCE_SAMPLES = 2000  # of the training set, for a normalisation's statistics
WARM_UP_STEPS = 3

# Called with (steps done, steps in all).
ReportProgress = Callable[[int, int], None]


def run_point(
    point: Point,
    communicator: Callable[[Ledger], Communicator],
    results: Path,
    report_progress: ReportProgress = lambda done, total: None,
    code_hash: str = "",
) -> dict[str, Any]:
    """Train a point, resuming where an earlier attempt was cut off; leaves curve and trace, returns record columns.

    ``communicator`` makes the point's communicator around a ledger; a checkpoint of another ``code_hash`` is void.
    All processes get the same, but for word errors, which rank 0 alone knows.
    Raises UserError for sizes that do not fit.
    """
    began = time.perf_counter()
    clock = Clock(Device(point.device).synchronise)
    try:
        run = Run(point, communicator, results, clock, code_hash)
    except (
        Diverged,
        OverMemory,
    ) as error:  # in pretraining, or before anything is held; on every process alike
        status = "diverged" if isinstance(error, Diverged) else "over_memory"
        sizes = {} if status == "diverged" else error.sizes
        return {"status": status, "reason": str(error), "setup_s": time.perf_counter() - began, **sizes}
    run.resume()
    run.warm_up()
    setup_s = time.perf_counter() - began
    run.take_pace()
    run.start_clock()
    try:
        run.train(report_progress)
        run.stop_clock()
        run.take_pace()
        status, reason = run.outcome()
    except Diverged as error:
        run.stop_clock()
        status, reason = "diverged", str(error)
    values = {"status": status, "reason": reason, "setup_s": setup_s, **run.columns()}
    if status != "diverged":
        values |= run.test()
    run.leave_files()
    return values


class Run:
    """One run in one process, from its parts to the columns of its record."""

    def __init__(
        self,
        point: Point,
        communicator: Callable[[Ledger], Communicator],
        results: Path,
        clock: Clock,
        code_hash: str,
    ) -> None:
        self.point, self.clock, self.device = point, clock, Device(point.device)
        self.device.begin()
        self.folder = results / "runs" / point.run_id
        self.ledger = Ledger(clock, keep_times=point.evidence == "measured")
        self.comm = communicator(self.ledger)
        self.rank = self.comm.hosted[0]
        emulated = point.evidence == "measured" and is_emulated(point.network)
        self.meter = counters.meter(emulated, all_hosts=self.comm.processes == 1)
        self.method = registry.get(point.method)

        wanted = point.data_size
        if wanted is not None and point.scaling == "weak":
            wanted *= point.workers
        self.dataset = loading.load(point.dataset, results, data_size=wanted)
        self.data_size = self.dataset.sizes["train"]
        order = order_of(point, self.dataset)
        if order.steps_per_epoch == 0:
            raise UserError(
                f"minibatch {point.minibatch}: each of {point.workers} workers has only {order.per_worker} "
                f"samples; lower minibatch or workers, or raise data_size"
            )
        settings = self.method.settings(point)
        sizes = (self.dataset.features, self.dataset.classes)
        if point.memory_limit_bytes is not None:
            _check_memory(
                point,
                holding.dry(point, *sizes, BookedCommunicator(point.workers, Ledger()), results),
                self.data_size,
            )
        self.footprint, self._peak = None, None
        if point.evidence == "simulated":
            self.footprint = footprint.predict(point, settings, self.dataset, order, len(self.comm.hosted))
            self._check_room()
            self._peak = footprint.Peak()
        shards = Shards(
            self.dataset, order, self.method.reads(point, settings, self.comm.hosted), self.device
        )
        self._order = order
        # The first optimiser of a process has torch load a good deal: neither the clock's nor the network's.
        torch.optim.SGD([torch.zeros(1)])
        self._resident_before = self.device.used_bytes()
        self._resident_bytes = 0
        with self.device.building():
            self.holding = holding.hold(point, settings, *sizes, self.comm, results)
        self.net = self.holding.net
        if self.footprint is not None:
            self.net.workers_at_once = self.footprint.at_once
        self.pretraining: pd.DataFrame | None = None
        self._initialise(results)
        self.training = Training(point, settings, self.holding, self.comm, shards, clock)
        self.training.uncounted = self._uncounted
        tag = f"{code_hash} {self.dataset.data_hash} {self.holding.tag}".rstrip()
        self.checkpoints = Checkpoints(self.folder / "checkpoint", self.rank, self._agree_barrier, tag)
        self.total_steps = point.epochs * order.steps_per_epoch
        self.step = 0
        self.loss_sum = torch.zeros((), device=self.device.torch)
        self.train_loss = math.nan
        self.curve: list[dict[str, Any]] = []
        self.resumed = False
        self._saved = 0  # the step of the last checkpoint
        self._valid = self._share("valid")
        self._reference: Samples | None = None
        self._unsynced = False  # whether the model evaluated last is worker 0's alone
        self.utterances: pd.DataFrame | None = None
        self._paces: list[float] = []
        # Python's and torch's global generators belong to the point too, whatever ran in this process before.
        torch.manual_seed(derive(point.seed, "global"))

    # Preparation, off the clock

    def _check_room(self) -> None:
        """Raise OverMemory or UserError, on all processes alike, where this host has no room for the workers."""
        problem: OverMemory | UserError | None = None
        if self.footprint is not None:
            predicted = self.footprint.total * self.comm.processes
            sizes = {"data_size": self.data_size, "simulation_bytes_predicted": predicted}
            try:
                footprint.require(self.footprint, self.point, self.comm.processes, sizes)
            except (OverMemory, UserError) as error:
                problem = error
        # what is free changes while the processes look: all of them end alike if one does
        mine = (None, UserError, OverMemory).index(type(problem) if problem else None)
        worst = int(self.comm.control_max(np.array([mine]))[0])
        other = "another process of the run found too little memory"
        if worst:
            raise problem if mine == worst else (UserError(other) if worst == 1 else OverMemory(other, {}))

    def _initialise(self, results: Path) -> None:
        """First weights other than the model's own rule."""
        point, generator = self.point, torch_stream(self.point.seed, "init")
        if point.init == "random":
            initialise_sigmoid(self.net, generator)
        elif point.init == "rbm":
            options = recipe.settings(point)
            pretrained = rbm.cached_pretrain(
                results / "pretrained",
                f"{self.dataset.data_hash} {self.dataset.sizes['train']}",
                lambda: (self.dataset.samples("train"), self.dataset.samples("valid")),
                point.model["hidden"],
                rbm.RbmSettings(
                    gaussian_lr=options["rbm_gaussian_lr"],
                    bernoulli_lr=options["rbm_bernoulli_lr"],
                    gaussian_epochs=options["rbm_gaussian_epochs"],
                    bernoulli_epochs=options["rbm_bernoulli_epochs"],
                ),
                point.seed,
            )
            rbm.start_from(self.net, pretrained, generator)
            self.pretraining = pd.DataFrame(pretrained.log)

    def resume(self) -> None:
        """Take up the last checkpoint, if there is one."""
        state = self.checkpoints.load()
        # a process of an attempt that was cut off may have moved the marker while the others read it
        step = -1 if state is None else state["step"]
        last, first = self.comm.control_max(np.array([step, -step]))
        if state is None or last != -first:
            return
        self.step, self.resumed = state["step"], True
        self.training.restore(state["training"], self.step)
        self._saved_clock, self._saved_counts = state["clock"], counters.Counts(*state["counts"])
        self.ledger.restore(state["ledger"])
        self.loss_sum, self.train_loss = state["loss_sum"].to(self.device.torch), state["train_loss"]
        self.curve = state["curve"]
        self.checkpoints.written_bytes = state["written_bytes"]

    def warm_up(self) -> None:
        """Touch the buffers and the math library's set-up; changes no weight, and draws nothing."""
        x_wbi, y_wb = self.training.first_minibatches()
        with self.device.undisturbed():
            for _ in range(WARM_UP_STEPS):
                self.holding.warm_up(x_wbi, y_wb)
        self.net.grad_wp.zero_()
        self._resident_bytes = self.device.used_bytes() - self._resident_before

    def take_pace(self) -> None:
        """Time a step that calibration times too, on all processes at once: how fast this machine is now."""
        if self.point.evidence == "measured" and self.point.device == "cpu":
            self._agree_barrier()
            self._paces.append(pace.step_s())

    def start_clock(self) -> None:
        """All processes start together."""
        self._agree_barrier()
        if self.resumed:
            if self.meter:
                self.meter.start(self._saved_counts)
            self.clock.restore(self._saved_clock)
        else:
            self.clock.restart()
            with self.clock("eval"):
                self._evaluate(epoch=0)
                self.training.start_schedule(*self._latest)
                if self.meter:
                    self.meter.start()
                    self._agree_barrier()

    @property
    def _latest(self) -> tuple[float, float]:
        """Validation accuracy and loss of the latest evaluation."""
        return self.curve[-1]["valid_accuracy"], self.curve[-1]["valid_loss"]

    # The loop

    def train(self, report_progress: ReportProgress) -> None:
        """Run the method to its end. Raises Diverged when the loss is no longer finite."""
        # closed at once also where an error ends the run: a method may hold threads and sockets
        with closing(self.method.train(self.training)) as progress_of:
            self._follow(progress_of, report_progress)

    def _follow(self, progress_of: Generator[registry.Progress], report_progress: ReportProgress) -> None:
        clock, steps_per_epoch = self.clock, self.training.plan.steps_per_epoch
        pulse_steps, next_pulse, saved_at = 1, self.step + 1, clock.training_s
        while True:
            with clock("compute"):
                progress = next(progress_of, None)
            if progress is None:
                if self.training.own_theta_p is not None:  # a full average has come after the last step
                    with clock("eval"):
                        self._unsynced = False
                        self.curve.pop()
                        self._evaluate(epoch=self.step // steps_per_epoch)
                return
            with clock("other"):
                self.step = progress.step
                self.loss_sum += progress.loss
                epoch_ends = self.step % steps_per_epoch == 0
            if epoch_ends:
                with clock("eval"):
                    self.train_loss = self._mean_train_loss(steps_per_epoch)
                    self._check_finite(self.train_loss)
                    self._unsynced = not progress.synced
                    self._evaluate(epoch=self.step // steps_per_epoch)
                    self.curve[-1]["accepted"] = self.training.end_epoch(*self._latest)
            if self.step >= next_pulse or epoch_ends:
                with clock("other"):
                    loss, elapsed = self._pulse(clock.training_s)
                    self._check_finite(loss)
                    step_s = elapsed / self.step
                    pulse_steps = min(max(1, int(PULSE_S / step_s)), 2 * pulse_steps)
                    next_pulse = self.step + pulse_steps
                    report_progress(self.step, self.total_steps)
                    if elapsed - saved_at >= self.point.checkpoint_s and self.step < self.total_steps:
                        saved_at = elapsed
                        self.save()
            every = self.point.checkpoint_steps
            if every and self.step % every == 0 and self.step < self.total_steps and self._saved < self.step:
                with clock("other"):
                    self.save()

    def _check_finite(self, loss: float) -> None:
        """``loss`` is one that all processes have agreed on, so all of them stop or none."""
        if not math.isfinite(loss):
            raise Diverged(f"the training loss was not finite at step {self.step}")

    def _pulse(self, now: float) -> tuple[float, float]:
        """What all processes must agree on: the sum of losses, and the slowest one's training seconds."""
        loss = self.comm.control_sum(np.array([float(self.loss_sum)]))[0]
        return loss, self.comm.control_max(np.array([now]))[0]

    def save(self) -> None:
        """Write a checkpoint."""
        self._saved = self.step
        self.checkpoints.save(
            self.step,
            {
                "step": self.step,
                "training": self.training.state(),
                "clock": self.clock.snapshot(),
                "counts": (self.meter.counts if self.meter else counters.Counts()).values(),
                "ledger": self.ledger.state(),
                "loss_sum": self.loss_sum,
                "train_loss": self.train_loss,
                "curve": self.curve,
                "written_bytes": self.checkpoints.written_bytes,
            },
        )

    def _mean_train_loss(self, steps: int) -> float:
        weighted = float(self.loss_sum) * len(self.comm.hosted)
        self.loss_sum.zero_()
        return float(self.comm.control_sum(np.array([weighted]))[0]) / (steps * self.comm.size)

    def _evaluate(self, epoch: int) -> None:
        train_s = self.comm.control_max(np.array([self.clock.training_s]))[0]
        own_p = self.net.theta_wp[0] if self._unsynced else None
        with self._uncounted(), self._model_of_worker_0(own_p):
            accuracy, loss = self._score(self._valid)
            gradient_norm = self._gradient_norm() if self.point.gradient_norms else math.nan
        self.curve.append(
            {
                "step": self.step,
                "epoch": epoch,
                "samples": self.step * self.point.global_batch,
                "train_s": float(train_s) if epoch else 0.0,
                "train_loss": self.train_loss,
                "valid_accuracy": accuracy,
                "valid_loss": loss,
                "sent_bytes_total": self.ledger.sent_bytes_total,
                "payload_bytes": self.ledger.payload_bytes,
                "gradient_norm": gradient_norm,
                "drift": math.nan if self.training.drift is None else self.training.drift,
                "accepted": True,  # whether the weights were kept; a schedule may undo an epoch
            }
        )

    @contextmanager
    def _uncounted(self) -> Iterator[None]:
        """A block whose traffic the interfaces' counters leave out."""
        if self.meter is None:
            yield
            return
        self._agree_barrier()  # all have got what was sent before
        with self.meter.paused():
            self._agree_barrier()  # all have read their counters, and may send on
            yield
            self._agree_barrier()
        self._agree_barrier()

    @contextmanager
    def _model_of_worker_0(self, own_p: torch.Tensor | None) -> Iterator[None]:
        """Have every process evaluate worker 0's model, given its own first one's (P,); None: all are equal."""
        if own_p is None:
            yield
            return
        first_p = self.net.theta_wp[0]
        kept_p = first_p.clone()
        first_p.copy_(self.comm.control_bcast(own_p))
        try:
            yield
        finally:
            first_p.copy_(kept_p)

    def _score(self, samples: Samples) -> tuple[float, float]:
        """Accuracy and mean loss of the model, each process doing its share of the samples."""
        (correct, loss), count = self._summed(samples, lambda net, x, y: net.evaluate(x, y), 2)
        return correct / count, loss / count

    def _gradient_norm(self) -> float:
        """Norm of the gradient of the model's mean loss over the first training samples; worker 0's process has it."""
        norm = 0.0
        with self.holding.whole() as net:
            if net is not None and self.rank == 0:
                samples = self.dataset.samples("train", np.arange(min(REFERENCE_SAMPLES, self.data_size)))
                x_bi, y_b = self.device.take(samples, torch.arange(len(samples)))
                net.loss_and_grad(x_bi.unsqueeze(0), y_b.unsqueeze(0))
                norm = float(net.grad_wp.norm())
        return float(self.comm.control_sum(np.array([norm]))[0])

    def _summed(
        self,
        samples: Samples,
        measure: Callable[[WorkerModel, Any, torch.Tensor], Sequence[float]],
        values: int,
    ) -> tuple[list[float], float]:
        """Sums over all processes' samples of what ``measure`` gives, and their number."""
        totals = np.zeros(values + 1)
        with self.holding.whole() as net:
            if net is not None:
                net.prepare_evaluation(self._reference_inputs(net))
                for rows in _pieces(len(samples), net.evaluation_batch):
                    totals += [*measure(net, *self.device.take(samples, rows)), len(rows)]
        *sums, count = map(float, self.comm.control_sum(totals))
        return sums, count

    def _reference_inputs(self, net: WorkerModel) -> Iterator[Any]:
        """Some training samples' inputs, for statistics of normalisation; read when they are first wanted."""
        if not net.needs_samples:
            return
        if self._reference is None:
            # where data stay with their owners, the evaluating one's: worker 0's
            own = self._order.shard(0) if self._order.private else np.arange(self.data_size)
            self._reference = self.dataset.samples("train", own[:REFERENCE_SAMPLES])
        for rows in torch.arange(len(self._reference)).split(EVAL_BATCH):
            yield self.device.take(self._reference, rows)[0]

    def _share(self, split: str) -> Samples:
        """This process's part of an evaluation set.

        All of it, or nothing, where one process has the whole model, or answers depend on what is shown together.
        """
        rows = evenly(self.dataset.sizes[split], self.point.eval_size)
        if self.holding.everywhere and self.net.evaluation_batch is None:
            rows = rows[self.comm.process :: self.comm.processes]
        elif self.rank != 0:
            rows = rows[:0]
        return self.dataset.samples(split, rows)

    def _log_posteriors(self, net: WorkerModel, split: str) -> np.ndarray:
        """What a model says of every frame: (frames, classes) float32."""
        samples = self.dataset.samples(split)
        with torch.no_grad():
            parts = [
                net.logits(self.device.take(samples, rows)[0].unsqueeze(0)).squeeze(0).log_softmax(1).cpu()
                for rows in torch.arange(len(samples)).split(EVAL_BATCH)
            ]
        return torch.cat(parts).numpy()

    # The end

    def outcome(self) -> tuple[str, str | None]:
        """Status and reason of a run that went to its end."""
        target = self.point.target_value
        if target is None or self._reached() is not None:
            return "ok", None
        best = max(row["valid_accuracy"] for row in self.curve)
        return "target_missed", f"validation accuracy reached {best:.4f}, the target is {target}"

    def _reached(self) -> dict[str, float] | None:
        """Seconds and bytes at which the target was reached, on the straight line between two evaluations."""
        target = self.point.target_value
        if target is None:
            return None
        accuracies = [row["valid_accuracy"] for row in self.curve]
        if crossing(accuracies, target) is None:
            return None
        names = ("train_s", "sent_bytes_total")
        return {name: at_target(accuracies, target, [row[name] for row in self.curve]) for name in names}

    def stop_clock(self) -> None:
        """Freeze the parts; sums and maxima over processes are taken from the frozen values."""
        clock = self.clock
        if self.meter:
            self.meter.stop()
        self._wall_s, self._train_s, self._uncovered_s = clock.wall_s, clock.training_s, clock.uncovered_s
        self._parts = [clock.seconds[label] for label in LABELS]

    def columns(self) -> dict[str, Any]:
        """Columns of the record that are known at the end of training."""
        processes = self.comm.control_sum(np.ones(1))[0]
        wall_s, train_s = self.comm.control_max(np.array([self._wall_s, self._train_s]))
        *parts, uncovered_s = self.comm.control_sum(np.array([*self._parts, self._uncovered_s])) / processes
        reached = self._reached()
        epochs_done = self.step // self.training.plan.steps_per_epoch
        volume = self.method.volume(dataclasses.replace(self.training.plan, epochs=epochs_done))
        rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        samples = self.step * self.point.global_batch
        kept = next(row for row in reversed(self.curve) if row["accepted"])
        values = {
            "resumed": self.resumed,
            "data_size": self.data_size,
            "model_params": self.holding.full_params,
            "worker_params": int(self.comm.control_max(np.array([self.net.params_per_worker]))[0]),
            "server_bytes": self.holding.server_bytes,
            "strategy_hash": self.holding.tag or None,
            "data_kind": self.dataset.summary.get("data_kind"),
            "steps": self.step,
            "samples": samples,
            "epochs_done": epochs_done,
            "drift": max((row["drift"] for row in self.curve if row["drift"] >= 0), default=None),
            "target_reached": None if self.point.target_value is None else reached is not None,
            "bytes_to_target": reached and round(reached["sent_bytes_total"]),
            **self.comm.world_totals(),
            "sent_bytes_predicted": volume.sent_bytes_total,
            "paper_bytes": volume.paper_bytes,
            "state_bytes_per_worker": int(
                self.comm.control_max(np.array([self.training.state_bytes_per_worker]))[0]
            ),
            "train_loss": float(self.train_loss),
            "valid_accuracy": kept["valid_accuracy"],
            "valid_loss": kept["valid_loss"],
            "data_hash": self.dataset.data_hash,
            **self.training.notes,
            "checkpoint_bytes": int(self.comm.control_sum(np.array([self.checkpoints.written_bytes]))[0])
            + self.training.notes.get("checkpoint_bytes", 0),
            "gradient_norm": self.curve[-1]["gradient_norm"],
            "host_wall_s": float(wall_s),
        }
        if self.meter:
            counted = self.comm.control_sum(np.array(self.meter.counts.values(), dtype=np.float64))
            counts = counters.Counts(*map(int, counted))
            counters.require_passed(counts, values["sent_bytes_total"])
            values |= counters.columns(counts)
        if self.point.evidence == "simulated":
            values |= self._simulation_columns(float(train_s))
        if self.point.evidence == "measured":
            values |= {f"{label}_s": float(seconds) for label, seconds in zip(LABELS, parts)}
            values |= {
                "wall_s": float(wall_s),
                "train_s": float(train_s),
                "uncovered_s": float(uncovered_s),
                "pace_step_s": self._pace_s(float(processes)),
                "time_to_target_s": reached and reached["train_s"],
                "samples_per_s": float(samples / train_s),
                "resident_bytes": int(self.comm.control_max(np.array([float(self._resident_bytes)]))[0]),
                "peak_rss_bytes": int(self.comm.control_max(np.array([float(rss_bytes)]))[0]),
            }
            on_device = self.device.columns()
            if on_device:
                most = self.comm.control_max(np.array([on_device["peak_device_bytes"]]))[0]
                values |= {**on_device, "peak_device_bytes": int(most)}
        return values

    def _pace_s(self, processes: float) -> float | None:
        """Mean over processes, before and after the training; None where none of them took it."""
        if not self._paces:
            return None
        return float(self.comm.control_sum(np.array([np.mean(self._paces)]))[0] / processes)

    def _simulation_columns(self, train_s: float) -> dict[str, Any]:
        """What simulating the workers took of this host."""
        predicted = 0 if self.footprint is None else self.footprint.total
        grown = self._peak.grown_bytes or 0
        predicted, grown = self.comm.control_sum(np.array([predicted, grown]))
        return {
            "simulation_s": train_s,
            "simulation_bytes": int(grown) or None,
            "simulation_bytes_predicted": int(predicted) or None,
        }

    def test(self) -> dict[str, Any]:
        """Quality on the test set, which is read here and nowhere else; word errors are known to rank 0 alone."""
        samples = self._share("test")
        accuracy, loss = self._score(samples)
        values = {"accuracy": accuracy, "loss": loss}
        if self.dataset.summary["kind"] == "sparse":
            hits, count = self._summed(samples, lambda net, x, y: net.hits(x, y).tolist(), len(KS))
            values |= {f"p_at_{k}": value / count for k, value in zip(KS, hits)}
        recognition = self.dataset.recognition if self.point.decode else None
        if self.dataset.summary["kind"] == "speech":
            values["frame_error"] = 1 - accuracy
        if recognition:
            with self.holding.whole() as net:
                if net is not None and self.rank == 0:
                    net.prepare_evaluation(self._reference_inputs(net))
                    scored = recognition.score(functools.partial(self._log_posteriors, net))
                    self.utterances = scored.utterances
                    values |= _word_error_columns(scored)
        own_p = self.training.own_theta_p
        if own_p is not None:
            with self._model_of_worker_0(own_p):
                values["rank0_accuracy"], _ = self._score(samples)
                if self.dataset.summary["kind"] == "speech":
                    values["rank0_frame_error"] = 1 - values["rank0_accuracy"]
                if recognition and self.rank == 0:
                    scores = functools.partial(self._log_posteriors, self.net.one_worker(0))
                    errors = _word_errors(recognition.score(scores).utterances)
                    values["rank0_wer"] = errors.rate
        self._agree_barrier()  # nobody leaves while rank 0 decodes
        return values

    def leave_files(self) -> None:
        """Curve and trace beside the record, and no checkpoint."""
        if self.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            pd.DataFrame(self.curve).to_parquet(self.folder / "curve.parquet", index=False)
            self.ledger.frame().to_parquet(self.folder / "trace.parquet", index=False)
            for name, table in (("utterances", self.utterances), ("pretraining", self.pretraining)):
                path = self.folder / f"{name}.parquet"
                path.unlink(missing_ok=True)  # of an earlier attempt
                if table is not None:
                    table.to_parquet(path, index=False)
        self._agree_barrier()

    def _agree_barrier(self) -> None:
        self.comm.control_sum(np.zeros(1))


def evenly(size: int, wanted: int | None) -> np.ndarray:
    """Rows of an evaluation set of ``size`` samples: ``wanted`` of them, spread over it, or all (None, or too many)."""
    if wanted is None or wanted >= size:
        return np.arange(size)
    return np.arange(wanted) * size // wanted


def _pieces(samples: int, batch: int | None) -> Iterator[torch.Tensor]:
    """Rows of an evaluation set, piece by piece.

    Where the model's answers depend on what it is shown together, pieces have that size, and samples are mixed, in an
    order that is always the same: the stored one may be by class.
    """
    if batch is None:
        yield from torch.arange(samples).split(EVAL_BATCH)
        return
    if not samples:
        return
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(0))
    yield from order.tensor_split(max(1, round(samples / batch)))


def _check_memory(point: Point, held: holding.Holding, data_size: int) -> None:
    """Raise OverMemory where a worker's state would not fit; ``held`` has sizes alone."""
    needed = held.state_bytes(point)
    if needed > point.memory_limit_bytes:
        sizes = {
            "data_size": data_size,
            "model_params": held.full_params,
            "worker_params": held.net.params_per_worker,
            "server_bytes": held.server_bytes,
            "state_bytes_per_worker": needed - held.server_bytes,
        }
        raise OverMemory(
            f"a worker's state takes {needed / 1e6:.1f} MB, the limit is {point.memory_limit_bytes / 1e6:.1f} MB",
            sizes,
        )


def _word_errors(utterances: pd.DataFrame) -> wer.WordErrors:
    return wer.WordErrors(
        *(utterances[name].to_numpy() for name in ("substitutions", "deletions", "insertions", "words"))
    )


def _word_error_columns(scored: Scored) -> dict[str, Any]:
    """Columns of the record that a decoded test set gives."""
    errors = _word_errors(scored.utterances)
    interval = wer.interval(errors, scored.utterances["speaker"].to_numpy())
    return {
        "wer": interval.value,
        "wer_low": interval.low,
        "wer_high": interval.high,
        "substitutions": int(errors.substitutions.sum()),
        "deletions": int(errors.deletions.sum()),
        "insertions": int(errors.insertions.sum()),
        "reference_words": int(errors.words.sum()),
        "valid_wer": scored.valid_wer,
        "lm_weight": scored.lm_weight,
        "word_penalty": scored.word_penalty,
    }
