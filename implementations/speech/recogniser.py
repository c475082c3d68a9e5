"""The whole recogniser: trained on a corpus, settings chosen on held-out speakers, scored once on the test set."""

from __future__ import annotations

import itertools
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from implementations.errors import UserError
from implementations.speech import bigram, gmm, hmm, wer
from implementations.speech.corpus import Corpus
from implementations.speech.decoder import Decoder, DecoderSettings
from implementations.speech.features import recogniser_features
from implementations.speech.lexicon import Lexicon

# On AN4 the best lies inside, for mixtures (12, -20) as for a small network (8, -20).
LM_WEIGHTS = (2.0, 4.0, 6.0, 8.0, 12.0, 16.0)
WORD_PENALTIES = (-30.0, -20.0, -10.0, 0.0, 10.0)

_MIXTURES = ("log_weights", "means", "variances", "floor")
_ALIGNMENT = ("classes", "entered", "log_likelihood")


@dataclass(frozen=True)
class Recogniser:
    """Acoustic model, the training frames' alignment (what a network is trained on), and the decoder."""

    lexicon: Lexicon
    monophones: hmm.Monophones
    alignment: hmm.Alignment
    log_priors: np.ndarray  # (classes,) for a network's scores: log posterior minus log prior
    decoder: Decoder


def acoustic_frames(corpus: Corpus) -> np.ndarray:
    """What the recogniser sees of a corpus: static values, deltas, delta-deltas, normalised (frames, 3 x values)."""
    return recogniser_features(corpus.features, corpus.offsets, corpus.speakers)


def train(corpus: Corpus, lexicon: Lexicon, schedule: Sequence[int] = hmm.SCHEDULE) -> Recogniser:
    """A monophone recogniser of a corpus. Deterministic: the same corpus gives the same recogniser."""
    monophones, alignment, _ = hmm.train(corpus, acoustic_frames(corpus), lexicon, schedule)
    logs = bigram.witten_bell(corpus.transcripts(), len(lexicon.words))
    return Recogniser(
        lexicon,
        monophones,
        alignment,
        hmm.log_priors(alignment.classes, len(monophones.loop_logs)),
        Decoder(lexicon, logs, monophones.loop_logs),
    )


def save(path: Path, recogniser: Recogniser) -> None:
    """Write all but the lexicon, which belongs to the corpus, into one ``.npz`` file."""
    mixtures, alignment = recogniser.monophones.mixtures, recogniser.alignment
    np.savez(
        path,
        **{field: getattr(mixtures, field) for field in _MIXTURES},
        **{field: np.asarray(getattr(alignment, field)) for field in _ALIGNMENT},
        loop_logs=recogniser.monophones.loop_logs,
        bigram_logs=recogniser.decoder.bigram_logs,
    )


def load(path: Path, lexicon: Lexicon) -> Recogniser:
    """What ``save`` wrote. UserError names a file that is missing or damaged."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            mixtures = gmm.Mixtures(*(stored[field] for field in _MIXTURES))
            classes, entered, log_likelihood = (stored[field] for field in _ALIGNMENT)
            loop_logs, bigram_logs = stored["loop_logs"], stored["bigram_logs"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: no recogniser that can be read ({error}); train it again") from error
    return Recogniser(
        lexicon,
        hmm.Monophones(mixtures, loop_logs),
        hmm.Alignment(classes, entered, float(log_likelihood)),
        hmm.log_priors(classes, len(loop_logs)),
        Decoder(lexicon, bigram_logs, loop_logs),
    )


def tune(
    decoder: Decoder,
    corpus: Corpus,
    scores: np.ndarray,
    lm_weights: Sequence[float] = LM_WEIGHTS,
    word_penalties: Sequence[float] = WORD_PENALTIES,
    start: DecoderSettings | None = None,
) -> tuple[DecoderSettings, float]:
    """Settings with the least word error rate on held-out speakers (never the test set's), and that rate.

    Tries the whole grid, or, from a ``start`` on it, moves to the best neighbour as long as there is a better one,
    which takes a quarter of the time and may stop short of the best. Of equals the smallest weight is taken, then the
    penalty nearest 0.
    """
    references, names = corpus.transcripts(), corpus.names.tolist()
    weights, penalties = sorted(lm_weights), sorted(word_penalties)
    tried: dict[tuple[int, int], tuple[float, float, float]] = {}

    def cost(place: tuple[int, int]) -> tuple[float, float, float]:
        if place not in tried:
            one = DecoderSettings(weights[place[0]], penalties[place[1]])
            heard = decoder.decode(scores, corpus.offsets, one, names)
            tried[place] = (wer.word_errors(references, heard).rate, one.lm_weight, abs(one.word_penalty))
        return tried[place]

    grid = set(itertools.product(range(len(weights)), range(len(penalties))))
    if start is None:
        best = min(sorted(grid), key=cost)
    else:
        now, best = None, (weights.index(start.lm_weight), penalties.index(start.word_penalty))
        while now != best:
            now = best
            near = {(now[0] + a, now[1] + b) for a, b in ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))}
            best = min(sorted(near & grid), key=cost)
    return DecoderSettings(weights[best[0]], penalties[best[1]]), tried[best][0]


def score(decoder: Decoder, corpus: Corpus, scores: np.ndarray, settings: DecoderSettings) -> wer.WordErrors:
    """Word errors of each utterance of a corpus decoded with these settings."""
    heard = decoder.decode(scores, corpus.offsets, settings, corpus.names.tolist())
    return wer.word_errors(corpus.transcripts(), heard)
