"""Speech Commands v0.02: all 35 words as log-mel spectrograms (0.8 GB); too large to be fetched for you.

    python datasets/speech_commands_35/prepare.py      # or: python -m implementations prepare speech_commands_35

reads the folder speech_commands_v0.02 below PARATRAIN_DATA (a folder for each word, or the archive as published) and
writes results/data/speech_commands_35: the clips of 16,000 samples as (1, 128, 32) float16, decibels from -80 to 0;
parts are disjoint in speakers. Clip by clip, so that memory stays small.
"""

import sys
from pathlib import Path

RECIPE = 1  # raise it when the modules called here change what is written: data is then prepared anew
ARCHIVE = "speech_commands_v0.02.tar.gz"


def prepare(raw, out, card):
    """Read the user's folder into arrays in ``out``; returns the summary's facts."""
    from implementations.data import sources
    from implementations.data.archives import unpack
    from implementations.speech import commands35, logmel

    folder = sources.in_place(card)
    if (folder / ARCHIVE).is_file() and not any((folder / word).is_dir() for word in commands35.WORDS):
        unpack(folder / ARCHIVE, raw / "unpacked")
        folder = raw / "unpacked"
    return commands35.write(out, folder, logmel.PAPER)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))
