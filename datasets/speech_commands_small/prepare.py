"""Speech Commands' official test set: 4,890 real recordings of single words as log-mel spectrograms (19 MB).

    python -m implementations prepare speech_commands_small

writes results/data/speech_commands_small: 3,448 train, 482 valid and 960 test clips of one second
as (1, 40, 49) float16, decibels from -80 to 0. No speaker is in two parts. Takes about 10 s on one core.
"""

import sys
from pathlib import Path

RECIPE = 1  # raise it when the modules called here change what is written: data is then prepared anew


def prepare(raw, out, card):
    """Turn the archive and the index in ``raw`` into arrays in ``out``; returns the summary's facts."""
    from implementations.data.archives import unpack
    from implementations.speech import commands, keywords, logmel

    archive, index = (raw / file.name for file in card.files)
    clips = raw / "unpacked"
    unpack(archive, clips)
    return keywords.write(out, commands.read(clips, index), commands.LABELS, logmel.SMALL)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))
