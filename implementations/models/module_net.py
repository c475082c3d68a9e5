"""Any torch module as a model of many workers: its parameters are views of the flat buffer.

Shapes as in ``worker_model``. Each worker has a module of its own, whose parameters are views of its row of
``theta_wp`` and their gradients views of ``grad_wp``; a pass is a plain call of it. Autograd adds to gradients, so they
are zeroed first: no slower than copying what it makes, and there is never a second gradient of the whole network.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Self

import torch
from torch import nn

from implementations.errors import UserError
from implementations.models.linear import uniform_
from implementations.models.worker_model import WorkerModel
from implementations.seeds import normal_

EVALUATED_AT_ONCE = 250  # samples; with many more, memory is asked of the system again and again

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_AFFINE = (nn.Conv2d, nn.Linear)


def image_of(name: str, features: int) -> tuple[int, int, int]:
    """Channels, height and width of square images: three channels where that gives a square, else one.

    UserError, in the name of the model, where neither does.
    """
    for channels in (3, 1):
        side = math.isqrt(features // channels)
        if side**2 * channels == features:
            return channels, side, side
    raise UserError(
        f"model {name}: got samples of {features} values; needed: square images of 3 channels or 1"
    )


def without_memory(module: nn.Module) -> nn.Module:
    """A copy of a module on the meta device; what the module holds is not copied first."""
    memo: dict[int, torch.Tensor] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = buffer.to("meta")
    return copy.deepcopy(module, memo)


def for_sizes(module: nn.Module) -> nn.Module:
    """A copy on the meta device in training, to find out what a pass is like; it keeps no statistics."""
    made = without_memory(module).train()
    for norm in _norms(made):
        norm.track_running_stats = False
    return made


class ModuleNet(WorkerModel):
    """``module`` for samples of the sizes ``sample``, (channels, height, width) or (features,).

    The weights have the names of the module's parameters, and are zero until ``initialise``; where the module is not
    on the meta device, all workers start with its parameters, and each has its buffers. Dropout draws from torch's
    global generator, under autograd only, the same for each worker of a step: whoever hosts whom. Batch
    normalisation uses the statistics of the minibatch in training, and in evaluation those that ``prepare_evaluation``
    has estimated.
    """

    def __init__(self, module: nn.Module, sample: tuple[int, ...], workers: int) -> None:
        shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
        super().__init__(shapes, workers)
        self.sample = tuple(sample)
        self._skeleton = without_memory(module)
        self._flops = self._counted_flops()
        self._modules_w = [self._module_of(worker, module) for worker in range(workers)]
        self.needs_samples = bool(_norms(self._skeleton))
        self._prepared_w = torch.zeros(workers, dtype=torch.bool)
        for name, parameter in module.named_parameters():
            if not parameter.is_meta:
                self.weights[name].copy_(parameter.detach())

    def _counted_flops(self) -> int:
        return training_flops(self._skeleton, self.sample)

    def _module_of(self, worker: int, module: nn.Module) -> nn.Module:
        """A module whose parameters are views of a worker's weights, with buffers of its own."""
        own = copy.deepcopy(self._skeleton)
        buffers = dict(module.named_buffers(remove_duplicate=False))
        # by the parameter that is replaced: two layers may share it
        views: dict[nn.Parameter, nn.Parameter] = {}
        for path, part in own.named_modules():
            for name, parameter in part._parameters.items():
                if parameter is None:
                    continue
                if parameter not in views:
                    view = self.weights[_joined(path, name)][worker]
                    views[parameter] = nn.Parameter(view, parameter.requires_grad)
                    if parameter.requires_grad:
                        views[parameter].grad = self.grads[_joined(path, name)][worker]
                setattr(part, name, views[parameter])  # so that recurrent layers learn of it
            for name, buffer in part.named_buffers(recurse=False):
                source = buffers[_joined(path, name)]
                kept = torch.zeros_like(buffer, device=self.theta_wp.device)
                part._buffers[name] = kept if source.is_meta else kept.copy_(source)
            if isinstance(part, _NORMS):
                part.track_running_stats = False  # no pass in training over statistics that nobody reads
        return own

    def initialise(self, generator: torch.Generator, he: bool = False) -> None:
        """Torch's own rule: uniform in +-1/sqrt(fan-in), scales 1 and shifts 0; every worker gets the same.

        With ``he``, kernels are normal with deviation sqrt(2 / fan-in) and their biases 0 (He et al. 2015): in a deep
        network the signal would be lost otherwise. TypeError for layers without a rule.
        """
        for path, part in self._skeleton.named_modules():
            own = {
                name: self.weights[_joined(path, name)][0]
                for name in dict(part.named_parameters(recurse=False))
            }
            if not own:
                continue
            if isinstance(part, _NORMS):
                own["weight"].fill_(1.0)
                own["bias"].zero_()
            elif not isinstance(part, _AFFINE):
                raise TypeError(f"layer {path}: no first weights for a {type(part).__name__}")
            else:
                fan_in = math.prod(part.weight.shape[1:])
                if he and isinstance(part, nn.Conv2d):
                    normal_(own["weight"], math.sqrt(2 / fan_in), generator)
                    if "bias" in own:
                        own["bias"].zero_()
                else:
                    for weight in own.values():
                        uniform_(weight, fan_in, generator)
        self.theta_wp[1:] = self.theta_wp[0]

    @property
    def flops_per_sample(self) -> int:
        """Those of convolutions and linear layers (``training_flops``)."""
        return self._flops

    def logits(self, x_wbi: torch.Tensor) -> torch.Tensor:
        """Scores (W, B, classes) of inputs (W, B, features).

        RuntimeError where ``prepare_evaluation`` should have come first.
        """
        training = torch.is_grad_enabled()
        if self.needs_samples and not training and not self._prepared_w.all():
            raise RuntimeError("evaluation with statistics of the population, which are not known yet")
        if training:
            self.grad_wp.zero_()
        scores = []
        state = torch.get_rng_state() if training and len(self._modules_w) > 1 else None
        for module, x_bi in zip(self._modules_w, x_wbi):
            if state is not None:
                torch.set_rng_state(state)
            if module.training != training:
                module.train(training)
            if training:
                scores.append(module(self._samples(x_bi)))
            else:
                parts = [module(self._samples(part)) for part in x_bi.split(EVALUATED_AT_ONCE)]
                scores.append(torch.cat(parts))
        return scores[0].unsqueeze(0) if len(scores) == 1 else torch.stack(scores)

    def _samples(self, x_bi: torch.Tensor) -> torch.Tensor:
        return x_bi.view(len(x_bi), *self.sample)

    @torch.no_grad()
    def prepare_evaluation(self, x_batches: Iterable[torch.Tensor], worker: int = 0) -> None:
        """See ``WorkerModel.prepare_evaluation``: means over minibatches of a normalisation's mean and variance.

        The minibatches pass as in training, but for dropout: each normalised by its own statistics.
        """
        if not self.needs_samples:
            return
        module = self._modules_w[worker].eval()
        norms = _norms(module)
        for norm in norms:
            norm.track_running_stats, norm.momentum = True, None  # None: the mean over all that it has seen
            norm.reset_running_stats()
            norm.train()
        try:
            for x_bi in x_batches:
                for part in x_bi.split(EVALUATED_AT_ONCE):
                    module(self._samples(part))
        finally:
            for norm, original in zip(norms, _norms(self._skeleton)):
                norm.eval()
                norm.track_running_stats, norm.momentum = False, original.momentum
        self._prepared_w[worker] = True

    def to_module(self, worker: int = 0) -> nn.Module:
        """A copy of one worker's module, of samples (b, *sample), with its weights and statistics."""
        module = copy.deepcopy(self._modules_w[worker])
        for part, original in zip(_norms(module), _norms(self._skeleton)):
            part.track_running_stats = original.track_running_stats
        return module

    def drop_gradients(self) -> None:
        """See ``WorkerModel.drop_gradients``."""
        super().drop_gradients()
        for module in self._modules_w:
            module.zero_grad(set_to_none=True)

    def one_worker(self, worker: int) -> Self:
        """See ``WorkerModel.one_worker``; the module is shared, statistics of normalisation too."""
        one = super().one_worker(worker)
        own = slice(worker, worker + 1)
        one._modules_w, one._prepared_w = self._modules_w[own], self._prepared_w[own]
        return one


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _norms(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if isinstance(part, _NORMS)]


def training_flops(module: nn.Module, sample: tuple[int, ...]) -> int:
    """Operations of convolutions and linear layers for a training sample, counted by a pass on the meta device.

    Two per weight and place, forward and for each gradient; what reads the sample itself has no gradient of it.
    """
    total, batch = 0, 2

    def count(part: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        nonlocal total
        products = math.prod(part.weight.shape[1:]) * output.numel() // batch
        total += products * (6 if inputs[0].requires_grad else 4)

    counted = for_sizes(module)
    for part in counted.modules():
        if isinstance(part, _AFFINE):
            part.register_forward_hook(count)
    with torch.enable_grad():
        counted(torch.empty(batch, *sample, device="meta"))
    return total
