"""Trains one point and measures it: time, bytes, quality, checkpoints. Methods only train; nothing here knows one.

Every process of the run calls ``run_point``; what it returns is the same on all of them.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from implementations import models, registry
from implementations.checkpoint import Checkpoints
from implementations.clock import LABELS, Clock
from implementations.cluster.communicator import Communicator
from implementations.cluster.ledger import Ledger
from implementations.data import loading
from implementations.data.shards import Order
from implementations.errors import Diverged, UserError
from implementations.models.worker_model import WorkerModel
from implementations.point import Point
from implementations.seeds import derive, torch_stream
from implementations.training import Shards, Training

# Between two pulses a run neither looks at the wall clock nor agrees on anything: that would cost a message a step.
PULSE_S = 1.0
EVAL_BATCH = 2000
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
    Raises UserError for sizes that do not fit.
    """
    began = time.perf_counter()
    clock = Clock()
    run = Run(point, communicator, results, clock, code_hash)
    run.resume()
    run.warm_up()
    setup_s = time.perf_counter() - began
    run.start_clock()
    try:
        run.train(report_progress)
        run.stop_clock()
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
        self.point, self.clock = point, clock
        self.folder = results / "runs" / point.run_id
        self.ledger = Ledger(clock, keep_times=point.evidence == "measured")
        self.comm = communicator(self.ledger)
        self.rank = self.comm.hosted[0]
        self.method = registry.get(point.method)

        wanted = point.data_size
        if wanted is not None and point.scaling == "weak":
            wanted *= point.workers
        self.dataset = loading.load(point.dataset, results, data_size=wanted)
        self.data_size = self.dataset.sizes["train"]
        order = Order(self.data_size, point.workers, point.minibatch, point.sharding, point.seed)
        if order.steps_per_epoch == 0:
            raise UserError(
                f"minibatch {point.minibatch}: each of {point.workers} workers has only {order.per_worker} "
                f"samples; lower minibatch or workers, or raise data_size"
            )
        self.net: WorkerModel = models.build(
            point.model,
            self.dataset.features,
            self.dataset.classes,
            len(self.comm.hosted),
            torch_stream(point.seed, "init"),
        )
        shards = Shards(self.dataset, order, self.comm.hosted)
        settings = self.method.settings(point)
        self.training = Training(point, settings, self.net, self.comm, shards, clock)
        tag = f"{code_hash} {self.dataset.data_hash}"
        self.checkpoints = Checkpoints(self.folder / "checkpoint", self.rank, self._agree_barrier, tag)
        self.total_steps = point.epochs * order.steps_per_epoch
        self.step = 0
        self.loss_sum = torch.zeros(())
        self.train_loss = math.nan
        self.curve: list[dict[str, Any]] = []
        self.resumed = False
        self._valid = self._share(self.dataset.tensors("valid"))
        # Python's and torch's global generators belong to the point too, whatever ran in this process before.
        torch.manual_seed(derive(point.seed, "global"))

    # Preparation, off the clock

    def resume(self) -> None:
        """Take up the last checkpoint, if there is one."""
        state = self.checkpoints.load()
        have = self.comm.control_sum(np.array([float(state is not None)]))[0]
        processes = self.comm.control_sum(np.ones(1))[0]
        if state is None or have < processes:
            return
        self.step, self.resumed = state["step"], True
        self.training.restore(state["training"], self.step)
        self._saved_clock = state["clock"]
        self.ledger.restore(state["ledger"])
        self.loss_sum, self.train_loss = state["loss_sum"], state["train_loss"]
        self.curve = state["curve"]

    def warm_up(self) -> None:
        """Touch the buffers and the math library's set-up; changes no weight."""
        shape = (len(self.comm.hosted), self.point.minibatch)
        x_wbi = torch.zeros(*shape, self.dataset.features)
        y_wb = torch.zeros(shape, dtype=torch.int64)
        for _ in range(WARM_UP_STEPS):
            self.net.loss_and_grad(x_wbi, y_wb)
        self.net.grad_wp.zero_()

    def start_clock(self) -> None:
        """All processes start together."""
        self._agree_barrier()
        if self.resumed:
            self.clock.restore(self._saved_clock)
        else:
            self.clock.restart()
            with self.clock("eval"):
                self._evaluate(epoch=0)

    # The loop

    def train(self, report_progress: ReportProgress) -> None:
        """Run the method to its end. Raises Diverged when the loss is no longer finite."""
        clock, steps_per_epoch = self.clock, self.training.plan.steps_per_epoch
        progress_of = self.method.train(self.training)
        pulse_steps, next_pulse, saved_at = 1, self.step + 1, clock.training_s
        while True:
            with clock("compute"):
                progress = next(progress_of, None)
            if progress is None:
                return
            with clock("other"):
                self.step = progress.step
                self.loss_sum += progress.loss
                epoch_ends = self.step % steps_per_epoch == 0
                if epoch_ends and not progress.synced:
                    raise RuntimeError(f"{self.method.name}: workers are not in step at the end of an epoch")
            if epoch_ends:
                with clock("eval"):
                    self.train_loss = self._mean_train_loss(steps_per_epoch)
                    self._check_finite(self.train_loss)
                    self._evaluate(epoch=self.step // steps_per_epoch)
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
        self.checkpoints.save(
            self.step,
            {
                "step": self.step,
                "training": self.training.state(),
                "clock": self.clock.snapshot(),
                "ledger": self.ledger.state(),
                "loss_sum": self.loss_sum,
                "train_loss": self.train_loss,
                "curve": self.curve,
            },
        )

    def _mean_train_loss(self, steps: int) -> float:
        weighted = float(self.loss_sum) * len(self.comm.hosted)
        self.loss_sum.zero_()
        return float(self.comm.control_sum(np.array([weighted]))[0]) / (steps * self.comm.size)

    def _evaluate(self, epoch: int) -> None:
        train_s = self.comm.control_max(np.array([self.clock.training_s]))[0]
        accuracy, loss = self._score(self._valid)
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
            }
        )

    def _score(self, share: tuple[torch.Tensor, torch.Tensor]) -> tuple[float, float]:
        """Accuracy and mean loss of the first hosted worker's model, each process doing its share of the samples."""
        totals = np.zeros(3)
        for x_bi, y_b in zip(share[0].split(EVAL_BATCH), share[1].split(EVAL_BATCH)):
            totals += [*self.net.evaluate(x_bi, y_b), len(y_b)]
        correct, loss, count = map(float, self.comm.control_sum(totals))
        return correct / count, loss / count

    def _share(self, samples: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """This process's part of an evaluation set."""
        processes = int(self.comm.control_sum(np.ones(1))[0])
        mine = self.rank * processes // self.comm.size
        x_ni, y_n = samples
        return x_ni[mine::processes], y_n[mine::processes]

    # The end

    def outcome(self) -> tuple[str, str | None]:
        """Status and reason of a run that went to its end."""
        target = self.point.target_value
        if target is None or self._reached() is not None:
            return "ok", None
        best = max(row["valid_accuracy"] for row in self.curve)
        return "target_missed", f"validation accuracy reached {best:.4f}, the target is {target}"

    def _reached(self) -> dict[str, Any] | None:
        """The first row of the curve at or above the target."""
        target = self.point.target_value
        if target is None:
            return None
        return next((row for row in self.curve if row["valid_accuracy"] >= target), None)

    def stop_clock(self) -> None:
        """Freeze the parts; sums and maxima over processes are taken from the frozen values."""
        clock = self.clock
        self._wall_s, self._train_s, self._uncovered_s = clock.wall_s, clock.training_s, clock.uncovered_s
        self._parts = [clock.seconds[label] for label in LABELS]

    def columns(self) -> dict[str, Any]:
        """Columns of the record that are known at the end of training."""
        processes = self.comm.control_sum(np.ones(1))[0]
        wall_s, train_s = self.comm.control_max(np.array([self._wall_s, self._train_s]))
        *parts, uncovered_s = self.comm.control_sum(np.array([*self._parts, self._uncovered_s])) / processes
        reached = self._reached()
        volume = self.method.volume(self.training.plan)
        rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        samples = self.step * self.point.global_batch
        values = {
            "resumed": self.resumed,
            "data_size": self.data_size,
            "model_params": self.net.params_per_worker,
            "steps": self.step,
            "samples": samples,
            "target_reached": None if self.point.target_value is None else reached is not None,
            "bytes_to_target": reached and reached["sent_bytes_total"],
            **self.comm.world_totals(),
            "sent_bytes_predicted": volume.sent_bytes_total,
            "paper_bytes": volume.paper_bytes,
            "state_bytes_per_worker": self.training.state_bytes_per_worker,
            "train_loss": float(self.train_loss),
            "valid_accuracy": self.curve[-1]["valid_accuracy"],
            "valid_loss": self.curve[-1]["valid_loss"],
            "data_hash": self.dataset.data_hash,
            "host_wall_s": float(wall_s),
        }
        if self.point.evidence == "measured":
            values |= {f"{label}_s": float(seconds) for label, seconds in zip(LABELS, parts)}
            values |= {
                "wall_s": float(wall_s),
                "train_s": float(train_s),
                "uncovered_s": float(uncovered_s),
                "time_to_target_s": reached and reached["train_s"],
                "samples_per_s": float(samples / train_s),
                "peak_rss_bytes": int(self.comm.control_max(np.array([float(rss_bytes)]))[0]),
            }
        return values

    def test(self) -> dict[str, Any]:
        """Accuracy and loss on the test set, which is read here and nowhere else."""
        accuracy, loss = self._score(self._share(self.dataset.tensors("test")))
        return {"accuracy": accuracy, "loss": loss}

    def leave_files(self) -> None:
        """Curve and trace beside the record, and no checkpoint."""
        if self.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            pd.DataFrame(self.curve).to_parquet(self.folder / "curve.parquet", index=False)
            self.ledger.frame().to_parquet(self.folder / "trace.parquet", index=False)
        self._agree_barrier()

    def _agree_barrier(self) -> None:
        self.comm.control_sum(np.zeros(1))
