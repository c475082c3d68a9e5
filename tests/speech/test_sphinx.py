import struct

import numpy as np
import pytest

from implementations.errors import UserError
from implementations.speech import sphinx


def mfc(frames):
    frames = np.asarray(frames)
    return struct.pack(f">i{frames.size}f", frames.size, *frames.ravel().tolist())


def test_frames_are_read(tmp_path):
    frames = np.arange(26, dtype=np.float32).reshape(2, 13) / 4
    (tmp_path / "a.mfc").write_bytes(mfc(frames))
    read = sphinx.read_mfc(tmp_path / "a.mfc")
    assert read.dtype == np.float32 and read.dtype.isnative
    np.testing.assert_array_equal(read, frames)


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-1],
        lambda raw: raw[:-52],
        lambda raw: raw + b"\0\0\0\0",
        lambda raw: raw[:3],
        lambda raw: b"",
        lambda raw: struct.pack(">i", 0),
        lambda raw: struct.pack(">i", -13) + raw[4:],
        lambda raw: struct.pack(">i12f", 12, *range(12)),
        lambda raw: raw[3::-1] + raw[4:],  # little-endian header
    ],
)
def test_a_damaged_file_is_named(tmp_path, damage):
    (tmp_path / "a.mfc").write_bytes(damage(mfc(np.zeros((2, 13)))))
    with pytest.raises(UserError, match=r"a\.mfc: damaged feature file.*fetch it again"):
        sphinx.read_mfc(tmp_path / "a.mfc")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "feat" / "clstk" / "ann").mkdir(parents=True)
    (tmp_path / "feat" / "clstk" / "ann" / "u1-ann-b.mfc").write_bytes(mfc(np.ones((9, 13))))
    (tmp_path / "ids").write_text("clstk/ann/u1-ann-b\n")
    (tmp_path / "words").write_text("<s> YES NO </s> (u1-ann-b)\n\nGO (u2)\n")
    return tmp_path


def read(folder):
    return list(sphinx.read_utterances(folder / "feat", folder / "ids", folder / "words"))


def test_utterances(folder):
    (one,) = read(folder)
    assert (one.name, one.speaker, one.words) == ("u1-ann-b", "ann", ("YES", "NO"))
    assert one.features.shape == (9, 13)


def test_missing_parts_are_named(folder):
    (folder / "ids").write_text("clstk/ann/u2\n")
    with pytest.raises(UserError, match=r"utterance u2: no feature file .*u2\.mfc"):
        read(folder)
    (folder / "ids").write_text("clstk/ann/u3\n")
    with pytest.raises(UserError, match="utterance u3: no transcript in words"):
        read(folder)
    (folder / "words").write_text("YES\n")
    with pytest.raises(UserError, match="words: line 1: got 'YES'"):
        read(folder)
