"""Hidden Markov models of transcripts: their states, the best path through them, and training by that path.

Three states a phone, left to right; state k of phone p is class 3 p + k everywhere. Any word may be said in each of
its pronunciations, and silence may stand before, between and after words.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from implementations.errors import UserError
from implementations.speech import gmm
from implementations.speech.corpus import STATES_PER_PHONE, Corpus
from implementations.speech.lexicon import Lexicon

log = logging.getLogger(__name__)

SCHEDULE = (6, 4, 4, 12)  # passes with 1, 2, 4 and 8 components

_BATCH = 64  # utterances aligned at once
_LOOP = np.log(0.5)


@dataclass(frozen=True)
class Graph:
    """The states of one utterance, numbered so that no transition goes back.

    ``classes`` (nodes,) is what each node emits. ``sources`` (nodes, most) lists where a node is entered from,
    padded with -1, and ``source_logs`` the log share of that way among the ways out of the source: staying or
    leaving is weighed apart, by class. ``start_logs`` and ``end_logs`` (nodes,) are -inf where a path cannot.
    """

    classes: np.ndarray
    sources: np.ndarray
    source_logs: np.ndarray
    start_logs: np.ndarray
    end_logs: np.ndarray


def phone_classes(phones: Sequence[int]) -> list[int]:
    """Classes of the states of a row of phones."""
    return [STATES_PER_PHONE * phone + state for phone in phones for state in range(STATES_PER_PHONE)]


def transcript_graph(words: Sequence[int], lexicon: Lexicon) -> Graph:
    """The graph of a transcript; silence and no silence are equally likely, and so are a word's pronunciations."""
    classes: list[int] = []
    entries: list[list[tuple[int, float]]] = []

    def chain(phones: Sequence[int], sources: list[tuple[int, float]], weight: float) -> int:
        for position, one in enumerate(phone_classes(phones)):
            inner = [(len(classes) - 1, 0.0)]
            entries.append(inner if position else [(node, share + weight) for node, share in sources])
            classes.append(one)
        return len(classes) - 1

    def optional_silence(sources: list[tuple[int, float]]) -> list[tuple[int, float]]:
        half = np.log(0.5)
        end = chain([lexicon.silence], sources, half)
        return [(node, share + half) for node, share in sources] + [(end, 0.0)]

    ends = optional_silence([(-1, 0.0)])  # node -1 is the start
    for word in words:
        spoken = lexicon.pronunciations[word]
        weight = -np.log(len(spoken))
        ends = optional_silence([(chain(phones, ends, weight), 0.0) for phones in spoken])
    return _graph(classes, entries, ends)


def _graph(
    classes: list[int], entries: list[list[tuple[int, float]]], ends: list[tuple[int, float]]
) -> Graph:
    nodes = len(classes)
    most = max(1, max(sum(node >= 0 for node, _ in some) for some in entries))
    sources = np.full((nodes, most), -1, dtype=np.int64)
    logs = np.full((nodes, most), -np.inf)
    start, end = np.full(nodes, -np.inf), np.full(nodes, -np.inf)
    for node, some in enumerate(entries):
        inner = [(source, share) for source, share in some if source >= 0]
        for place, (source, share) in enumerate(inner):
            sources[node, place], logs[node, place] = source, share
        for source, share in some:
            if source < 0:
                start[node] = share
    for node, share in ends:
        if node >= 0:
            end[node] = share
    return Graph(np.array(classes), sources, logs, start, end)


def viterbi(
    graphs: Sequence[Graph], scores: Sequence[np.ndarray], loop_logs: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    """Best paths of several utterances at once: the node of each frame, and the log score of each path.

    ``scores`` holds (frames, classes) for each utterance; ``loop_logs`` (classes,) the log probability of staying.
    A path starts and ends where its graph allows; leaving the last node counts. The score of an utterance that no
    path fits is -inf and its path empty. Ties go to staying, then to the earlier source.
    """
    lengths = np.array([len(one) for one in scores])
    longest, widest = lengths.max(), max(len(graph.classes) for graph in graphs)
    many, most = len(graphs), max(graph.sources.shape[1] for graph in graphs)
    sources = np.full((many, widest, most), 0)
    enter = np.full((many, widest, most), -np.inf)
    emit = np.full((many, longest, widest), -np.inf)
    start, end = np.full((many, widest), -np.inf), np.full((many, widest), -np.inf)
    stay = np.full((many, widest), -np.inf)
    leave_logs = np.log(-np.expm1(np.minimum(loop_logs, -1e-12)))
    for row, (graph, score) in enumerate(zip(graphs, scores, strict=True)):
        nodes, ways = graph.sources.shape
        known = graph.sources >= 0
        sources[row, :nodes, :ways] = np.where(known, graph.sources, 0)
        leave = leave_logs[graph.classes]
        enter[row, :nodes, :ways] = np.where(known, graph.source_logs + leave[graph.sources], -np.inf)
        emit[row, : len(score), :nodes] = score[:, graph.classes]
        start[row, :nodes], end[row, :nodes] = graph.start_logs, graph.end_logs + leave
        stay[row, :nodes] = loop_logs[graph.classes]
    came = np.zeros((longest, many, widest), dtype=np.int8)  # 0 stayed, 1 + place of the source otherwise
    flat = sources + (np.arange(many) * widest)[:, None, None]
    best = start + emit[:, 0]
    final = np.full(many, -np.inf)
    last = np.zeros(many, dtype=np.int64)

    def finish(time: int) -> None:
        rows = np.flatnonzero(lengths == time + 1)
        ended = best[rows] + end[rows]
        last[rows] = ended.argmax(axis=1)
        final[rows] = ended.max(axis=1)

    finish(0)
    for time in range(1, longest):
        held = best.ravel()
        new = best + stay
        for place in range(most):
            moved = held[flat[:, :, place]] + enter[:, :, place]
            better = moved > new
            new[better] = moved[better]
            came[time][better] = place + 1
        best = new + emit[:, time]
        finish(time)
    paths = []
    for row in range(many):
        if not np.isfinite(final[row]):
            paths.append(np.empty(0, dtype=np.int64))
            continue
        path = np.empty(lengths[row], dtype=np.int64)
        node = last[row]
        for time in range(lengths[row] - 1, -1, -1):
            path[time] = node
            if step := came[time, row, node]:
                node = sources[row, node, step - 1]
        paths.append(path)
    return paths, final


@dataclass(frozen=True)
class Alignment:
    """Class of every frame (frames,), and where a frame enters a node anew (frames,) bool, with the paths' score."""

    classes: np.ndarray
    entered: np.ndarray
    log_likelihood: float


@dataclass(frozen=True)
class Monophones:
    """A trained recogniser's acoustic side: a mixture and a log probability of staying for each class."""

    mixtures: gmm.Mixtures
    loop_logs: np.ndarray

    def log_likelihoods(self, x: np.ndarray) -> np.ndarray:
        """Log density of frames (frames, values) in each class, (frames, classes) float32."""
        return self.mixtures.log_likelihoods(x)


def align(corpus: Corpus, graphs: Sequence[Graph], scores: np.ndarray, loop_logs: np.ndarray) -> Alignment:
    """Best path of every utterance through its graph, given ``scores`` (all frames, classes).

    UserError names an utterance that no path fits, because it is too short or a score is not finite.
    """
    classes = np.empty(len(scores), dtype=np.int64)
    entered = np.empty(len(scores), dtype=bool)
    total = 0.0
    for batch in _batches(corpus):
        some = [scores[corpus.offsets[one] : corpus.offsets[one + 1]] for one in batch]
        paths, finals = viterbi([graphs[one] for one in batch], some, loop_logs)
        for one, path, final in zip(batch, paths, finals, strict=True):
            if not len(path):
                frames = corpus.lengths[one]
                raise UserError(
                    f"utterance {corpus.names[one]}: no path through its words fits its {frames} frames; it is too "
                    "short or holds values that are not finite: leave it out"
                )
            rows = slice(corpus.offsets[one], corpus.offsets[one + 1])
            classes[rows] = graphs[one].classes[path]
            entered[rows] = np.diff(path, prepend=-1) != 0
            total += float(final)
    return Alignment(classes, entered, total)


def flat_start(corpus: Corpus, lexicon: Lexicon) -> np.ndarray:
    """Class of every frame when each utterance is cut evenly: silence, words in their first pronunciation, silence."""
    parts = []
    for utterance, frames in enumerate(corpus.lengths):
        phones = [phone for word in corpus.transcript(utterance) for phone in lexicon.pronunciations[word][0]]
        row = np.array(phone_classes([lexicon.silence, *phones, lexicon.silence]))
        parts.append(row[np.arange(frames) * len(row) // frames])
    return np.concatenate(parts)


def loop_probabilities(alignment: Alignment, classes: int) -> np.ndarray:
    """Log probability of staying in each class: its share of frames that did not enter, which is most likely.

    A class never seen gets a half. Held within 1e-4 of 0 and 1, so that any path stays possible.
    """
    frames = np.bincount(alignment.classes, minlength=classes)
    entered = np.bincount(alignment.classes[alignment.entered], minlength=classes)
    share = np.where(frames, 1 - entered / np.maximum(frames, 1), 0.5)
    return np.log(np.clip(share, 1e-4, 1 - 1e-4))


def train(
    corpus: Corpus, x: np.ndarray, lexicon: Lexicon, schedule: Sequence[int] = SCHEDULE
) -> tuple[Monophones, Alignment, list[list[float]]]:
    """Flat-start Viterbi training on frames ``x`` (frames, values) of ``corpus``.

    ``schedule`` has the number of passes before each doubling of components; a pass aligns, then re-estimates
    mixtures and staying. Returns the model, its alignment, and the log likelihood a frame of each pass, a list for
    each number of components, in which it does not fall.
    """
    classes = STATES_PER_PHONE * len(lexicon.phones)
    graphs = [transcript_graph(words, lexicon) for words in corpus.transcripts()]
    model = Monophones(gmm.single(x, flat_start(corpus, lexicon), classes), np.full(classes, _LOOP))
    history: list[list[float]] = []
    for doubling, passes in enumerate(schedule):
        history.append([])
        for number in range(passes):
            alignment = align(corpus, graphs, model.log_likelihoods(x), model.loop_logs)
            history[-1].append(alignment.log_likelihood / len(x))
            mixtures = (
                gmm.split(model.mixtures, alignment.classes) if doubling and not number else model.mixtures
            )
            model = Monophones(
                gmm.reestimate(mixtures, x, alignment.classes), loop_probabilities(alignment, classes)
            )
            done = sum(map(len, history))
            log.info(
                "monophones: pass %d of %d, log likelihood %.2f a frame", done, sum(schedule), history[-1][-1]
            )
    return model, align(corpus, graphs, model.log_likelihoods(x), model.loop_logs), history


def log_priors(classes_f: np.ndarray, classes: int) -> np.ndarray:
    """Log share of each class among aligned frames (classes,); a class without frames counts as half a frame."""
    counts = np.maximum(np.bincount(classes_f, minlength=classes), 0.5)
    return np.log(counts / counts.sum())


def _batches(corpus: Corpus) -> Iterator[np.ndarray]:
    """Utterances of like length together, so that little is padded."""
    order = np.argsort(corpus.lengths, kind="stable")
    return iter(np.split(order, range(_BATCH, len(order), _BATCH)))
