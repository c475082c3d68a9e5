"""Independent random streams, each derived from a point's seed by name.

Methods that should share randomness (data order, initial weights) ask for the same name and get the same numbers;
a method's own draws (masks, say) have names of their own and disturb nobody.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream called ``names`` under ``seed``; stable across machines and versions."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_stream(seed: int, *names: str | int) -> np.random.Generator:
    """A NumPy generator for the named stream."""
    return np.random.default_rng(derive(seed, *names))


def torch_stream(seed: int, *names: str | int) -> torch.Generator:
    """A torch CPU generator for the named stream."""
    return torch.Generator().manual_seed(derive(seed, *names))


def uniform_(values: torch.Tensor, low: float, high: float, generator: torch.Generator) -> None:
    """Fill with draws of a CPU generator, uniform in [low, high): the same ones on every device."""
    if _drawn_in_place(values):
        values.uniform_(low, high, generator=generator)
    else:
        values.copy_(torch.empty(values.shape, device="cpu").uniform_(low, high, generator=generator))


def normal_(values: torch.Tensor, deviation: float, generator: torch.Generator) -> None:
    """Fill with draws of a CPU generator, normal around 0: the same ones on every device."""
    if _drawn_in_place(values):
        values.normal_(0, deviation, generator=generator)
    else:
        values.copy_(torch.empty(values.shape, device="cpu").normal_(0, deviation, generator=generator))


def _drawn_in_place(values: torch.Tensor) -> bool:
    """Whether a CPU generator can fill it: CPU memory, or sizes alone."""
    return values.device.type in ("cpu", "meta")
