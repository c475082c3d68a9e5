"""From recordings to word error rate, on a corpus that is written, read, trained on and decoded here."""

import subprocess
import sys

import numpy as np
import pytest

from implementations.speech import corpus, hmm, recogniser, wer


@pytest.fixture(scope="module")
def parts(speak, tiny_lexicon, tmp_path_factory):
    """Training, held-out and test speakers, by way of the disk."""
    folder = tmp_path_factory.mktemp("tiny")
    made = {
        "train": speak([f"t{n}" for n in range(6)], 20, 1),
        "valid": speak(["v0", "v1"], 15, 2),
        "test": speak(["x0", "x1", "x2"], 15, 3),
    }
    corpus.write(folder, {part: recogniser.acoustic(one) for part, one in made.items()}, tiny_lexicon)
    return {part: corpus.read(folder, part) for part in made}


@pytest.fixture(scope="module")
def both(parts, tiny_lexicon):
    return recogniser.train(parts["train"], tiny_lexicon, (6, 3))


@pytest.fixture(scope="module")
def trained(both):
    return both[0]


@pytest.fixture(scope="module")
def alignment(both):
    return both[1]


@pytest.fixture(scope="module")
def classes(tiny_lexicon):
    return 3 * len(tiny_lexicon.phones)


def test_end_to_end(parts, trained):
    settings, rate = recogniser.tune(
        trained.decoder,
        parts["valid"],
        trained.scores(parts["valid"]),
        lm_weights=(1.0, 5.0),
        word_penalties=(-5.0, 0.0),
    )
    scores = trained.scores(parts["test"])
    errors = recogniser.score(trained.decoder, parts["test"], scores, settings)
    assert errors.words.sum() == len(parts["test"].words)
    assert rate < 0.1 and errors.rate < 0.1  # guessing the commonest word gets 3 of 4 wrong
    interval = wer.interval(errors, parts["test"].speakers)
    assert interval.low <= errors.rate <= interval.high


def test_alignment_follows_the_transcript(parts, alignment, tiny_lexicon):
    """Without silence and repeats, an utterance's phones are those of its words in one pronunciation each."""
    train = parts["train"]
    for one in range(0, len(train), 7):
        rows = slice(train.offsets[one], train.offsets[one + 1])
        entered = alignment.classes[rows][alignment.entered[rows]]
        phones = [int(c) // 3 for c in entered[::3] if c // 3 != tiny_lexicon.silence]
        assert entered.tolist() == hmm.phone_classes((entered[::3] // 3).tolist())
        for word in train.transcript(one):
            spoken = [
                sounds
                for sounds in tiny_lexicon.pronunciations[word]
                if tuple(phones[: len(sounds)]) == sounds
            ]
            assert spoken
            phones = phones[len(spoken[0]) :]
        assert phones == []


def test_posteriors_are_scores_once_priors_are_off(parts, trained, alignment, classes):
    """A network that knew the mixtures' posteriors would decode as they do: Bayes' rule, frame by frame."""
    test = parts["test"]
    scores = trained.scores(test).astype(np.float64)
    log_priors = hmm.log_priors(alignment.classes, classes)
    joint = scores + log_priors
    posteriors = joint - np.logaddexp.reduce(joint, axis=1, keepdims=True)
    setting = recogniser.DecoderSettings(2.0, 0.0)
    decode = trained.decoder.decode
    assert decode(posteriors - log_priors, test.offsets, setting) == decode(scores, test.offsets, setting)


def test_ties_of_settings_go_to_the_mildest(parts, trained, classes):
    valid = parts["valid"]
    scores = np.zeros((len(valid.features), classes))
    settings, _ = recogniser.tune(trained.decoder, valid, scores, (9.0, 3.0), (-1000.0, -2000.0))
    assert settings == recogniser.DecoderSettings(3.0, -1000.0)


def test_a_search_from_a_start_ends_where_no_neighbour_is_better(parts, trained, classes):
    valid = parts["valid"].select(range(12))
    noise = np.random.default_rng(0).normal(size=(len(valid.features), classes)) * 3
    scores = trained.scores(valid) + noise
    grid = ((1.0, 2.0, 4.0, 8.0), (-20.0, -10.0, 0.0, 10.0))
    _, least = recogniser.tune(trained.decoder, valid, scores, *grid)
    found, rate = recogniser.tune(
        trained.decoder, valid, scores, *grid, start=recogniser.DecoderSettings(8.0, 10.0)
    )
    assert least <= rate == recogniser.score(trained.decoder, valid, scores, found).rate
    place = [
        axis.index(value) for axis, value in zip(grid, (found.lm_weight, found.word_penalty), strict=True)
    ]
    for axis, step in ((0, -1), (0, 1), (1, -1), (1, 1)):
        other = list(place)
        other[axis] += step
        if 0 <= other[axis] < 4:
            neighbour = recogniser.DecoderSettings(grid[0][other[0]], grid[1][other[1]])
            assert recogniser.score(trained.decoder, valid, scores, neighbour).rate >= rate


def test_saved_and_loaded_it_is_the_same(parts, trained, tiny_lexicon, tmp_path):
    assert not recogniser.is_saved(tmp_path)
    recogniser.save(tmp_path, trained)
    assert recogniser.is_saved(tmp_path)
    again = recogniser.load(tmp_path, tiny_lexicon)
    test, setting = parts["test"], recogniser.DecoderSettings(2.0, 0.0)
    scores = trained.scores(test)
    np.testing.assert_array_equal(again.scores(test), scores)
    assert again.decoder.decode(scores, test.offsets, setting) == trained.decoder.decode(
        scores, test.offsets, setting
    )


def test_aligning_the_training_corpus_again_gives_its_alignment(parts, trained, alignment):
    np.testing.assert_array_equal(trained.align(parts["train"]).classes, alignment.classes)


def test_speech_is_read_without_torch(root):
    program = "import sys; from implementations.speech import recogniser, kaldi, sphinx; print('torch' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "False"
