import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from implementations.errors import UserError
from implementations.speech import hmm


def path_score(graph, path, scores, loop_logs):
    """The model's definition, step by step."""
    leave = np.log1p(-np.exp(loop_logs))
    total = graph.start_logs[path[0]] + graph.end_logs[path[-1]] + leave[graph.classes[path[-1]]]
    for before, after in itertools.pairwise(path):
        if before == after:
            total += loop_logs[graph.classes[after]]
        else:
            ways = [
                log
                for s, log in zip(graph.sources[after], graph.source_logs[after], strict=True)
                if s == before
            ]
            total += max(ways, default=-np.inf) + leave[graph.classes[before]]
    return total + sum(scores[time, graph.classes[node]] for time, node in enumerate(path))


def by_brute_force(graph, scores, loop_logs):
    paths = itertools.product(range(len(graph.classes)), repeat=len(scores))
    return max(path_score(graph, path, scores, loop_logs) for path in paths)


@st.composite
def random_graph(draw):
    nodes = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    entries = []
    for node in range(nodes):
        some = [one for one in range(-1, node) if rng.random() < 0.6] or [node - 1]
        entries.append([(one, float(np.log(rng.random()))) for one in some])
    ends = [(one, float(np.log(rng.random()))) for one in range(nodes) if rng.random() < 0.6]
    graph = hmm._graph(rng.integers(0, 3, nodes).tolist(), entries, ends or [(nodes - 1, 0.0)])
    scores = rng.normal(size=(draw(st.integers(1, 5)), 3)) * 3
    return graph, scores, np.log(rng.uniform(0.05, 0.95, 3))


@given(st.lists(random_graph(), min_size=1, max_size=3))
def test_viterbi_is_brute_force(cases):
    """Also for graphs and lengths that differ inside a batch; the path found has the score said."""
    loop_logs = cases[0][2]
    paths, finals = hmm.viterbi([c[0] for c in cases], [c[1] for c in cases], loop_logs)
    for (graph, scores, _), path, final in zip(cases, paths, finals, strict=True):
        expected = by_brute_force(graph, scores, loop_logs)
        assert final == pytest.approx(expected)
        if np.isfinite(expected):
            assert path_score(graph, path, scores, loop_logs) == pytest.approx(expected)
        else:
            assert len(path) == 0


def test_graph_of_a_transcript(tiny_lexicon):
    """One phone's chains in the silences and in either pronunciation; its mass over all ways is 1 at each choice."""
    no = tiny_lexicon.word_ids["NO"]
    graph = hmm.transcript_graph([no], tiny_lexicon)
    names = [tiny_lexicon.phones[one // 3] for one in graph.classes[::3]]
    assert names == ["SIL", "B", "A", "B", "C", "SIL"]
    assert graph.classes[:3].tolist() == [3 * tiny_lexicon.silence + state for state in range(3)]
    starts = np.exp(graph.start_logs)
    assert starts.sum() == pytest.approx(1)
    assert starts[0] == pytest.approx(0.5) and starts[3] == starts[9] == pytest.approx(0.25)
    out = np.exp(graph.end_logs)
    for source, share in zip(graph.sources.ravel(), np.exp(graph.source_logs).ravel(), strict=True):
        if source >= 0:
            out[source] += share
    np.testing.assert_allclose(out, 1)


def test_silence_is_optional_and_found(tiny_lexicon):
    on = tiny_lexicon.word_ids["ON"]
    graph = hmm.transcript_graph([on], tiny_lexicon)
    spoken = hmm.phone_classes(tiny_lexicon.pronunciations[on][0])
    quiet = hmm.phone_classes([tiny_lexicon.silence])
    for expected in (spoken, quiet + spoken, spoken + quiet, quiet + spoken + quiet):
        scores = np.full((len(expected), 3 * len(tiny_lexicon.phones)), -50.0)
        scores[np.arange(len(expected)), expected] = 0
        (path,), _ = hmm.viterbi([graph], [scores], np.full(scores.shape[1], np.log(0.5)))
        assert graph.classes[path].tolist() == expected


def test_flat_start_cuts_evenly(speak, tiny_lexicon):
    made = speak(["ann"], 6, 0)
    flat = hmm.flat_start(made, tiny_lexicon)
    for one, frames in enumerate(made.lengths):
        phones = [p for word in made.transcript(one) for p in tiny_lexicon.pronunciations[word][0]]
        expected = hmm.phone_classes([tiny_lexicon.silence, *phones, tiny_lexicon.silence])
        part = flat[made.offsets[one] : made.offsets[one + 1]]
        if frames >= len(expected):
            runs = [(value, len(list(run))) for value, run in itertools.groupby(part.tolist())]
            assert [value for value, _ in runs] == expected
            assert {length for _, length in runs} <= {frames // len(expected), -(-frames // len(expected))}


def test_staying_is_the_share_of_frames_that_stay():
    alignment = hmm.Alignment(np.array([0, 0, 0, 1, 2, 2]), np.array([1, 0, 0, 1, 1, 0], bool), 0.0)
    got = np.exp(hmm.loop_probabilities(alignment, 4))
    np.testing.assert_allclose(got, [2 / 3, 1e-4, 1 / 2, 1 / 2])


def test_training_never_loses_likelihood_and_repeats_itself(speak, tiny_lexicon):
    made = speak(["ann", "bob", "cy"], 15, 0)
    runs = [hmm.train(made, made.features, tiny_lexicon, (5, 5, 5)) for _ in range(2)]
    for passes in runs[0][2]:
        assert np.all(np.diff(passes) >= -1e-6 * np.abs(passes[:-1]))
    assert runs[0][2] == runs[1][2]
    np.testing.assert_array_equal(runs[0][1].classes, runs[1][1].classes)


def test_an_utterance_that_no_path_fits_is_named(speak, tiny_lexicon):
    made = speak(["ann"], 3, 0)
    graphs = [hmm.transcript_graph(words, tiny_lexicon) for words in made.transcripts()]
    classes = 3 * len(tiny_lexicon.phones)
    scores = np.zeros((len(made.features), classes))
    graphs[1] = hmm.transcript_graph([0] * 50, tiny_lexicon)
    with pytest.raises(UserError, match="utterance ann-1: no path through its words"):
        hmm.align(made, graphs, scores, np.full(classes, np.log(0.5)))


def test_priors():
    np.testing.assert_allclose(np.exp(hmm.log_priors(np.array([0, 0, 0, 2]), 3)), np.array([3, 0.5, 1]) / 4.5)
