"""Log-mel spectrograms in decibels below a clip's loudest value: what networks that know single words see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from implementations.speech.synthesis import RATE

RANGE_DB = 80.0  # values further below the loudest are raised to this
_LEAST_POWER = 1e-10


@dataclass(frozen=True)
class FrontEnd:
    """Windows of ``window`` samples every ``shift``, ``mels`` bands from 0 to half the rate.

    ``centred`` windows have their middles at multiples of the shift, and see the sound mirrored at its edges; others
    lie inside the sound.
    """

    mels: int
    window: int
    shift: int
    centred: bool

    def frames(self, samples: int) -> int:
        """Windows of a sound of so many samples."""
        return 1 + (samples if self.centred else samples - self.window) // self.shift


# Yuan et al. 2019, by their published code: librosa.feature.melspectrogram with 128 bands and else its defaults, and
# power_to_db with ref=max. librosa mirrored the edges until 0.8 (2020) and pads them with zeros since.
PAPER = FrontEnd(mels=128, window=2048, shift=512, centred=True)  # 32 frames a second
SMALL = FrontEnd(mels=40, window=480, shift=320, centred=False)  # 49 frames a second


def log_mel(samples: np.ndarray, front_end: FrontEnd) -> np.ndarray:
    """Decibels (mels, frames), float32 from -80 to 0, of float samples of at most 1 at ``RATE``.

    librosa's formulae: a periodic Hann window, power spectrum, triangles of equal area on Slaney's mel scale, then
    ``10 log10`` of a value over the largest. Loudness has no say; sound without any is 0 throughout.
    """
    import kaldi_native_fbank

    options = kaldi_native_fbank.FbankOptions()
    framing, bands = options.frame_opts, options.mel_opts
    framing.samp_freq = RATE
    framing.frame_length_ms = 1000 * front_end.window / RATE
    framing.frame_shift_ms = 1000 * front_end.shift / RATE
    framing.window_type = "hann"
    framing.dither = 0
    framing.preemph_coeff = 0
    framing.remove_dc_offset = False
    bands.num_bins = front_end.mels
    bands.low_freq = 0
    bands.is_librosa = True
    options.use_log_fbank = False
    computer = kaldi_native_fbank.OnlineFbank(options)
    sound = np.pad(samples, front_end.window // 2, mode="reflect") if front_end.centred else samples
    computer.accept_waveform(RATE, (sound * 32768).tolist())  # as 16-bit recordings are read
    computer.input_finished()
    power = np.stack([computer.get_frame(frame) for frame in range(computer.num_frames_ready)], axis=1)
    return _decibels(power)


def _decibels(power: np.ndarray) -> np.ndarray:
    level = 10 * np.log10(np.maximum(power, _LEAST_POWER))
    return np.maximum(level - level.max(), -RANGE_DB).astype(np.float32)
