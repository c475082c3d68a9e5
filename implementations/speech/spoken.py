"""Keywords spoken by espeak-ng's voices, a clip of one second each, shifted and in noise. Not real speech."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from implementations.seeds import numpy_stream
from implementations.speech import noise
from implementations.speech.keywords import SAMPLES, Clip
from implementations.speech.synthesis import DIALECTS, RATE, Speak, Speaker

# The words of Speech Commands v2 (Warden 2018, arXiv 1804.03209), all of which Yuan et al. 2019 tell apart.
WORDS = (
    "backward", "bed", "bird", "cat", "dog", "down", "eight", "five", "follow", "forward", "four", "go", "happy",
    "house", "learn", "left", "marvin", "nine", "no", "off", "on", "one", "right", "seven", "sheila", "six", "stop",
    "three", "tree", "two", "up", "visual", "wow", "yes", "zero",
)  # fmt: skip

# Of each part: speakers, each of whom says every word once, and voices' variants, which no other part has.
PARTS = {
    "train": (
        160,
        ("m1", "m3", "m4", "m5", "m7", "Gene", "gustave", "paul", "robert")
        + ("f1", "Annie", "belinda", "shelby", "steph"),
    ),
    "valid": (20, ("m2", "Mike", "f4", "aunty")),
    "test": (40, ("m6", "m8", "miguel", "Michael", "travis", "Andrea", "grandma", "linda")),
}
RATES, PITCHES = (120, 220), (20, 80)  # of a speaker
RATE_SPREAD, PITCH_SPREAD = 20, 10  # of one speaker's words, on both sides
SHIFT_S = 0.1  # of a word from the middle of its clip, to either side
SNR_DB = (5, 25)

_MASTER = 0  # the data set is one and the same in every experiment


def clips(part: str, speak: Speak) -> Iterator[Clip]:
    """The clips of a part, speaker by speaker."""
    speakers, variants = PARTS[part]
    for number in range(speakers):
        draws = numpy_stream(_MASTER, "data", "generated_keywords", part, number)
        voice = f"{draws.choice(DIALECTS)}+{variants[number % len(variants)]}"
        rate, pitch = int(draws.integers(*RATES)), int(draws.integers(*PITCHES))
        for word in WORDS:
            speaker = Speaker(
                voice,
                rate=rate + int(draws.integers(-RATE_SPREAD, RATE_SPREAD + 1)),
                pitch=pitch + int(draws.integers(-PITCH_SPREAD, PITCH_SPREAD + 1)),
            )
            called = f"{part}{number:03d}_{voice}"
            yield Clip(f"{called}_{word}", word, called, in_noise(speak(word, speaker), draws))


def in_noise(speech: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """A second of sound: the speech near its middle, cut where it is longer, in noise over all of it."""
    most = round(SHIFT_S * RATE)
    start = (SAMPLES - len(speech)) // 2 + int(draws.integers(-most, most + 1))
    whole = np.pad(speech, SAMPLES)  # so that a window at any place is inside
    clip = whole[SAMPLES - start : 2 * SAMPLES - start]
    return noise.add(clip, float(np.mean(np.square(speech))), SNR_DB, draws)
