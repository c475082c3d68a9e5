"""Tensors as one run of bytes, as tasks keep them and hand them over; reading one copies nothing.

A frame is the length of a header in 8 bytes, the header (JSON: dtype, shape and place of each tensor by name), and the
tensors' values one after the other, each beginning at a multiple of 64 bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np
import torch

ALIGNMENT = 64  # of a line of the processor's cache
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)
}


def pack(tensors: Mapping[str, torch.Tensor]) -> bytearray:
    """A frame of CPU tensors of any shapes, each copied once; KeyError for a dtype that no program uses."""
    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    entries, place = {}, 0
    for name, tensor in whole.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        entries[name] = (dtype, list(tensor.shape), place)
        _DTYPES[dtype]
        place += _padded(tensor.nbytes)
    header = json.dumps(entries).encode()
    start = _padded(8 + len(header))
    frame = bytearray(start + place)
    frame[:8] = len(header).to_bytes(8, "little")
    frame[8 : 8 + len(header)] = header
    values = np.frombuffer(frame, np.uint8)
    for name, (_, _, place) in entries.items():
        tensor = whole[name]
        if tensor.numel():
            begin = start + place
            values[begin : begin + tensor.nbytes] = tensor.view(-1).numpy().view(np.uint8)
    return frame


def unpack(frame: bytearray | np.ndarray) -> dict[str, torch.Tensor]:
    """The tensors of a frame, by name: views of its memory, which must be writable (bytes, or a uint8 array)."""
    length = int.from_bytes(bytes(frame[:8]), "little")
    entries = json.loads(bytes(frame[8 : 8 + length]))
    start = _padded(8 + length)
    tensors = {}
    for name, (dtype, shape, place) in entries.items():
        count = math.prod(shape)
        if count:
            flat = torch.frombuffer(frame, dtype=_DTYPES[dtype], count=count, offset=start + place)
            tensors[name] = flat.view(shape)
        else:
            tensors[name] = torch.empty(shape, dtype=_DTYPES[dtype])
    return tensors


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
