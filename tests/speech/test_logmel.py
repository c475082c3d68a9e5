"""Log-mel spectrograms against librosa's values, and what follows from their definition."""

import numpy as np
import pytest

from implementations.speech.logmel import PAPER, SMALL, FrontEnd, log_mel
from implementations.speech.synthesis import RATE


@pytest.fixture(scope="module")
def sound():
    """A rising tone from 0.2 s on in a noise that repeats every 1009 samples; a closed form, so that it stays."""
    number = np.arange(RATE)
    seconds = number / RATE
    tone = np.sin(2 * np.pi * (150 + 1700 * seconds) * seconds) * (seconds > 0.2)
    return (0.3 * tone + 0.1 * (number * number % 1009 / 1009 - 0.5)).astype(np.float32)


# power_to_db(melspectrogram(y=32768 * sound, sr=16000, n_mels=MELS, ...), ref=np.max) by librosa 0.11.0; for PAPER with
# pad_mode="reflect" (the default until 0.8), for SMALL with n_fft=512, win_length=480, hop_length=320, center=False
# after 16 zeros, as librosa puts a short window in the middle of its frame.
LIBROSA = [
    (
        PAPER,
        -33.453,
        {
            (0, 0): -29.469,
            (3, 31): -37.826,
            (24, 8): -35.078,
            (67, 16): -2.122,
            (70, 16): -4.131,
            (64, 2): -36.634,
            (100, 20): -33.643,
            (127, 31): -39.004,
        },
    ),
    (
        SMALL,
        -35.454,
        {
            (0, 0): -43.475,
            (2, 48): -35.014,
            (9, 14): -37.428,
            (13, 25): -38.090,
            (20, 24): -5.062,
            (21, 24): -4.188,
            (33, 40): -36.158,
            (39, 48): -41.401,
        },
    ),
]


@pytest.mark.parametrize(("front_end", "mean", "values"), LIBROSA, ids=["paper", "small"])
def test_values_are_librosas(sound, front_end, mean, values):
    decibels = log_mel(sound, front_end)
    assert decibels.shape == (front_end.mels, front_end.frames(RATE)) and decibels.dtype == np.float32
    assert decibels.mean() == pytest.approx(mean, abs=2e-3)
    for place, value in values.items():
        assert decibels[place] == pytest.approx(value, abs=2e-3), place


def test_as_many_values_as_the_papers_network_has_inputs():
    assert PAPER.mels * PAPER.frames(RATE) == 4096
    assert (SMALL.mels, SMALL.frames(RATE)) == (40, 49)


@pytest.mark.parametrize("front_end", [PAPER, SMALL, FrontEnd(64, 1024, 1000, True)])
def test_loudness_has_no_say_and_the_range_is_80_db(sound, front_end):
    decibels = log_mel(sound, front_end)
    assert decibels.max() == 0
    np.testing.assert_allclose(log_mel(sound / 50, front_end), decibels, atol=1e-2)
    # A second of which half is quieter by 120 dB than the rest.
    assert log_mel(sound * np.where(np.arange(RATE) < RATE // 2, 1, 1e-6), front_end).min() == -80
    np.testing.assert_array_equal(log_mel(np.zeros(RATE, np.float32), front_end), 0)


def test_a_tone_is_loudest_in_the_band_that_holds_it():
    """Slaney's scale: 3 mel to 200 Hz up to 1 kHz, then 27 to a factor of 6.4; a band is two of its steps wide."""
    top = 15 + 27 * np.log(8) / np.log(6.4)
    for hertz, mel in ((500, 7.5), (1000, 15), (3200, 15 + 27 * np.log(3.2) / np.log(6.4))):
        tone = np.sin(2 * np.pi * hertz * np.arange(RATE) / RATE).astype(np.float32)
        band = log_mel(tone, PAPER)[:, 16].argmax()
        assert abs(mel / top * (PAPER.mels + 1) - (band + 1)) < 1
