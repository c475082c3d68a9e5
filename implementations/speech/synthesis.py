"""Generated speech: espeak-ng out of a wheel, without root or sound card, as samples in memory. Never real speech."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np

from implementations.errors import UserError

RATE = 16000  # samples a second of what is returned

# espeak-ng's dialects of English, and variants of its voices, that sound different. Variants with breath (f2, f3, f5,
# whisper, ...) and Klatt voices are left out: their noise differs from run to run.
DIALECTS = (
    "en",
    "en-us",
    "en-us-nyc",
    "en-029",
    "en-gb-scotland",
    "en-gb-x-rp",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
)
MALE = (
    ("m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8")
    + ("Gene", "Michael", "Mike", "gustave", "miguel", "paul", "robert", "travis")
)  # fmt: skip
FEMALE = ("f1", "f4", "Andrea", "Annie", "aunty", "belinda", "grandma", "linda", "shelby", "steph")


@dataclass(frozen=True)
class Speaker:
    """Whoever speaks: ``voice`` is DIALECT or DIALECT+VARIANT, ``rate`` words a minute, ``pitch`` 0 to 99."""

    voice: str
    rate: int = 175
    pitch: int = 50


Speak = Callable[[str, Speaker], np.ndarray]


@contextmanager
def synthesiser() -> Iterator[Speak]:
    """A function of text and speaker, for as long as the process behind it lives.

    ``with synthesiser() as speak: samples = speak("one two", Speaker("en-us+m3"))``. Samples are float32 at ``RATE``,
    of about 1 at most. Texts may hold espeak-ng's phonemes in ``[[...]]``. The same calls in the same order give the
    same samples; a call's depend on those before it, as the voices waver. UserError if the wheel is missing or a
    voice is unknown (espeak-ng itself takes an unknown variant for none).
    """
    if importlib.util.find_spec("espeakng_loader") is None:
        raise UserError(
            "generated speech needs the package espeakng-loader; run: pip install -r requirements.lock"
        )
    # Isolated, so that no module beside the script hides one of Python's own.
    command = [sys.executable, "-I", str(Path(__file__).with_name("espeak.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            rate = _answer(process.stdout)["rate"]

            def speak(text: str, speaker: Speaker) -> np.ndarray:
                _check(speaker)
                process.stdin.write(json.dumps({"text": text, **asdict(speaker)}).encode() + b"\n")
                process.stdin.flush()
                answer = _answer(process.stdout)
                if "error" in answer:
                    raise UserError(f"espeak-ng: {answer['error']}")
                samples = np.frombuffer(process.stdout.read(2 * answer["samples"]), "<i2")
                return resample(samples.astype(np.float32) / 32768, rate)

            yield speak
        finally:
            process.stdin.close()
            process.stdout.close()


def resample(samples: np.ndarray, rate: int) -> np.ndarray:
    """Samples at ``RATE`` of samples at ``rate``, low-pass filtered, float32."""
    from scipy.signal import resample_poly

    common = math.gcd(rate, RATE)
    return resample_poly(samples, RATE // common, rate // common).astype(np.float32)


def _check(speaker: Speaker) -> None:
    dialect, _, variant = speaker.voice.partition("+")
    if dialect not in DIALECTS or variant not in ("", *MALE, *FEMALE):
        raise UserError(
            f"voice {speaker.voice}: allowed: DIALECT or DIALECT+VARIANT of {', '.join(DIALECTS)} and "
            f"{', '.join(MALE + FEMALE)}"
        )


def _answer(stream: IO[bytes]) -> dict[str, object]:
    line = stream.readline()
    if not line:
        raise UserError("espeak-ng ended before its time; look at what it wrote above")
    return json.loads(line)
