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
