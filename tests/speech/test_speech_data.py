"""A speech data set as a network sees it: windows of frames, utterances as groups, words from posteriors."""

import json

import numpy as np
import pytest
import torch

from implementations.data import load
from implementations.data.summary import data_hash, sha256
from implementations.errors import UserError
from implementations.speech import corpus, prepared

SPEAKERS = {"train": ["t0", "t1", "t2", "t3"], "valid": ["v0"], "test": ["x0", "x1"]}


def summarise(folder, facts, name="tiny"):
    summary = {"name": name, "kind": "speech", **facts}
    summary["arrays"] = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in folder.glob("*.npy")
    }
    (folder / "summary.json").write_text(json.dumps(summary | {"data_hash": data_hash(summary)}))


@pytest.fixture(scope="module")
def made(speak):
    return {part: speak(names, 6, seed) for seed, (part, names) in enumerate(SPEAKERS.items(), 1)}


@pytest.fixture(scope="module")
def results(made, tiny_lexicon, tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    folder = results / "data" / "tiny"
    folder.mkdir(parents=True)
    summarise(folder, prepared.write(folder, made, tiny_lexicon, (4, 2)))
    return results


@pytest.fixture(scope="module")
def folder(results):
    return results / "data" / "tiny"


def windows_of(features):
    """Eleven frames around each, the first and last repeated: as anybody would write it down."""
    rows = [np.clip(np.arange(t - 5, t + 6), 0, len(features) - 1) for t in range(len(features))]
    return np.stack([features[row].ravel() for row in rows])


def utterances(data, split):
    """Inputs and labels, utterance by utterance."""
    x, y = data.tensors(split)
    return [
        (x[first:last].numpy(), y[first:last].numpy())
        for first, last in zip(data.groups(split)[:-1], data.groups(split)[1:])
    ]


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_windows_and_labels_of_each_utterance(results, folder, split):
    data, stored = load("tiny", results), corpus.read(folder, split)
    labels = prepared.read_labels(folder, split)
    assert data.input_shape == (11, 12) and data.features == 132 and data.sizes[split] == len(labels)
    expected = []
    for first, last in zip(stored.offsets[:-1], stored.offsets[1:]):
        expected.append((windows_of(stored.features[first:last]), labels[first:last]))
    found = utterances(data, split)
    if split == "train":  # in an order of its own
        key = lambda pair: pair[0].tobytes()  # noqa: E731
        assert [key(one) for one in found] != [key(one) for one in expected]
        found, expected = sorted(found, key=key), sorted(expected, key=key)
    assert len(found) == len(expected)
    for (x, y), (expected_x, expected_y) in zip(found, expected):
        np.testing.assert_array_equal(x, expected_x)
        np.testing.assert_array_equal(y, expected_y)


def test_frames_are_normalised(results):
    x, _ = load("tiny", results).tensors("train")
    centre = x[:, 60:72].numpy()
    assert np.abs(centre.mean(axis=0)).max() < 1e-5 and np.abs(centre.std(axis=0) - 1).max() < 1e-5


def test_chosen_samples(results):
    data = load("tiny", results)
    x, y = data.tensors("train")
    rng = np.random.default_rng(0)
    for indices in (
        rng.integers(0, len(y), 50),
        np.array([3]),
        np.array([len(y) - 1, 0]),
        np.arange(len(y))[::-1],
    ):
        some = data.samples("train", indices)
        got_x, got_y = some.take(torch.arange(len(some)))
        assert got_x.equal(x[indices.copy()]) and got_y.equal(y[indices.copy()])
    assert len(data.samples("train", np.array([], int))) == 0
    for wrong in ([len(y)], [-1], [0.5]):
        with pytest.raises(IndexError):
            data.samples("train", np.array(wrong))
    pieces = list(data.stream("train", 5, 40))
    assert torch.cat([piece for piece, _ in pieces]).equal(x[5:40])
    stored = data.split("train")
    assert stored.x.shape == (len(y), 11, 12) and np.array_equal(stored.x.reshape(len(y), -1), x.numpy())


def test_what_is_taken_is_the_takers_and_no_window_is_stored(results):
    data = load("tiny", results)
    samples = data.samples("train")
    first, _ = samples.take(torch.tensor([7, 8]))
    kept = first.clone()
    first.zero_()
    assert samples.take(torch.tensor([7, 8]))[0].equal(kept)
    frames = data.sizes["train"] + 10 * (len(data.groups("train")) - 1)
    assert samples.windows.untyped_storage().nbytes() == frames * 12 * 4
    few = data.samples("train", np.arange(5))  # of one utterance
    assert few.windows.untyped_storage().nbytes() == (data.groups("train")[1] + 10) * 12 * 4


def test_fewer_frames_are_the_first_ones_of_the_same_order(results):
    whole = load("tiny", results)
    groups = whole.groups("train")
    wanted = int(groups[4] + 5)
    some = load("tiny", results, data_size=wanted)
    assert some.groups("train").tolist() == [*groups[:5].tolist(), wanted]
    assert some.data_hash == whole.data_hash and some.sizes["train"] == wanted
    whole_x, whole_y = whole.tensors("train")
    some_x, some_y = some.tensors("train")
    assert some_y.equal(whole_y[:wanted]) and some_x[: groups[4]].equal(whole_x[: groups[4]])
    # The last utterance ends where the frames do, so its windows see nothing beyond.
    centre = whole_x[groups[4] : wanted, 60:72].numpy()
    np.testing.assert_array_equal(some_x[groups[4] :].numpy(), windows_of(centre))
    exact = load("tiny", results, data_size=int(groups[4]))
    assert exact.groups("train").tolist() == groups[:5].tolist()
    assert load("tiny", results, data_size=1).groups("train").tolist() == [0, 1]
    assert load("tiny", results, data_size=1).groups("valid").tolist() == whole.groups("valid").tolist()
    for wrong in (0, len(whole_y) + 1):
        with pytest.raises(UserError, match=rf"data_size {wrong} of tiny: allowed: 1 to {len(whole_y)}"):
            load("tiny", results, data_size=wrong)


def test_prepared_twice_it_is_the_same_to_the_bit(made, tiny_lexicon, folder, tmp_path):
    prepared.write(tmp_path, made, tiny_lexicon, (4, 2))
    names = {path.name for path in tmp_path.glob("*.npy")}
    assert names == {path.name for path in folder.glob("*.npy")}
    assert all((tmp_path / name).read_bytes() == (folder / name).read_bytes() for name in names)


def test_the_reference_is_in_the_summary(results):
    reference = load("tiny", results).summary["reference"]
    assert reference["gmm_wer_low"] <= reference["gmm_wer"] <= reference["gmm_wer_high"] < 0.5


def test_a_speaker_of_two_parts_is_named(made, speak, tiny_lexicon, tmp_path):
    with pytest.raises(UserError, match="speaker t2 is in train and in test"):
        prepared.write(tmp_path, made | {"test": speak(["x0", "t2"], 2, 9)}, tiny_lexicon)


@pytest.fixture(scope="module")
def certain(results):
    """posteriors(split, wrong frames): sure of the forced alignment, and of another class in the wrong frames."""
    data = load("tiny", results)

    def posteriors(split, wrong=()):
        labels = data.tensors(split)[1].numpy().copy()
        labels[list(wrong)] = (labels[list(wrong)] + 1) % data.classes
        logs = np.full((len(labels), data.classes), np.log(0.01 / (data.classes - 1)), np.float32)
        logs[np.arange(len(labels)), labels] = np.log(0.99)
        return logs

    return posteriors


def test_the_alignment_itself_is_understood(results, folder, certain):
    data = load("tiny", results)
    scored = data.recognition.score(certain)
    table, test = scored.utterances, corpus.read(folder, "test")
    assert scored.valid_wer == 0
    assert table.utterance.tolist() == test.names.tolist()
    assert table.speaker.tolist() == [name.split("-")[0] for name in table.utterance]
    assert table.words.tolist() == [len(said) for said in test.transcripts()]
    assert table.frames.tolist() == test.lengths.tolist()
    assert table[["substitutions", "deletions", "insertions", "frame_errors"]].to_numpy().sum() == 0
    assert all(table[name].dtype == np.int64 for name in table.columns[2:])


def test_frame_errors_are_counted_by_utterance_and_the_test_set_chooses_nothing(results, folder, certain):
    data, test = load("tiny", results), corpus.read(folder, "test")
    wrong = [int(test.offsets[1]), int(test.offsets[1]) + 1, len(test.features) - 1]
    scored = data.recognition.score(
        lambda split: certain(split) if split == "valid" else certain(split, wrong)
    )
    expected = np.zeros(len(test), int)
    expected[1], expected[-1] = 2, 1
    assert scored.utterances.frame_errors.tolist() == expected.tolist()
    useless = data.recognition.score(
        lambda split: certain(split) if split == "valid" else np.full_like(certain(split), -3.0)
    )
    assert (useless.lm_weight, useless.word_penalty, useless.valid_wer) == (
        scored.lm_weight,
        scored.word_penalty,
        0,
    )
    assert useless.utterances.frame_errors.sum() > len(test.features) / 2


def test_priors_are_those_of_the_frames_that_are_trained_on(results):
    """Posteriors equal to the priors tell nothing, so every utterance is heard alike and no word is to be had."""
    data = load("tiny", results, data_size=400)
    shares = np.maximum(np.bincount(data.tensors("train")[1].numpy(), minlength=data.classes), 0.5)
    logs = np.log(shares / shares.sum()).astype(np.float32)
    flat = lambda split: np.tile(logs, (data.sizes[split], 1))  # noqa: E731
    scores = flat("test") - data.recognition._log_priors
    assert np.abs(scores).max() < 1e-6


def test_without_a_recogniser_there_are_frames_only(folder, results, made, tiny_lexicon):
    bare = results / "data" / "bare"
    bare.mkdir()
    labels = {part: prepared.read_labels(folder, part) for part in made}
    summarise(bare, prepared.write_labelled(bare, made, labels, tiny_lexicon), "bare")
    data = load("bare", results)
    assert data.recognition is None and data.features == 44
    assert data.tensors("test")[1].tolist() == labels["test"].tolist()
