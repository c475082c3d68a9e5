"""IDX files, the format of MNIST: two zero bytes, type code, number of axes, their lengths, the values."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from implementations.errors import UserError

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | Path) -> np.ndarray:
    """The array in ``path`` (``.gz`` is unpacked), in native byte order; UserError names a damaged file."""
    path = Path(path)
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: not a whole gzip file: {error}") from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _TYPES:
        raise UserError(f"{path}: not an IDX file, as it starts with {raw[:4].hex(' ') or 'nothing'}")
    dtype, axes = np.dtype(_TYPES[raw[2]]), raw[3]
    start = 4 + 4 * axes
    if len(raw) < start:
        raise UserError(f"{path}: truncated: {len(raw)} of the {start} bytes of an IDX header")
    shape = tuple(int(length) for length in np.frombuffer(raw, ">u4", axes, 4))
    expected = start + math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        raise UserError(f"{path}: {len(raw)} bytes where its IDX header tells of {expected}")
    return np.frombuffer(raw, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))
