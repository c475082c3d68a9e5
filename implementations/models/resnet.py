"""A small residual network for square images, whose residual blocks can be dealt out to workers.

Pre-activation blocks (He et al. 2016) in sections of equal width, split as in ResIST (Dun, Wolfe, Jermaine and
Kyrillidis 2021): the units of a section are its residual blocks, each of which is whole; the first convolution, the
strided blocks between sections, the last normalisation and the classifier are never split. A subnet is a shallower
network. Where a full network is put together of subnets, evaluation multiplies each block's branch by the share of
the blocks that a subnet had, as stochastic depth does.

Shapes: w worker, b sample of a minibatch, n block of a section, o output and i input channel, jk places of a kernel;
images are (B, W * C, rows, columns), the workers' channels side by side, so that a convolution has a group for each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from implementations.models.linear import Linear, uniform_
from implementations.models.module_net import image_of
from implementations.models.normalised import EPS, Affine, NormalisedModel, Passage, Pause
from implementations.seeds import normal_

EVALUATED_AT_ONCE = (
    250  # images; with many more, memory is asked of the system again and again, at half the speed
)


class Convolution(torch.autograd.Function):
    """Every worker's images with its own kernels, of odd sides; backward overwrites ``gw_woijk``."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, w_woijk: torch.Tensor, gw_woijk: torch.Tensor, stride: int
    ) -> torch.Tensor:
        """Images (B, W * O, rows / stride, columns / stride)."""
        kernels, padding = w_woijk.flatten(0, 1), w_woijk.shape[-1] // 2
        ctx.save_for_backward(x, kernels)
        ctx.grad, ctx.sizes = gw_woijk, ([stride] * 2, [padding] * 2, [1, 1])
        return torch.conv2d(x, kernels, None, stride, padding, 1, len(w_woijk))

    @staticmethod
    def backward(ctx: Any, gy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradient of the images, where one is wanted."""
        x, kernels = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], True, False]
        gx, gw, _ = torch.ops.aten.convolution_backward(
            gy, x, kernels, None, *ctx.sizes, False, [0, 0], len(ctx.grad), wanted
        )
        ctx.grad.copy_(gw.view_as(ctx.grad))
        return gx, None, None, None


class Image(NamedTuple):
    """Channels and side of the square images that a data set's features are."""

    channels: int
    side: int

    @classmethod
    def of(cls, features: int) -> Image:
        """Three channels where that gives a square, else one; UserError if neither does."""
        channels, side, _ = image_of("resnet", features)
        return cls(channels, side)


def _branch(inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a residual branch: normalise (scale g, shift s) and rectify, convolve, twice."""
    return {
        "g0": (inputs,),
        "s0": (inputs,),
        "w0": (outputs, inputs, 3, 3),
        "g1": (outputs,),
        "s1": (outputs,),
        "w1": (outputs, outputs, 3, 3),
    }


class ResNet(NormalisedModel):
    """Sections of ``hidden`` channels with ``blocks`` residual blocks each, strided blocks between them.

    The blocks of section k have the label ``sk`` where ``split`` names k; a subnet has ``min_blocks`` of them at
    least. Their weights are stacked: (blocks, ...).
    """

    def __init__(
        self,
        image: Image,
        classes: int,
        workers: int,
        hidden: Sequence[int],
        blocks: Sequence[int],
        split: Sequence[int],
        min_blocks: int,
        statistics: str,
    ) -> None:
        shapes: dict[str, tuple[int, ...]] = {"in_w": (hidden[0], image.channels, 3, 3)}
        channels: dict[str, int] = {}
        for section, (inputs, width, count) in enumerate(zip([hidden[0], *hidden], hidden, blocks), start=1):
            if section > 1:
                strided = {**_branch(inputs, width), "w2": (width, inputs, 1, 1)}
                shapes |= {f"t{section}_{name}": shape for name, shape in strided.items()}
                channels |= {f"t{section}_n0": inputs, f"t{section}_n1": width}
            shapes |= {f"s{section}_{name}": (count, *shape) for name, shape in _branch(width, width).items()}
            channels |= {f"s{section}_n{norm}_{block}": width for block in range(count) for norm in (0, 1)}
        channels["out_n"] = hidden[-1]
        for name in ("g", "s"):
            shapes[f"out_{name}"] = (hidden[-1],)
        shapes |= {"out_w": (classes, hidden[-1]), "out_b": (classes,)}
        labels = {f"s{section}" for section in split}
        axes = {}
        for name, shape in shapes.items():
            label = name.partition("_")[0]
            axes[name] = (label if label in labels else None, *[None] * (len(shape) - 1))
        super().__init__(shapes, workers, axes, statistics, channels)
        self.min_units = {label: min(min_blocks, count) for label, count in self.units.items()}
        self.image, self.classes = image, classes
        self.hidden, self.blocks = tuple(hidden), tuple(blocks)

    def initialise(self, generator: torch.Generator) -> None:
        """Kernels normal with deviation sqrt(2 / fan-in) (He et al. 2015), scales 1, shifts 0, classifier as torch's.

        The same for every worker.
        """
        for name, weight in self.weights.items():
            part, _, kind = name.partition("_")
            if part == "out" and kind in "wb":
                uniform_(weight[0], self.hidden[-1], generator)
            elif kind[0] == "w":
                normal_(weight[0], math.sqrt(2 / math.prod(weight.shape[-3:])), generator)
            elif kind[0] == "g":
                weight[0].fill_(1.0)
        self.theta_wp[1:] = self.theta_wp[0]

    @property
    def sides(self) -> tuple[int, ...]:
        """Rows (and columns) of the images in each section."""
        halved = itertools.accumulate(
            self.hidden[1:], lambda side, _: (side + 1) // 2, initial=self.image.side
        )
        return tuple(halved)

    @property
    def flops_per_sample(self) -> int:
        """Those of the convolutions and the classifier: two per weight and place, forward and for both gradients.

        The first convolution has no gradient of its input.
        """
        first = math.prod(self._shapes["in_w"]) * self.image.side**2
        products = first + math.prod(self._shapes["out_w"])
        for section, side in enumerate(self.sides, start=1):
            of_section = (f"s{section}_w", f"t{section}_w")
            kernels = [shape for name, shape in self._shapes.items() if name.startswith(of_section)]
            products += sum(map(math.prod, kernels)) * side**2
        return 6 * products - 2 * first

    def logits(self, x_wbi: torch.Tensor) -> torch.Tensor:
        """See ``NormalisedModel.logits``."""
        if torch.is_grad_enabled() or not self.needs_samples:
            return super().logits(x_wbi)
        scores = [super(ResNet, self).logits(part) for part in x_wbi.split(EVALUATED_AT_ONCE, dim=1)]
        return torch.cat(scores, dim=1)

    def prepare_evaluation(self, x_batches: Iterable[torch.Tensor], worker: int = 0) -> None:
        """See ``NormalisedModel.prepare_evaluation``."""
        parts = (part for x_bi in x_batches for part in x_bi.split(EVALUATED_AT_ONCE))
        super().prepare_evaluation(parts, worker)

    def _passage(self, x_wbi: torch.Tensor) -> Passage:
        x, training = self._images(x_wbi), torch.is_grad_enabled()
        x = self._convolved(x, "in_w")
        for section, count in enumerate(self.blocks, start=1):
            if section > 1:
                part = f"t{section}_"
                h = yield Pause(f"{part}n0", x, self._affine(f"{part}g0", f"{part}s0"))
                x = self._convolved(h, f"{part}w2", stride=2)
                h = self._convolved(h, f"{part}w0", stride=2)
                h = yield Pause(f"{part}n1", h, self._affine(f"{part}g1", f"{part}s1"))
                x = x + self._convolved(h, f"{part}w1")
            part, share = f"s{section}_", 1.0 if training else self.shares.get(f"s{section}", 1.0)
            for block in range(count):
                h = x
                for norm in (0, 1):
                    affine = self._affine(f"{part}g{norm}", f"{part}s{norm}", block)
                    h = yield Pause(f"{part}n{norm}_{block}", h, affine)
                    h = self._convolved(h, f"{part}w{norm}", block)
                x = torch.add(x, h, alpha=share)
        h = yield Pause("out_n", x, self._affine("out_g", "out_s"))
        h_wbo = h.mean((2, 3)).unflatten(1, (self.workers, -1)).transpose(0, 1)
        w_woi = self.weights["out_w"].detach().requires_grad_(training)
        return Linear.apply(h_wbo, w_woi, self.weights["out_b"], self.grads["out_w"], self.grads["out_b"])

    def _images(self, x_wbi: torch.Tensor) -> torch.Tensor:
        """Inputs (W, B, features) as images, channels last in memory: normalisations are several times as fast."""
        workers, batch = x_wbi.shape[:2]
        channels, side = self.image
        x = x_wbi.transpose(0, 1).reshape(batch, workers * channels, side, side)
        return x.contiguous(memory_format=torch.channels_last)

    def _convolved(
        self, x: torch.Tensor, name: str, block: int | None = None, stride: int = 1
    ) -> torch.Tensor:
        weight, grad = self._of_block(name, block)
        weight = weight.detach().requires_grad_(torch.is_grad_enabled())
        return Convolution.apply(x, weight, grad, stride)

    def _affine(self, scale: str, shift: str, block: int | None = None) -> Affine:
        pairs = [self._of_block(name, block) for name in (scale, shift)]
        return Affine(*(weight for weight, _ in pairs), *(grad for _, grad in pairs))

    def _of_block(self, name: str, block: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """A weight and its gradient; of a stacked one, those of a block."""
        whole = self.weights[name], self.grads[name]
        return whole if block is None else (whole[0][:, block], whole[1][:, block])

    def to_module(self, worker: int = 0) -> torch.nn.Module:
        """A plain module of inputs (b, features) with a copy of one worker's weights and statistics.

        Without the scaling of ``shares``.
        """
        layers: list[torch.nn.Module] = [
            torch.nn.Unflatten(1, (*self.image, self.image.side)),
            self._torch_convolution("in_w", worker),
        ]
        for section, count in enumerate(self.blocks, start=1):
            if section > 1:
                layers.append(self._torch_residual(f"t{section}_", worker, None))
            layers += [self._torch_residual(f"s{section}_", worker, block) for block in range(count)]
        classifier = torch.nn.Linear(self.hidden[-1], self.classes)
        classifier.weight.data.copy_(self.weights["out_w"][worker])
        classifier.bias.data.copy_(self.weights["out_b"][worker])
        affine = self._affine("out_g", "out_s")
        layers += [
            self._torch_norm("out_n", affine, worker),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            classifier,
        ]
        return torch.nn.Sequential(*layers)

    def _torch_residual(self, part: str, worker: int, block: int | None) -> torch.nn.Module:
        stride, end = (2, "") if block is None else (1, f"_{block}")
        norms = [
            self._torch_norm(f"{part}n{k}{end}", self._affine(f"{part}g{k}", f"{part}s{k}", block), worker)
            for k in (0, 1)
        ]
        first = self._torch_convolution(f"{part}w0", worker, block, stride)
        second = self._torch_convolution(f"{part}w1", worker, block)
        shortcut = self._torch_convolution(f"{part}w2", worker, None, stride) if block is None else None
        return _Residual(norms[0], first, norms[1], second, shortcut)

    def _torch_norm(self, name: str, affine: Affine, worker: int) -> torch.nn.Module:
        width = affine.scale.shape[1]
        norm = torch.nn.BatchNorm2d(width, EPS, None, track_running_stats=self.needs_samples)
        return self._filled(norm, name, worker, affine)

    def _torch_convolution(
        self, name: str, worker: int, block: int | None = None, stride: int = 1
    ) -> torch.nn.Module:
        kernels = self._of_block(name, block)[0][worker]
        outputs, inputs, side, _ = kernels.shape
        convolution = torch.nn.Conv2d(inputs, outputs, side, stride, side // 2, bias=False)
        convolution.weight.data.copy_(kernels)
        return convolution


class _Residual(torch.nn.Module):
    """A pre-activation residual block; the shortcut of a strided one is a convolution of the activation."""

    def __init__(
        self,
        norm0: torch.nn.Module,
        first: torch.nn.Module,
        norm1: torch.nn.Module,
        second: torch.nn.Module,
        shortcut: torch.nn.Module | None,
    ) -> None:
        super().__init__()
        self.norm0, self.first, self.norm1, self.second = norm0, first, norm1, second
        self.shortcut = shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images of the next block."""
        h = self.norm0(x).relu()
        kept = x if self.shortcut is None else self.shortcut(h)
        return kept + self.second(self.norm1(self.first(h)).relu())


def build(
    *,
    features: int,
    classes: int,
    workers: int,
    generator: torch.Generator,
    hidden: Sequence[int],
    blocks: Sequence[int],
    split: Sequence[int] | None = None,
    min_blocks: int = 1,
    statistics: str = "population",
) -> ResNet:
    """An initialised network for ``workers`` workers; the last section is split unless ``split`` names others.

    UserError for samples that are no square images.
    """
    split = [len(hidden)] if split is None else split
    net = ResNet(Image.of(features), classes, workers, hidden, blocks, split, min_blocks, statistics)
    net.initialise(generator)
    return net
