"""results/exactness.parquet: how exactly training that is split does what one device does, by torch alone.

Layer-wise: each network is small, of a few samples, and trained for one step by torch alone and under strategies: every
configuration followed by all layers as far as they can, and mixtures drawn at random. Spark: layers cut over workers,
twenty steps, by each execution's exchanges.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from implementations import exactness_spark
from implementations.layerwise import tracing
from implementations.layerwise.equivalence import Reference, random_strategy, uniform_strategies
from implementations.layerwise.graph import Strategy
from implementations.models import convnets

CLASSES, SAMPLES = 10, 8
Net = tuple[dict[str, Any], tuple[int, int, int]]
NETS: tuple[Net, ...] = (
    ({"name": "lenet5"}, (1, 28, 28)),
    ({"name": "alexnet_small", "width": 0.125}, (3, 32, 32)),
    ({"name": "vgg_small", "width": 0.125}, (3, 30, 30)),
)
DEEP: tuple[Net, ...] = (
    ({"name": "resnet50", "width": 0.0625}, (3, 33, 33)),
    ({"name": "inception_v3", "width": 0.0625, "dropout": 0}, (3, 75, 75)),
)
DOUBLE, SINGLE = "double", "single"
# How much is checked in each tier: in seconds, in moments, in minutes.
SCOPES: dict[str, dict[str, Any]] = {
    "smoke": {"mixtures": 1, "devices": (2,)},
    "default": {"mixtures": 3},
}
FULL_SCOPE: dict[str, Any] = {"mixtures": 30, "deep": True}  # of all other tiers
COLUMNS = [
    "model", "precision", "devices", "layers", "strategies", "configurations", "worst_error", "torch_error",
    "bytes_as_predicted",
]  # fmt: skip


def table(tier: str, methods: Collection[str]) -> pd.DataFrame:
    """The rows of those of the two methods that are among ``methods``, as many as the tier says."""
    torch.set_num_threads(1)  # tensors are tiny: threads would only wait for each other
    parts = [pd.DataFrame(columns=list(dict.fromkeys([*exactness_spark.COLUMNS, *COLUMNS])))]
    if "layerwise" in methods:
        parts.append(make(**SCOPES.get(tier, FULL_SCOPE)).assign(paper="layerwise", evidence="simulated"))
    if "spark" in methods:
        scope = exactness_spark.SCOPES.get(tier, exactness_spark.FULL_SCOPE)
        parts.append(exactness_spark.make(**scope))
    rows = [row for part in parts for row in part.to_dict("records")]
    return pd.DataFrame(rows, columns=parts[0].columns)


def make(mixtures: int, deep: bool = False, devices: tuple[int, ...] = (2, 3, 4, 8)) -> pd.DataFrame:
    """A row for each network, precision and number of devices, with ``COLUMNS``.

    ``mixtures``: random strategies for each; every configuration for all layers at once is tried beside them for the
    first network. ``deep``: whether the deep networks are among them, in which single precision says little: over few
    samples a normalisation makes much of rounding, torch's own too.

    ``strategies``: how many were checked, with ``configurations`` of layers in them; ``worst_error``: of loss,
    gradients and weights (``equivalence.Difference``); ``torch_error``: the same of plain torch in single precision
    against double.
    """
    rows = []
    for model, image in (*NETS, *(DEEP if deep else ())):
        torch.manual_seed(0)
        module = convnets.module(model, image, CLASSES)
        traced = tracing.trace(module, image, model["name"])
        exact = _reference(module, traced, image, torch.float64)
        rounded = _reference(module, traced, image, torch.float32)
        for precision, reference in ((DOUBLE, exact), (SINGLE, rounded)):
            for count in devices:
                strategies = list(_strategies(traced.graph, count, mixtures, every=model is NETS[0][0]))
                found = [reference.difference(strategy, count) for strategy in strategies]
                used = {(name, config) for strategy in strategies for name, config in strategy.items()}
                rows.append(
                    {
                        "model": model["name"],
                        "precision": precision,
                        "devices": count,
                        "layers": len(traced.graph),
                        "strategies": len(strategies),
                        "configurations": len(used),
                        "worst_error": max(one.worst for one in found),
                        "torch_error": rounded.rounding(exact) if precision == SINGLE else None,
                        "bytes_as_predicted": all(one.bytes_as_predicted for one in found),
                    }
                )
    return pd.DataFrame(rows, columns=COLUMNS)


def _reference(
    module: nn.Module, traced: tracing.Traced, image: tuple[int, ...], dtype: torch.dtype
) -> Reference:
    stream = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, *image, generator=stream).to(dtype)
    labels = torch.randint(0, CLASSES, (SAMPLES,), generator=stream)
    return Reference(module.to(dtype), traced, x, labels)


def _strategies(graph: Any, devices: int, mixtures: int, every: bool) -> Iterator[Strategy]:
    if every:
        yield from (strategy for _, strategy in uniform_strategies(graph, SAMPLES, devices))
    draws = np.random.default_rng(devices)
    for _ in range(mixtures):
        yield random_strategy(graph, SAMPLES, devices, draws)
