"""The whole recogniser: trained on a corpus, settings chosen on held-out speakers, scored once on the test set."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from implementations.speech import bigram, gmm, hmm, wer
from implementations.speech.corpus import Corpus
from implementations.speech.decoder import Decoder, DecoderSettings
from implementations.speech.features import recogniser_features
from implementations.speech.lexicon import Lexicon

# On AN4 the best lies inside, for mixtures (12, -20) as for a small network (8, -20).
LM_WEIGHTS = (2.0, 4.0, 6.0, 8.0, 12.0, 16.0)
WORD_PENALTIES = (-30.0, -20.0, -10.0, 0.0, 10.0)

_MIXTURES = ("log_weights", "means", "variances", "floor")


@dataclass(frozen=True)
class Recogniser:
    """Acoustic model and decoder; both take corpora as ``acoustic`` makes them."""

    lexicon: Lexicon
    monophones: hmm.Monophones
    decoder: Decoder

    def scores(self, corpus: Corpus) -> np.ndarray:
        """Log density of every frame in each class, (frames, classes) float32."""
        return self.monophones.log_likelihoods(corpus.features)

    def align(self, corpus: Corpus) -> hmm.Alignment:
        """The class of every frame, given what was said; UserError names an utterance that no path fits."""
        graphs = [hmm.transcript_graph(words, self.lexicon) for words in corpus.transcripts()]
        return hmm.align(corpus, graphs, self.scores(corpus), self.monophones.loop_logs)


def acoustic(corpus: Corpus) -> Corpus:
    """The corpus with static values, deltas and delta-deltas, normalised: (frames, 3 x values)."""
    return replace(corpus, features=recogniser_features(corpus.features, corpus.offsets, corpus.speakers))


def train(
    corpus: Corpus, lexicon: Lexicon, schedule: Sequence[int] = hmm.SCHEDULE
) -> tuple[Recogniser, hmm.Alignment]:
    """A monophone recogniser of a corpus, and its alignment, which is what a network is trained on.

    Deterministic: the same corpus gives the same recogniser, bit for bit on one machine and one BLAS thread.
    """
    monophones, alignment, _ = hmm.train(corpus, corpus.features, lexicon, schedule)
    logs = bigram.witten_bell(corpus.transcripts(), len(lexicon.words))
    return Recogniser(lexicon, monophones, Decoder(lexicon, logs, monophones.loop_logs)), alignment


def save(folder: Path, recogniser: Recogniser) -> None:
    """Write all but the lexicon, which belongs to the corpus, as ``recogniser_*.npy`` arrays."""
    arrays = {name: getattr(recogniser.monophones.mixtures, name) for name in _MIXTURES}
    arrays["loop_logs"] = recogniser.monophones.loop_logs
    arrays["bigram_logs"] = recogniser.decoder.bigram_logs
    for name, array in arrays.items():
        np.save(_path(folder, name), array, allow_pickle=False)


def load(folder: Path, lexicon: Lexicon) -> Recogniser:
    """What ``save`` wrote."""

    def stored(name: str) -> np.ndarray:
        return np.load(_path(folder, name), allow_pickle=False)

    loop_logs = stored("loop_logs")
    mixtures = gmm.Mixtures(*map(stored, _MIXTURES))
    decoder = Decoder(lexicon, stored("bigram_logs"), loop_logs)
    return Recogniser(lexicon, hmm.Monophones(mixtures, loop_logs), decoder)


def is_saved(folder: Path) -> bool:
    """Whether the folder holds a recogniser."""
    return _path(folder, "bigram_logs").exists()


def _path(folder: Path, name: str) -> Path:
    return folder / f"recogniser_{name}.npy"


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
