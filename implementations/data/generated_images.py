"""Synthetic images, any number: smooth random ones, labelled by a small fixed convolutional network, with label noise.

Sample i of a split is a function of (name, split, i) alone: its random numbers are found by counting, not by drawing
all that come before, so that any minibatch of five million samples costs as much as the first one. All sums run over
integers that floats hold exactly, so that neither their order nor the minibatch moves a bit of an image or a label.

Shapes: n samples, z waves of an image, p pixels, u units of the convolution, c classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from implementations.data.dataset import Batch, DataSet, Split
from implementations.data.images import Gathered
from implementations.errors import UserError
from implementations.seeds import derive, numpy_stream

_MASTER = 0  # the data set is one and the same in every experiment
_BLOCK = 512  # samples computed at once: under 4 MB beside the images
_NUMBERS = 64  # random numbers that a sample may use
_NOISE, _SHIFT = 62, 63  # those for its label; the first are for the image
_LARGEST = 8 * 255 // 2  # of an amplitude, without its sign
_AMPLITUDE_SD = np.sqrt(8 * (256**2 - 1) / 12)


class GeneratedImages(DataSet):
    """Grey images (1, side, side); ``data_size`` sets the number of training samples freely.

    An image is a sum of cosines whose amplitudes are random, nearly normal, and smaller the shorter the wave. The
    teacher is a convolution, a hard tanh and a fully connected layer; it is odd, so that classes are about equal.
    """

    stream_samples = 1024

    def __init__(self, summary: dict[str, Any], data_size: int | None = None) -> None:
        super().__init__(summary, data_size)
        if self.sizes["train"] < 1:
            raise UserError(f"data_size {data_size} of {self.name}: allowed: 1 or more")
        self.generator = summary["generator"]
        basis_zp = _basis(self.input_shape[-1], self.generator["waves"])
        draws = numpy_stream(_MASTER, "data", self.name, "weights")
        self._kernels_fk = np.rint(
            8 * draws.standard_normal((self.generator["filters"], self.generator["kernel"] ** 2))
        )
        # A convolution of a sum of waves is the sum of the waves' convolutions.
        self._conv_zu = _convolve(basis_zp, self.input_shape[-1], self._kernels_fk, self.generator)
        self._w_uc = _last_weights(self.name, self._conv_zu, self.classes, draws)
        sd = _AMPLITUDE_SD * np.sqrt(np.square(self._conv_zu).sum(0).mean())
        self._clip = np.rint(self.generator["clip"] * sd)
        largest_pixel = _LARGEST * np.abs(basis_zp).sum(0).max()
        largest_score = self._clip * np.abs(self._w_uc).sum(0).max()
        if (
            largest_pixel >= 2**24
            or max(largest_score, _LARGEST * np.abs(self._conv_zu).sum(0).max()) >= 2**53
        ):
            raise UserError(
                f"{self.name}: generator: sums are too large to be exact; allowed: a smaller teacher"
            )
        self._basis_zp = basis_zp.astype(np.float32)
        self._scale = np.float32(1 / (_AMPLITUDE_SD * np.sqrt(np.square(basis_zp).sum(0).mean())))

    def tensors(self, split: str, indices: np.ndarray | None = None) -> Batch:
        """See ``DataSet.tensors``; computes just these samples. Mean and deviation are those expected of all pixels."""
        indices = self._indices(split, indices)
        x_np, y_n = np.empty((len(indices), self.features), np.float32), np.empty(len(indices), np.int64)
        for first in range(0, len(indices), _BLOCK):
            block = slice(first, first + _BLOCK)
            numbers = self._numbers(split, indices[block])
            amplitudes_nz = _amplitudes(numbers[:, : len(self._basis_zp)])
            np.matmul(amplitudes_nz.astype(np.float32), self._basis_zp, out=x_np[block])
            x_np[block] *= self._scale
            y_n[block] = self._label(amplitudes_nz, numbers)
        return torch.from_numpy(x_np), torch.from_numpy(y_n)

    def samples(self, split: str, indices: np.ndarray | None = None) -> Gathered:
        """See ``DataSet.samples``; holds eight bytes a sample."""
        return Gathered(self, split, self._indices(split, indices))

    def labels(self, split: str) -> np.ndarray:
        """See ``DataSet.labels``; no image is computed."""
        y_n = np.empty(self.sizes[split], np.int64)
        for first in range(0, len(y_n), _BLOCK):
            numbers = self._numbers(split, np.arange(first, min(first + _BLOCK, len(y_n))))
            y_n[first : first + _BLOCK] = self._label(_amplitudes(numbers[:, : len(self._basis_zp)]), numbers)
        return y_n

    def split(self, split: str) -> Split:
        """A whole split, computed."""
        x_np, y_n = self.tensors(split)
        return Split(x_np.numpy().reshape(-1, *self.input_shape), y_n.numpy())

    def _numbers(self, split: str, indices: np.ndarray) -> np.ndarray:
        """The samples' random numbers (n, _NUMBERS) uint64."""
        counters = indices.astype(np.uint64)[:, None] * np.uint64(_NUMBERS) + np.arange(
            _NUMBERS, dtype=np.uint64
        )
        return splitmix64(derive(_MASTER, "data", self.name, split), counters)

    def _label(self, amplitudes_nz: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        units_nu = amplitudes_nz @ self._conv_zu
        np.clip(units_nu, -self._clip, self._clip, out=units_nu)
        y_n = (units_nu @ self._w_uc).argmax(axis=1)
        noisy_n = (numbers[:, _NOISE] >> np.uint64(11)) * 2.0**-53 < self.generator["label_noise"]
        shift_n = 1 + (numbers[:, _SHIFT] % np.uint64(self.classes - 1)).astype(np.int64)
        return np.where(noisy_n, (y_n + shift_n) % self.classes, y_n)


def splitmix64(seed: int, counters: np.ndarray) -> np.ndarray:
    """Outputs ``counters`` (uint64, from 0) of the generator SplitMix64 (Steele, Lea and Flood 2014) of this seed."""
    bits = counters + np.uint64(1)  # a copy, then in place
    bits *= np.uint64(0x9E3779B97F4A7C15)
    bits += np.uint64(seed)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    return bits


def _amplitudes(numbers: np.ndarray) -> np.ndarray:
    """Float64 whole numbers of mean 0: the sum of a random number's eight bytes, minus its mean."""
    even = np.uint64(0x00FF00FF00FF00FF)
    pairs = (numbers & even) + (numbers >> np.uint64(8) & even)  # four sums of two bytes, 16 bits each
    total = pairs * np.uint64(0x0001000100010001) >> np.uint64(48)  # all four, in the highest bits
    return total.astype(np.float64) - _LARGEST


def _basis(side: int, waves: int) -> np.ndarray:
    """The waves (waves^2, side^2), rounded to whole numbers in float64."""
    pixels, numbers = np.arange(side) + 0.5, np.arange(waves)
    cosines = np.cos(np.pi / side * numbers[:, None] * pixels)
    weights = 64 / (1 + np.hypot(numbers[:, None], numbers))
    basis = np.rint(np.einsum("kl,kp,lq->klpq", weights, cosines, cosines))
    return basis.reshape(waves**2, side**2)


def _last_weights(name: str, conv_zu: np.ndarray, classes: int, draws: np.random.Generator) -> np.ndarray:
    """Random weights (units, classes), whole numbers in float64.

    Were the units linear, the classes' scores would be independent and of one variance: each has about the same share.
    """
    waves, units = conv_zu.shape
    if min(waves, units) < classes:
        got = f"{waves} waves and {units} units of the teacher"
        raise UserError(f"{name}: generator: {got}; allowed: at least classes, {classes}, of both")
    w_uc = draws.standard_normal((units, classes))
    _, mixture = np.linalg.qr(conv_zu @ w_uc)
    w_uc = np.linalg.solve(mixture.T, w_uc.T).T
    return np.rint(w_uc * (1000 / np.abs(w_uc).max()))


def _convolve(
    images_np: np.ndarray, side: int, kernels_fk: np.ndarray, generator: dict[str, Any]
) -> np.ndarray:
    """Valid convolutions (n, units) of images, filter by filter."""
    kernel, stride = generator["kernel"], generator["stride"]
    windows = np.lib.stride_tricks.sliding_window_view(
        images_np.reshape(-1, side, side), (kernel, kernel), axis=(1, 2)
    )[:, ::stride, ::stride]
    found = np.einsum("nijkl,fkl->nfij", windows, kernels_fk.reshape(-1, kernel, kernel))
    return np.ascontiguousarray(found.reshape(len(found), -1))
