import gzip
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from implementations.data.idx import read_idx
from implementations.errors import UserError

WHOLE = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 10, 20, 30, 40, 50, 60])


def test_bytes_written_by_hand(tmp_path):
    path = tmp_path / "a-idx2-ubyte"
    path.write_bytes(WHOLE)
    np.testing.assert_array_equal(read_idx(path), [[10, 20, 30], [40, 50, 60]])
    assert read_idx(path).dtype == np.uint8


def test_gzip_and_big_endian_floats(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes([0, 0, 0x0D, 1, 0, 0, 0, 2]) + struct.pack(">2f", 1.5, -2)))
    values = read_idx(path)
    assert values.tolist() == [1.5, -2.0] and values.dtype == np.float32 and values.dtype.isnative


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "not an IDX file"),
        (b"\x1f\x8b\x08\x00 not unpacked", "not an IDX file"),
        (b"\0\0\x07\x01\0\0\0\x01\0", "not an IDX file"),  # there is no type 7
        (WHOLE[:9], "truncated"),
        (WHOLE[:-1], "17 bytes where its IDX header tells of 18"),
        (WHOLE + b"\0", "19 bytes where its IDX header tells of 18"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, raw, says):
    path = tmp_path / "damaged"
    path.write_bytes(raw)
    with pytest.raises(UserError, match=f"damaged.*{says}"):
        read_idx(path)


@pytest.mark.parametrize(
    "raw", [gzip.compress(WHOLE)[:-9], b"no gzip", gzip.compress(WHOLE)[:-8] + b"12345678"]
)
def test_a_damaged_gzip_is_named(tmp_path, raw):
    path = tmp_path / "damaged.gz"
    path.write_bytes(raw)
    with pytest.raises(UserError, match=r"damaged\.gz: not a whole gzip"):
        read_idx(path)


@given(hnp.arrays(st.sampled_from([">u1", ">i2", ">i4", ">f8"]), hnp.array_shapes(min_side=0, max_side=4)))
def test_any_array_comes_back(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("idx") / "values"
    code = {"u1": 0x08, "i2": 0x0B, "i4": 0x0C, "f8": 0x0E}[values.dtype.str[1:]]
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, code, values.ndim, *values.shape)
    path.write_bytes(header + values.tobytes())
    np.testing.assert_array_equal(read_idx(path), values)
