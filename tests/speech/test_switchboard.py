"""A folder of one's own, as Kaldi leaves it, prepared and loaded like any data set."""

import kaldiio
import numpy as np
import pytest

from implementations import data
from implementations.data.summary import read_summary
from implementations.errors import UserError
from implementations.speech import corpus

SPEAKERS = {"train": [f"a{number}" for number in range(5)], "test": ["b0", "b1"]}


@pytest.fixture
def mine(tmp_path, speak, tiny_lexicon, monkeypatch):
    """The folder with data directories of 40 values a frame and the lexicon; and what is in them, by utterance."""
    folder = tmp_path / "own" / "switchboard"
    rng = np.random.default_rng(0)
    held = {}
    for seed, (part, speakers) in enumerate(SPEAKERS.items()):
        made = speak(speakers, 4, seed, 0.5)
        where = folder / part
        where.mkdir(parents=True)
        values = np.hstack([made.features] * 10) * 3 + 1
        values += rng.normal(size=values.shape).astype(np.float32)
        features = {
            name: values[first:last]
            for name, first, last in zip(made.names.tolist(), made.offsets[:-1], made.offsets[1:])
        }
        kaldiio.save_ark(str(where / "feats.ark"), features, scp=str(where / "feats.scp"))
        said = [" ".join(tiny_lexicon.words[word] for word in one) for one in made.transcripts()]
        (where / "text").write_text("".join(f"{name} {words}\n" for name, words in zip(made.names, said)))
        (where / "utt2spk").write_text("".join(f"{name} {name[:2]}\n" for name in made.names))
        held |= features
    spoken = [
        (word, " ".join(tiny_lexicon.phones[phone] for phone in sounds))
        for word, some in zip(tiny_lexicon.words, tiny_lexicon.pronunciations)
        for sounds in some
    ]
    (folder / "lexicon.txt").write_text("".join(f"{word} {sounds}\n" for word, sounds in spoken))
    monkeypatch.setenv("PARATRAIN_DATA", str(folder.parent))
    return folder, held


@pytest.fixture
def aligned(mine):
    """The folder with alignments too, in two files; and the classes, by utterance."""
    folder, held = mine
    rng = np.random.default_rng(1)
    classes = {name: rng.integers(0, 20, len(features)) for name, features in held.items()}
    (folder / "alignments").mkdir()
    lines = [f"{name} {' '.join(map(str, one))}\n" for name, one in classes.items()]
    (folder / "alignments" / "pdf.1").write_text("".join(lines[:9]))
    (folder / "alignments" / "pdf.2").write_text("".join(lines[9:]))
    return folder, held, classes


def test_with_alignments_there_are_frames(aligned, results_dir):
    folder, held, classes = aligned
    assert data.status("switchboard", results_dir) == {
        "name": "switchboard",
        "state": "can be had",
        "detail": f"one's own data in {folder}",
    }
    prepared = data.prepare("switchboard", results_dir).parent
    summary = read_summary(prepared)
    assert summary["data_kind"] == "licensed" and summary["deltas"] is False
    assert summary["input_shape"] == [11, 40] and summary["features"] == 440
    assert summary["classes"] == 1 + max(one.max() for one in classes.values())
    found = data.load("switchboard", results_dir)
    assert found.recognition is None
    names = {part: corpus.read(prepared, part).names.tolist() for part in ("train", "valid", "test")}
    assert names["valid"] == [f"a4-{number}" for number in range(4)]  # 4 of 20 utterances, whole speakers
    assert names["train"] == [f"a{s}-{number}" for s in range(4) for number in range(4)]
    train = np.concatenate([held[name] for name in names["train"]]).astype(np.float64)
    for part in ("valid", "test"):
        x, y = found.tensors(part)
        assert y.tolist() == np.concatenate([classes[name] for name in names[part]]).tolist()
        expected = (np.concatenate([held[name] for name in names[part]]) - train.mean(0)) / train.std(0)
        np.testing.assert_allclose(x[:, 200:240].numpy(), expected, atol=1e-4)


def test_the_number_of_classes_may_be_given(aligned, results_dir):
    folder, _, _ = aligned
    (folder / "num_pdfs").write_text("31\n")
    assert read_summary(data.prepare("switchboard", results_dir).parent)["classes"] == 31
    for text, message in (("15", r"class 19 in .*alignments; allowed: 0 to 14"), ("x", "num_pdfs: got 'x'")):
        (folder / "num_pdfs").write_text(text)
        with pytest.raises(UserError, match=message):
            data.prepare("switchboard", results_dir / text)


def test_without_alignments_words_are_decoded_too(mine, results_dir):
    data.prepare("switchboard", results_dir)
    found = data.load("switchboard", results_dir)
    labels = {part: found.tensors(part)[1].numpy() for part in ("valid", "test")}
    assert found.classes == 15 and found.summary["reference"]["gmm_wer"] < 0.3

    def posteriors(part):
        logs = np.full((len(labels[part]), 15), np.log(0.001), np.float32)
        logs[np.arange(len(logs)), labels[part]] = np.log(0.986)
        return logs

    scored = found.recognition.score(posteriors)
    assert scored.utterances.speaker.unique().tolist() == SPEAKERS["test"]
    assert scored.utterances[["substitutions", "deletions", "insertions"]].to_numpy().sum() == 0


def test_what_is_wrong_is_named(aligned, results_dir):
    folder, _, _ = aligned

    def broken(path, old, new, message):
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(UserError, match=message):
            data.prepare("switchboard", results_dir)
        path.write_text(text)

    broken(folder / "test" / "text", "b0-1 ", "b0-1 WELL ", "utterance b0-1: not in the dictionary: WELL")
    broken(folder / "train" / "text", "a1-2 ", "a1-x ", "utterance a1-2: no transcript in")
    broken(folder / "alignments" / "pdf.2", "a3-0 ", "a3-x ", "utterance a3-0: no alignment in")
    broken(folder / "alignments" / "pdf.1", "a0-1 ", "a0-1 3 ", r"utterance a0-1: \d+ aligned frames, but")
    broken(folder / "test" / "utt2spk", "b1-0 b1", "b1-0 a1", "speaker a1 is in train and in test")
    archive = folder / "test" / "feats.ark"
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-100])
    with pytest.raises(UserError, match="utterance b1-3: cannot read"):
        data.prepare("switchboard", results_dir)
    archive.write_bytes(whole)
    owners = folder / "train" / "utt2spk"
    owners.write_text("".join(f"{line.split()[0]} one\n" for line in owners.read_text().splitlines()))
    with pytest.raises(UserError, match="train: one speaker alone"):
        data.prepare("switchboard", results_dir)
    (folder / "lexicon.txt").unlink()
    with pytest.raises(UserError, match=r"no dictionary .*lexicon\.txt"):
        data.prepare("switchboard", results_dir)


def no_number(features):
    features[7, 3] = np.nan


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (no_number, None, "utterance b0-2: features: frame 7 is not finite"),
        (None, "", "utterance b0-2: its transcript is empty"),
        (
            None,
            "GO GO " * 60,
            r"utterance b0-2: \d+ frames are too few for its words, which have 1080 states",
        ),
    ],
)
def test_a_faulty_utterance_is_named(mine, results_dir, change, words, message):
    folder, held = mine
    where = folder / "test"
    if change:
        features = {name: one.copy() for name, one in held.items() if name.startswith("b")}
        change(features["b0-2"])
        kaldiio.save_ark(str(where / "feats.ark"), features, scp=str(where / "feats.scp"))
    else:
        lines = [line.split(" ", 1) for line in (where / "text").read_text().splitlines()]
        said = {name: words if name == "b0-2" else rest for name, rest in lines}
        (where / "text").write_text("".join(f"{name} {rest}\n" for name, rest in said.items()))
    with pytest.raises(UserError, match=message):
        data.prepare("switchboard", results_dir)
    assert not (results_dir / "data" / "switchboard").exists()


@pytest.mark.parametrize("there", [True, False])
def test_without_the_folder_its_way_is_told(results_dir, tmp_path, monkeypatch, there):
    if there:
        monkeypatch.setenv("PARATRAIN_DATA", str(tmp_path / "nowhere"))
    else:
        monkeypatch.delenv("PARATRAIN_DATA", raising=False)
    said = "no folder .*nowhere/switchboard" if there else "environment variable PARATRAIN_DATA is not set"
    with pytest.raises(UserError, match=rf"(?s){said}.*Linguistic Data Consortium"):
        data.prepare("switchboard", results_dir)
    assert data.status("switchboard", results_dir)["state"] == "missing"
