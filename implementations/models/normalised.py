"""Batch normalisation of many workers at once, and what a network that has it must know to be evaluated.

Shapes as in ``worker_model``. Outputs to be normalised are (W, B, O), or (B, W * C, rows, columns) of images; the
statistics are those of one worker's output unit (channel) over the minibatch (and places).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterable
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F

from implementations.models.worker_model import Axes, WorkerModel

EPS = 1e-5
EVALUATION_BATCH = 128  # samples that share their statistics in evaluation, as in the published code


class Affine(NamedTuple):
    """Scale and shift of a normalisation, each (W, C), and the buffers of their gradients."""

    scale: torch.Tensor
    shift: torch.Tensor
    scale_grad: torch.Tensor
    shift_grad: torch.Tensor


class Pause(NamedTuple):
    """Where a pass through a network stops to have outputs normalised.

    With ``affine`` they are scaled, shifted and rectified (ReLU) afterwards, without it left as they are.
    """

    name: str
    z: torch.Tensor
    affine: Affine | None


Passage = Generator[Pause, torch.Tensor, torch.Tensor]


class BatchNorm(torch.autograd.Function):
    """Normalisation by the minibatch's mean and biased variance; with ``affine``, ReLU of it scaled and shifted.

    All workers take one pass, as columns side by side; backward overwrites the buffers of ``affine``.
    """

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, affine: Affine | None) -> torch.Tensor:
        """Outputs of the shape and layout of ``z``."""
        columns, scale, shift = _columns(z), *_flat(affine)
        y, mean, inverse = torch.native_batch_norm(columns, scale, shift, None, None, True, 0.0, EPS)
        if affine:
            y.relu_()
        ctx.save_for_backward(columns, y if affine else None, scale, mean, inverse)
        ctx.affine = affine
        return _like(y, z)

    @staticmethod
    def backward(ctx: Any, gy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradient of ``z``."""
        columns, y, scale, mean, inverse = ctx.saved_tensors
        affine, gy_columns = ctx.affine, _columns(gy)
        if affine:
            gy_columns = torch.ops.aten.threshold_backward(gy_columns, y, 0.0)
        gz, *grads = torch.ops.aten.native_batch_norm_backward(
            gy_columns,
            columns,
            scale,
            None,
            None,
            mean,
            inverse,
            True,
            EPS,
            [True, bool(affine), bool(affine)],
        )
        if affine:
            for buffer, grad in zip((affine.scale_grad, affine.shift_grad), grads):
                buffer.copy_(grad.view_as(buffer))
        return _like(gz, gy), None


def _columns(z: torch.Tensor) -> torch.Tensor:
    """(B, W * O) of (W, B, O), without copying if it is batch-major; images as they are."""
    return z.transpose(0, 1).flatten(1) if z.dim() == 3 else z


def _like(columns: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """The inverse of ``_columns``."""
    return columns.view(len(columns), len(z), -1).transpose(0, 1) if z.dim() == 3 else columns


def _flat(affine: Affine | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Scales and shifts, (W * C); contiguous, as torch's backward reads no other scales rightly."""
    return (
        (affine.scale.flatten().contiguous(), affine.shift.flatten().contiguous()) if affine else (None, None)
    )


class NormalisedModel(WorkerModel):
    """A network with batch normalisation.

    It is trained with the statistics of minibatches. For evaluation, ``statistics`` has them of the ``population``:
    mean and unbiased variance of every normalisation over all the samples that ``prepare_evaluation`` was given, with
    the weights as they are then; or of the ``batch`` that is evaluated.
    """

    def __init__(
        self,
        shapes: dict[str, tuple[int, ...]],
        workers: int,
        axes: Axes,
        statistics: str,
        channels: dict[str, int],
    ) -> None:
        """``channels`` names the normalisations, in order, with the number of outputs each."""
        super().__init__(shapes, workers, axes)
        self.needs_samples = statistics == "population" and bool(channels)
        self.evaluation_batch = EVALUATION_BATCH if statistics == "batch" and channels else None
        # mean and variance, (W, 2, C)
        self._population = {name: torch.zeros(workers, 2, count) for name, count in channels.items()}
        self._prepared_w = torch.zeros(workers, dtype=torch.bool)

    @abstractmethod
    def _passage(self, x_wbi: torch.Tensor) -> Passage:
        """A pass from inputs to scores that stops at each normalisation, to be sent its result."""

    def logits(self, x_wbi: torch.Tensor) -> torch.Tensor:
        """Scores (W, B, classes) of inputs (W, B, features); see ``WorkerModel.logits``.

        RuntimeError where ``prepare_evaluation`` should have come first.
        """
        normalise = BatchNorm.apply
        if self.needs_samples and not torch.is_grad_enabled():
            if not self._prepared_w.all():
                raise RuntimeError("evaluation with statistics of the population, which are not known yet")
            normalise = None
        passage = self._passage(x_wbi)
        try:
            pause = next(passage)
            while True:
                y = normalise(pause.z, pause.affine) if normalise else self._normalise(pause)
                pause = passage.send(y)
        except StopIteration as end:
            return end.value

    def _normalise(self, pause: Pause) -> torch.Tensor:
        """By the statistics of the population."""
        mean, variance = self._population[pause.name].transpose(0, 1).flatten(1)
        y = F.batch_norm(_columns(pause.z), mean, variance, *_flat(pause.affine), training=False, eps=EPS)
        return _like(y.relu_() if pause.affine else y, pause.z)

    @torch.no_grad()
    def prepare_evaluation(self, x_batches: Iterable[torch.Tensor], worker: int = 0) -> None:
        """See ``WorkerModel.prepare_evaluation``.

        All batches go through the network side by side, from one normalisation to the next, so that the outputs of
        the widest layer for all samples must fit into memory. ValueError without any.
        """
        if not self.needs_samples:
            return
        one = self.one_worker(worker)
        passages = [one._passage(x_bi.unsqueeze(0)) for x_bi in x_batches]
        pauses = [next(passage) for passage in passages]
        if not pauses:
            raise ValueError("statistics of the population, of no samples")
        for name in one._population:
            one._population[name].copy_(_moments([pause.z for pause in pauses]))
            sent = ((passage, one._normalise(pause)) for passage, pause in zip(passages, pauses))
            pauses = [pause for passage, y in sent if (pause := _send(passage, y))]
        one._prepared_w.fill_(True)

    def _filled(
        self, norm: torch.nn.Module, name: str, worker: int, affine: Affine | None
    ) -> torch.nn.Module:
        """Torch's module of a normalisation with one worker's statistics and its scale and shift."""
        with torch.no_grad():
            if norm.track_running_stats:
                norm.running_mean.copy_(self._population[name][worker, 0])
                norm.running_var.copy_(self._population[name][worker, 1])
            if affine:
                norm.weight.copy_(affine.scale[worker])
                norm.bias.copy_(affine.shift[worker])
        return norm

    def one_worker(self, worker: int) -> Self:
        """See ``WorkerModel.one_worker``."""
        one = super().one_worker(worker)
        own = slice(worker, worker + 1)
        one._population = {name: known[own] for name, known in self._population.items()}
        one._prepared_w = self._prepared_w[own]
        return one


def _send(passage: Passage, y: torch.Tensor) -> Pause | None:
    """The next pause of a pass; None if it has come to its end."""
    try:
        return passage.send(y)
    except StopIteration:
        return None


def _moments(parts: list[torch.Tensor]) -> torch.Tensor:
    """Mean and unbiased variance (2, C) over the samples (and places) of all parts, each of one worker."""
    count, mean, squares = 0, torch.zeros(()), torch.zeros(())
    for z in parts:
        columns = _columns(z)
        size = columns.numel() // columns.shape[1]
        _, part_mean, inverse = torch.native_batch_norm(columns, None, None, None, None, True, 0.0, 0.0)
        part_squares = torch.where(inverse > 0, inverse.double().pow(-2), 0.0) * size  # torch's 1/0 is 0
        shift, total = part_mean.double() - mean, count + size
        squares = squares + part_squares + shift.square() * (count * size / total)
        mean, count = mean + shift * (size / total), total
    return torch.stack([mean, squares / max(1, count - 1)])
