"""A user's own network, ``package.module:Net``, as a model of many workers.

What stands behind the colon is a class or function; it is called with the arguments that the point names, and gives a
``torch.nn.Module`` that turns samples (b, *input) of float32 into scores (b, classes). Its first weights are its own:
torch's, NumPy's and Python's generators are seeded before it is called, alike in every process of a run.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.utils.flop_counter import FlopCounterMode

from implementations.errors import UserError
from implementations.models.module_net import ModuleNet, for_sizes, without_memory

_TRIED = 2  # samples that a network is tried out with
_SUPPORTED_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class UserNet(ModuleNet):
    """``ModuleNet`` of a module that nobody knows."""

    def _counted_flops(self) -> int:
        """What torch counts of a step, of products of all kinds; 6 for each parameter where it cannot be counted."""
        module = for_sizes(self._skeleton)
        try:
            with FlopCounterMode(display=False) as counter, torch.enable_grad():
                module(torch.empty(_TRIED, *self.sample, device="meta")).sum().backward()
            return counter.get_total_flops() // _TRIED
        except (
            RuntimeError,
            NotImplementedError,
            TypeError,
        ):  # it looks at values, of which there are none here
            return 6 * self.params_per_worker


def found(path: str, said: str = "model") -> Any:
    """What ``path`` names; ``said`` begins the message of the UserError for what cannot be imported."""
    name, _, attribute = path.partition(":")
    if not name or not attribute:
        raise UserError(f"{said} {path}: write MODULE:CLASS, as in mymodule:Net")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(name), attribute)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise UserError(f"{said} {path}: {_said(error)}") from None


def module_of(path: str, arguments: Mapping[str, Any] | None = None, said: str = "model") -> nn.Module:
    """The module that ``path`` names: itself, or what the class or function gives, called with ``arguments``.

    UserError in one line for what cannot be found, called, or is no module.
    """
    made = found(path, said)
    if not isinstance(made, nn.Module):
        try:
            made = made(**(arguments or {}))
        except (Exception, SystemExit) as error:
            raise UserError(f"{said} {path}: {_said(error)}") from None
    if not isinstance(made, nn.Module):
        raise UserError(f"{said} {path}: gives a {type(made).__name__}, not a torch.nn.Module")
    return made


def made_for(
    path: str, arguments: Mapping[str, Any], sample: Sequence[int], classes: int, seed: int
) -> nn.Module:
    """The module of a run, on the CPU, tried out on samples of the sizes ``sample``; UserError where it does not fit.

    Parameters that wait for the first sample to know their sizes get them.
    """
    with _seeded(seed), torch.device("cpu"):
        if isinstance(found(path), nn.Module):
            raise UserError(
                f"model {path}: a module that is made already, with the same weights for every seed; needed: a class "
                "or function that makes one"
            )
        module = module_of(path, arguments)
        if any(isinstance(parameter, UninitializedParameter) for parameter in module.parameters()):
            _try(path, module, sample)
    _check_parts(path, module)
    with _seeded(seed), torch.device("cpu"):
        _check_scores(path, module, sample, classes)
    return module


def build(
    *,
    features: int,
    classes: int,
    workers: int,
    generator: torch.Generator,
    path: str,
    input: Sequence[int],
    args: Mapping[str, Any] | None = None,
) -> UserNet:
    """The network for ``workers`` workers, which start with the same weights; ``input``: the sizes of a sample."""
    if int(np.prod(input)) != features:
        raise UserError(f"model {path}: input {_sizes(input)}; the data have samples of {features} values")
    module = made_for(path, args or {}, input, classes, generator.initial_seed())
    try:
        # where sizes alone are wanted, torch's default device is the one without memory
        kept = without_memory(module) if torch.get_default_device().type == "meta" else module
        return UserNet(kept, tuple(input), workers)
    except (RuntimeError, TypeError) as error:
        raise UserError(f"model {path}: cannot be copied: {_said(error)}") from None


def _check_parts(path: str, module: nn.Module) -> None:
    """Refuse what would train wrongly."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UserError(f"model {path}: has no parameters to train")
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise UserError(f"model {path}: parameter {name} is {kind}; needed: float32 (call .float())")
    for name, part in module.named_modules():
        kind = type(part).__name__
        if hasattr(part, "running_mean") and not isinstance(part, _SUPPORTED_NORMS):
            raise UserError(
                f"model {path}: layer {name}: {kind} keeps statistics that are not averaged; supported: BatchNorm1d, "
                "BatchNorm2d, LayerNorm, GroupNorm"
            )
        if isinstance(part, _SUPPORTED_NORMS) and part.running_mean is None:
            raise UserError(
                f"model {path}: layer {name}: {kind} with track_running_stats=False; needed: True"
            )


def _check_scores(path: str, module: nn.Module, sample: Sequence[int], classes: int) -> None:
    scores = _try(path, module, sample)
    if not isinstance(scores, torch.Tensor):
        raise UserError(
            f"model {path}: gives a {type(scores).__name__}; needed: a tensor of scores (samples, classes)"
        )
    if tuple(scores.shape) != (_TRIED, classes):
        raise UserError(
            f"model {path}: gives {_sizes(scores.shape)} values for {_TRIED} samples of {_sizes(sample)}; needed: "
            f"{_TRIED} x {classes}, a score for each of the {classes} classes of the data"
        )
    if not scores.requires_grad:
        raise UserError(f"model {path}: its scores have no gradient; does it compute under torch.no_grad?")
    if bool((scores >= 0).all()) and torch.allclose(scores.sum(1), torch.ones(_TRIED)):
        raise UserError(
            f"model {path}: gives probabilities; needed: scores without the Softmax: the loss applies it"
        )


def _try(path: str, module: nn.Module, sample: Sequence[int]) -> Any:
    """What the module makes of a few samples, in evaluation but with gradients."""
    training = module.training
    module.eval()
    try:
        with torch.enable_grad():
            return module(torch.randn(_TRIED, *sample))
    except Exception as error:  # whatever the user's code raises
        raise UserError(f"model {path}: does not take samples of {_sizes(sample)}: {_said(error)}") from None
    finally:
        module.train(training)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """All three generators that a network might draw its first weights from; as before afterwards."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').partition(chr(10))[0]}"


def _sizes(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))
