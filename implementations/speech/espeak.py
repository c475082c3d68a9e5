"""A process that speaks: a JSON line for each text on standard input, samples on standard output.

espeak-ng keeps its state in globals, so it gets a process of its own (implementations.speech.synthesis starts it). The
shared library and its voices come out of the wheel espeakng-loader. First line out: ``{"rate": HERTZ}``. In:
``{"text", "voice", "rate", "pitch"}``. Out: ``{"samples": N}`` and N little-endian int16, or ``{"error": WORDS}``.
"""

import ctypes
import json
import sys

import espeakng_loader

_SYNCHRONOUS = (
    2  # AUDIO_OUTPUT_SYNCHRONOUS: samples go to a callback as AUDIO_OUTPUT_RETRIEVAL's do, without a thread
)
_BUFFER_MS = 200
_CHARACTERS = 1  # POS_CHARACTER
_UTF8_PHONEMES = 0x101  # espeakCHARS_UTF8 | espeakPHONEMES: [[...]] in a text holds phonemes
_RATE, _PITCH = 1, 3  # espeakRATE, espeakPITCH

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int16), ctypes.c_int, ctypes.c_void_p)


def main() -> None:
    """Serve until standard input ends."""
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    pieces: list[bytes] = []

    @_CALLBACK
    def keep(samples, count, events):
        if samples and count > 0:
            pieces.append(ctypes.string_at(samples, 2 * count))
        return 0

    voices = espeakng_loader.get_data_path().encode()
    rate = library.espeak_Initialize(_SYNCHRONOUS, _BUFFER_MS, voices, 0)
    library.espeak_SetSynthCallback(keep)
    answer(rate=rate)
    for line in sys.stdin:
        wanted = json.loads(line)
        pieces.clear()
        if library.espeak_SetVoiceByName(wanted["voice"].encode()):
            answer(error=f"no voice {wanted['voice']}")
            continue
        library.espeak_SetParameter(_RATE, wanted["rate"], 0)
        library.espeak_SetParameter(_PITCH, wanted["pitch"], 0)
        text = wanted["text"].encode() + b"\0"
        if library.espeak_Synth(text, len(text), 0, _CHARACTERS, 0, _UTF8_PHONEMES, None, None):
            answer(error=f"cannot speak {wanted['text']!r}")
            continue
        samples = b"".join(pieces)
        answer(samples=len(samples) // 2)
        sys.stdout.buffer.write(samples)
        sys.stdout.buffer.flush()


def answer(**values: object) -> None:
    """Write a line."""
    sys.stdout.buffer.write(json.dumps(values).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
