"""Layerwise pretraining by restricted Boltzmann machines: initial weights for a deep sigmoid network.

Hinton, Osindero and Teh 2006 with contrastive divergence of one step, in the form and with the defaults of the
recipe that Su and Chen 2015 used (Kaldi nnet1): a Gaussian-Bernoulli machine on the features, which must have mean 0
and variance 1, then Bernoulli-Bernoulli ones, each on the hidden probabilities of the one before.

Shapes: n sample, b sample of a minibatch, v visible unit, h hidden unit.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from implementations.data.dataset import Samples
from implementations.errors import Diverged, UserError
from implementations.models.fc import FullyConnected
from implementations.models.sigmoid_init import initialise_sigmoid
from implementations.seeds import torch_stream

_FORMAT = 1  # of the cache; raise it when the arithmetic changes
_CHUNK = 4096  # samples propagated at once where no order matters
_GUARD_RATIO = 2.0  # of standard deviations, reconstruction to data
_GUARD_RATE = 0.9
_MOMENTUM_RULES = ("with-bug", "nominal")


@dataclass(frozen=True)
class RbmSettings:
    """How the machines are trained; the defaults are the recipe's.

    ``momentum_rule`` 'nominal' raises the momentum from ``momentum`` to ``momentum_max`` in ``momentum_steps`` steps
    of ``momentum_step_samples``; 'with-bug' has it at ``momentum_max`` at once, as the recipe's tool does unasked.
    Rates are multiplied by 1 - momentum. Small data needs more epochs (the recipe: 100 hours / hours at hand times).
    """

    gaussian_lr: float = 0.01
    bernoulli_lr: float = 0.4
    gaussian_epochs: int = 2
    bernoulli_epochs: int = 1
    minibatch: int = 100
    l2: float = 0.0002
    weight_stddev: float = 0.1
    momentum: float = 0.5
    momentum_max: float = 0.9
    momentum_steps: int = 40
    momentum_step_samples: int = 500_000
    momentum_rule: str = "with-bug"

    def __post_init__(self) -> None:
        if self.momentum_rule not in _MOMENTUM_RULES:
            allowed = ", ".join(_MOMENTUM_RULES)
            raise UserError(f"momentum_rule: got {self.momentum_rule!r}; allowed: {allowed}")

    def momentum_after(self, samples: int) -> float:
        """The momentum once ``samples`` samples have been seen."""
        if self.momentum_rule == "with-bug":
            return self.momentum_max
        steps = min(samples // self.momentum_step_samples, self.momentum_steps)
        return self.momentum + (self.momentum_max - self.momentum) * steps / self.momentum_steps


class Rbm:
    """One machine: energy ``-h'Wv - a'v - b'h`` (binary v), or with ``|v - a|^2 / 2`` for ``-a'v`` (Gaussian v)."""

    def __init__(self, w_hv: torch.Tensor, a_v: torch.Tensor, b_h: torch.Tensor, gaussian: bool) -> None:
        self.w_hv, self.a_v, self.b_h, self.gaussian = w_hv, a_v, b_h, gaussian

    def hidden(self, v_bv: torch.Tensor) -> torch.Tensor:
        """P(h = 1 | v), (B, H)."""
        return torch.addmm(self.b_h, v_bv, self.w_hv.t()).sigmoid_()

    def visible(self, h_bh: torch.Tensor) -> torch.Tensor:
        """E(v | h), (B, V)."""
        mean_bv = torch.addmm(self.a_v, h_bh, self.w_hv)
        return mean_bv if self.gaussian else mean_bv.sigmoid_()

    def sample_visible(self, h_bh: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """A draw of v given h."""
        mean_bv = self.visible(h_bh)
        if self.gaussian:
            return mean_bv + torch.empty_like(mean_bv).normal_(generator=generator)
        return torch.bernoulli(mean_bv, generator=generator)

    def free_energy(self, v_bv: torch.Tensor) -> torch.Tensor:
        """F(v) = -log sum_h exp(-energy), (B,)."""
        own_b = (v_bv - self.a_v).square().sum(1) / 2 if self.gaussian else -(v_bv @ self.a_v)
        return own_b - F.softplus(torch.addmm(self.b_h, v_bv, self.w_hv.t())).sum(1)


def negative_phase(
    rbm: Rbm, h_bh: torch.Tensor, generator: torch.Generator, steps: int = 1, sample_last: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """``steps`` of Gibbs sampling from hidden probabilities: (v, P(h | v)).

    The last v is its mean, as in the recipe, or with ``sample_last`` a draw, which makes the phase unbiased as
    ``steps`` grow.
    """
    for step in range(steps):
        states_bh = torch.bernoulli(h_bh, generator=generator)
        mean = step + 1 == steps and not sample_last
        v_bv = rbm.visible(states_bh) if mean else rbm.sample_visible(states_bh, generator)
        h_bh = rbm.hidden(v_bv)
    return v_bv, h_bh


def expectations(v_bv: torch.Tensor, h_bh: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Means over the batch of ``h v'``, v and h: minus the derivatives of the energy by W, a (binary v) and b."""
    return h_bh.t() @ v_bv / len(v_bv), v_bv.mean(0), h_bh.mean(0)


class Trainer:
    """Contrastive divergence with momentum and weight decay, one minibatch at a time."""

    def __init__(self, rbm: Rbm, settings: RbmSettings, generator: torch.Generator) -> None:
        self.rbm, self.settings = rbm, settings
        self.guarded = 0  # minibatches that the guard dropped
        self._base_rate = settings.gaussian_lr if rbm.gaussian else settings.bernoulli_lr
        self._generator = generator
        self._moves = [torch.zeros_like(part) for part in self._parts]
        self._samples, self._momentum, self._damping = 0, -1.0, 1.0

    @property
    def _parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.rbm.w_hv, self.rbm.a_v, self.rbm.b_h

    def step(self, v_bv: torch.Tensor) -> torch.Tensor:
        """One update; the mean squared error of the reconstruction (0-d), from before it.

        Raises Diverged when weights have left the range of numbers.
        """
        settings = self.settings
        momentum = settings.momentum_after(self._samples)
        if momentum != self._momentum:  # a new momentum sets the rate anew, whatever the guard made of it
            self._momentum, self._damping = momentum, 1.0
        self._samples += len(v_bv)
        h_bh = self.rbm.hidden(v_bv)
        if not bool(h_bh.sum().isfinite()):
            raise Diverged("the hidden probabilities are not finite")
        negative_v_bv, negative_h_bh = negative_phase(self.rbm, h_bh, self._generator)
        error = (negative_v_bv - v_bv).square().mean()
        if self.rbm.gaussian and self._guard(v_bv, negative_v_bv):
            return error
        rate = self._base_rate * (1 - momentum) * self._damping
        w_hv, move_hv = self.rbm.w_hv, self._moves[0]
        move_hv *= momentum
        move_hv.addmm_(h_bh.t(), v_bv, alpha=rate / len(v_bv))
        move_hv.addmm_(negative_h_bh.t(), negative_v_bv, alpha=-rate / len(v_bv))
        move_hv.add_(w_hv, alpha=-rate * settings.l2)
        self._moves[1].mul_(momentum).add_((v_bv - negative_v_bv).mean(0), alpha=rate)
        self._moves[2].mul_(momentum).add_((h_bh - negative_h_bh).mean(0), alpha=rate)
        for part, move in zip(self._parts, self._moves):
            part += move
        return error

    def _guard(self, v_bv: torch.Tensor, negative_v_bv: torch.Tensor) -> bool:
        """Against exploding weights: shrink everything and drop the update where reconstructions spread too far."""
        data, reconstruction = (float(x.std(correction=0)) for x in (v_bv, negative_v_bv))
        if not math.isfinite(reconstruction):
            raise Diverged("the reconstruction is not finite")
        if reconstruction <= _GUARD_RATIO * data:
            return False
        for part, move in zip(self._parts, self._moves):
            part *= data / reconstruction
            move.zero_()
        self._damping *= _GUARD_RATE
        self.guarded += 1
        return True


@dataclass
class Pretrained:
    """The layers (weights (H, V) and hidden biases (H,)), first one first, and what their training looked like."""

    layers: list[tuple[torch.Tensor, torch.Tensor]]
    log: list[dict[str, Any]] = field(default_factory=list)  # a row per machine and epoch; plain values


@torch.no_grad()
def pretrain(
    samples: Samples,
    hidden: Sequence[int],
    settings: RbmSettings,
    seed: int,
    held_out: Samples | None = None,
) -> Pretrained:
    """Train a machine per width of ``hidden``, each on what the ones before make of the samples' inputs.

    The log has, for each machine and epoch, the reconstruction's mean squared error and, with ``held_out``, the
    mean free energy of held-out samples minus that of as many training samples: it grows when a machine overfits.
    Raises UserError for features that are not finite, and Diverged when a machine's weights become so.
    """
    if not len(samples) or not all(bool(v.isfinite().all()) for v in _pieces(samples)):
        raise UserError("pretraining: the training features are empty or not finite; prepare the data again")
    done: list[Rbm] = []
    result = Pretrained([])
    for index, width in enumerate(hidden):
        generator = torch_stream(seed, "rbm", index)
        rbm = _new_machine(samples, done, width, settings, generator)
        trainer = Trainer(rbm, settings, generator)
        for epoch in range(settings.bernoulli_epochs if done else settings.gaussian_epochs):
            try:
                errors = [trainer.step(_forward(done, v)) for v in _minibatches(samples, settings, generator)]
                if not bool(rbm.w_hv.isfinite().all()):
                    raise Diverged("the weights are not finite")
            except Diverged as error:
                rate = "rbm_bernoulli_lr" if done else "rbm_gaussian_lr"
                raise Diverged(
                    f"pretraining: weights of machine {index + 1} are not finite; lower {rate}"
                ) from error
            row = {
                "machine": index,
                "epoch": epoch + 1,
                "reconstruction": float(torch.stack(errors).mean()),
                "guarded": trainer.guarded,
            }
            if held_out is not None:
                row["free_energy_gap"] = free_energy_gap(rbm, done, samples, held_out)
            result.log.append(row)
        done.append(rbm)
        result.layers.append((rbm.w_hv, rbm.b_h))
    return result


def free_energy_gap(rbm: Rbm, below: Sequence[Rbm], samples: Samples, held_out: Samples) -> float:
    """Mean free energy of held-out samples minus that of as many training samples, evenly chosen."""
    rows = torch.linspace(0, len(samples) - 1, min(len(held_out), len(samples))).long()
    of_held_out, of_seen = (
        sum(float(rbm.free_energy(_forward(below, v)).double().sum()) for v in _pieces(some, chosen))
        / len(chosen)
        for some, chosen in ((held_out, torch.arange(len(held_out))), (samples, rows))
    )
    return of_held_out - of_seen


def _new_machine(
    samples: Samples, below: Sequence[Rbm], width: int, settings: RbmSettings, generator: torch.Generator
) -> Rbm:
    """Random weights, hidden biases 0; visible biases from the mean activation where units are binary, else 0."""
    if below:
        total_v = sum(_forward(below, v).double().sum(0) for v in _pieces(samples))
        a_v = torch.logit((total_v / len(samples)).clamp(1e-4, 1 - 1e-4)).float()
    else:
        a_v = torch.zeros(samples.take(torch.tensor([0]))[0].shape[1])
    w_hv = torch.empty(width, len(a_v)).normal_(0, settings.weight_stddev, generator=generator)
    return Rbm(w_hv, a_v, torch.zeros(width), gaussian=not below)


def _pieces(samples: Samples, rows: torch.Tensor | None = None) -> Iterator[torch.Tensor]:
    """The inputs of these samples (None: all), so many at once that memory does not matter."""
    for some in (torch.arange(len(samples)) if rows is None else rows).split(_CHUNK):
        yield samples.take(some)[0]


def _minibatches(
    samples: Samples, settings: RbmSettings, generator: torch.Generator
) -> Iterator[torch.Tensor]:
    """An epoch in random order; what does not fill a minibatch is left out."""
    size = min(settings.minibatch, len(samples))
    order = torch.randperm(len(samples), generator=generator)
    for rows in order[: len(samples) // size * size].split(size):
        yield samples.take(rows)[0]


def _forward(machines: Sequence[Rbm], v_bv: torch.Tensor) -> torch.Tensor:
    for machine in machines:
        v_bv = machine.hidden(v_bv)
    return v_bv


def cached_pretrain(
    folder: Path,
    source: str,
    samples: Callable[[], tuple[Samples, Samples | None]],
    hidden: Sequence[int],
    settings: RbmSettings,
    seed: int,
) -> Pretrained:
    """``pretrain``, or its result from a file of ``folder`` named by data, sizes, settings and seed.

    ``source`` stands for the samples, in their order; ``samples`` gives those to train on and those held out, and is
    not called where the result is there. A damaged file is made again. Of several processes that ask at once, one
    trains and the others wait for it.
    """
    key = json.dumps(
        {
            "format": _FORMAT,
            "data": source,
            "hidden": list(hidden),
            "settings": asdict(settings),
            "seed": seed,
        },
        sort_keys=True,
    )
    path = folder / f"rbm-{hashlib.sha256(key.encode()).hexdigest()[:24]}.pt"
    if (found := _read_cache(path, key)) is not None:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    # The lock belongs to the open file, so a killed process leaves none behind.
    with open(path.with_suffix(".lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (found := _read_cache(path, key)) is not None:
            return found
        seen, held_out = samples()
        result = pretrain(seen, hidden, settings, seed, held_out)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        torch.save({"key": key, "layers": result.layers, "log": result.log}, temporary)
        temporary.replace(path)
    return result


def _read_cache(path: Path, key: str) -> Pretrained | None:
    """What lies in the file, if it was made for this key and is whole."""
    try:
        kept = torch.load(path, weights_only=True)
        return Pretrained(kept["layers"], kept["log"]) if kept["key"] == key else None
    except (OSError, EOFError, RuntimeError, KeyError, TypeError, ValueError, pickle.UnpicklingError):
        return None  # not there, or cut off


@torch.no_grad()
def start_from(net: FullyConnected, pretrained: Pretrained, generator: torch.Generator) -> None:
    """Put the layers into the hidden layers of every worker; the softmax layer is random by the recipe.

    The softmax layer is that of ``initialise_sigmoid`` with the same generator. Raises UserError for other sizes.
    """
    want = [(outputs, inputs) for inputs, outputs in zip(net.widths, net.widths[1:-1])]
    have = [tuple(w_hv.shape) for w_hv, _ in pretrained.layers]
    if want != have:
        raise UserError(f"pretrained layers of sizes {have} do not fit hidden layers of sizes {want}")
    initialise_sigmoid(net, generator)
    for layer, (w_hv, b_h) in enumerate(pretrained.layers):
        net.weights[f"w{layer}"][:] = w_hv
        net.weights[f"b{layer}"][:] = b_h
