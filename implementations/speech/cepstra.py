"""Mel-frequency cepstra of sound, as Kaldi makes them."""

from __future__ import annotations

import numpy as np

FRAMES_PER_S = 100
CEPSTRA = 13


def mfcc(samples: np.ndarray, rate: int) -> np.ndarray:
    """C0 to C12 of 25 ms windows every 10 ms, (frames, 13) float32, from float samples of at most 1.

    23 mel filters from 20 Hz to half the rate, no dither, so that the same sound gives the same values. There are
    ``len(samples) / rate * 100`` frames, rounded; windows at the edges see the sound mirrored.
    """
    import kaldi_native_fbank

    options = kaldi_native_fbank.MfccOptions()
    options.frame_opts.samp_freq = rate
    options.frame_opts.frame_shift_ms = 1000 / FRAMES_PER_S
    options.frame_opts.dither = 0
    options.frame_opts.snip_edges = False
    options.num_ceps = CEPSTRA
    options.use_energy = False
    computer = kaldi_native_fbank.OnlineMfcc(options)
    computer.accept_waveform(rate, (samples * 32768).tolist())  # Kaldi's scale
    computer.input_finished()
    return np.array([computer.get_frame(frame) for frame in range(computer.num_frames_ready)], np.float32)
