"""Switchboard, or any corpus of one's own, from Kaldi data directories; nothing can be fetched, as it is licensed.

    python datasets/switchboard/prepare.py      # or: python -m implementations prepare switchboard

reads the folder switchboard below PARATRAIN_DATA (datasets/README.md tells how to make it with Kaldi) and writes
results/data/switchboard: for train, valid (the last speakers, with a tenth of the utterances) and test the frames as
they are but for their mean and deviation, and their classes. With the folder's alignments (senones) there are frame
errors only; without, monophones are trained from its lexicon and words are decoded too.
"""

import sys
from pathlib import Path

VALID_SHARE = 0.1  # of the utterances


def prepare(raw, out, card):
    """Read the user's folder into arrays in ``out``; returns the summary's facts."""
    from implementations.data import sources
    from implementations.speech import kaldi, lexicon, prepared

    folder, deltas = sources.in_place(card), card.values["deltas"]
    words = lexicon.read(folder / "lexicon.txt")
    whole = kaldi.read_directory(folder / "train", words)
    parts = {**_held_out(whole), "test": kaldi.read_directory(folder / "test", words)}
    if not (folder / "alignments").is_dir():
        return prepared.write(out, parts, words, deltas=deltas)
    prepared.check_speakers(parts)
    classes = _count(folder / "num_pdfs")
    labels = {part: kaldi.read_alignments(folder / "alignments", one, classes) for part, one in parts.items()}
    facts = prepared.write_labelled(out, prepared.frames(parts, deltas), labels, words)
    most = 1 + max(int(one.max()) for one in labels.values())
    return facts | {"classes": classes or most, "deltas": deltas}


def _held_out(whole):
    """Speakers from the end of the list, until they have a tenth of the utterances, are valid; the others train."""
    import numpy as np

    from implementations.errors import UserError

    held_out = []
    for speaker in dict.fromkeys(reversed(whole.speakers.tolist())):
        if np.isin(whole.speakers, held_out).sum() >= VALID_SHARE * len(whole):
            break
        held_out.append(speaker)
    valid = np.isin(whole.speakers, held_out)
    if valid.all():
        raise UserError("train: one speaker alone; at least two are needed, as the last are held out")
    return {"train": whole.select(np.flatnonzero(~valid)), "valid": whole.select(np.flatnonzero(valid))}


def _count(path):
    """The number of classes that a file gives, or None where there is none."""
    from implementations.errors import UserError

    if not path.is_file():
        return None
    text = path.read_text().strip()
    if not text.isdigit() or not int(text):
        raise UserError(f"{path}: got {text!r}; needed: the number of classes of the alignments")
    return int(text)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))
