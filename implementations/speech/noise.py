"""Noise for generated speech."""

from __future__ import annotations

import numpy as np


def add(
    sound: np.ndarray, speech_power: float, snr_db: tuple[float, float], draws: np.random.Generator
) -> np.ndarray:
    """The sound in white or pink noise (even odds), float32; the noise is so many decibels below ``speech_power``.

    How many is drawn between the two of ``snr_db``; ``speech_power`` is the mean square of the speech in the sound,
    pauses aside.
    """
    spectrum = np.fft.rfft(draws.standard_normal(len(sound)))
    if draws.random() < 0.5:
        spectrum /= np.sqrt(np.maximum(np.arange(len(spectrum)), 1))  # pink: power falls with frequency
    noise = np.fft.irfft(spectrum, len(sound))
    ratio = 10 ** (draws.uniform(*snr_db) / 10)
    noise *= np.sqrt(speech_power / ratio / np.mean(np.square(noise)))
    return (sound + noise).astype(np.float32)
