"""Generated keywords: the 35 words of Speech Commands, spoken by espeak-ng's voices in noise (63 MB). Not real speech.

    python datasets/generated_keywords/prepare.py      # or: python -m implementations prepare generated_keywords

writes results/data/generated_keywords: 5,600 train, 700 valid and 1,400 test clips of one second
as (1, 128, 32) float16, decibels from -80 to 0. Nothing is downloaded; takes about 30 s on one core.
"""

import sys
from pathlib import Path

RECIPE = 1  # raise it when the modules called here change what is written: data is then prepared anew


def prepare(raw, out, card):
    """Speak, add noise, make spectrograms; returns the summary's facts."""
    from implementations.speech import keywords, logmel, spoken, synthesis

    with synthesis.synthesiser() as speak:
        parts = {part: spoken.clips(part, speak) for part in spoken.PARTS}
        return keywords.write(out, parts, spoken.WORDS, logmel.PAPER)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))
