import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implementations.speech import features


def offsets_of(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


LENGTHS = st.lists(st.integers(1, 13), min_size=1, max_size=5)


def test_deltas_of_a_line_are_its_slope():
    """Inside; at an edge of window 2 the repeated frames give 0.5 and 0.8 of it: (1 + 4)/10, (1*2 + 2*3)/10."""
    t = np.arange(9.0)
    line = np.stack([3 * t, -t], axis=1)
    got = features.deltas(line, np.array([0, 9]))
    shares = np.array([0.5, 0.8, 1, 1, 1, 1, 1, 0.8, 0.5])
    np.testing.assert_allclose(got, shares[:, None] * [3, -1])


def test_delta_deltas_of_a_parabola_are_its_curvature():
    t = np.arange(20.0)[:, None]
    twice = features.deltas(features.deltas(t * t, np.array([0, 20])), np.array([0, 20]))
    np.testing.assert_allclose(twice[4:-4], 2)


@given(LENGTHS)
def test_deltas_do_not_look_into_other_utterances(lengths):
    x = np.random.default_rng(0).normal(size=(sum(lengths), 3))
    got = features.deltas(x, offsets_of(lengths))
    alone = [
        features.deltas(part, np.array([0, len(part)])) for part in np.split(x, offsets_of(lengths)[1:-1])
    ]
    np.testing.assert_allclose(got, np.concatenate(alone))


def test_normalised():
    rng = np.random.default_rng(1)
    lengths, speakers = [30, 50, 40, 20], np.array([5, 2, 5, 2])
    offsets = offsets_of(lengths)
    scale = np.repeat(np.where(speakers == 5, 10.0, 0.1), lengths)[:, None]
    x = (rng.normal(size=(140, 3)) * scale + 100).astype(np.float32)
    got = features.normalise(x, offsets, speakers)
    assert got.dtype == np.float32
    parts = np.split(got, offsets[1:-1])
    for part in parts:
        np.testing.assert_allclose(part.mean(axis=0), 0, atol=1e-4)
    for speaker in (5, 2):
        own = np.concatenate([part for part, one in zip(parts, speakers, strict=True) if one == speaker])
        np.testing.assert_allclose(own.std(axis=0), 1, atol=1e-4)


def test_a_constant_value_becomes_nothing():
    x = np.full((7, 2), 1234.567, dtype=np.float32)
    x[:, 1] = np.arange(7)
    got = features.normalise(x, np.array([0, 7]), np.array([0]))
    assert np.all(got[:, 0] == 0) and got[:, 1].std() == pytest.approx(1)


def test_offset_and_gain_of_a_speaker_do_not_matter():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    offsets, speakers = np.array([0, 25, 60]), np.array([0, 0])
    plain = features.recogniser_features(x, offsets, speakers)
    moved = features.recogniser_features(4 * x + 3, offsets, speakers)
    assert plain.shape == (60, 12)
    np.testing.assert_allclose(moved, plain, atol=1e-5)


@given(LENGTHS, st.integers(0, 6))
def test_spliced_windows(lengths, context):
    """Against frame numbers clipped to the utterance, one by one."""
    total, offsets = sum(lengths), offsets_of(lengths)
    x = np.random.default_rng(3).normal(size=(total, 2)).astype(np.float32)
    spliced = features.Spliced(x, offsets, context)
    frames = np.random.default_rng(4).permutation(total)
    expected = []
    for frame in frames:
        one = np.searchsorted(offsets, frame, side="right") - 1
        around = np.arange(frame - context, frame + context + 1).clip(offsets[one], offsets[one + 1] - 1)
        expected.append(x[around].ravel())
    got = spliced.rows(frames)
    np.testing.assert_array_equal(got, np.array(expected))
    assert len(spliced) == total and got.flags.c_contiguous and got.flags.writeable


def test_splicing_stores_no_windows():
    x = np.zeros((1000, 39), dtype=np.float32)
    spliced = features.Spliced(x, np.array([0, 400, 1000]))
    assert spliced.width == 11 * 39
    assert np.shares_memory(spliced.windows, spliced.padded)
    assert spliced.padded.size == (1000 + 2 * 10) * 39
