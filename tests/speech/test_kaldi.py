import gzip

import kaldiio
import numpy as np
import pytest

from implementations.errors import UserError
from implementations.speech import corpus, kaldi


@pytest.fixture
def made(tmp_path, speak, tiny_lexicon):
    """A data directory of six utterances by two speakers, as Kaldi writes it; and the corpus that is in it."""
    whole = speak(["ann", "bob"], 3, 5)
    folder = tmp_path / "data"
    folder.mkdir()
    features = {
        name: whole.features[whole.offsets[one] : whole.offsets[one + 1]]
        for one, name in enumerate(whole.names.tolist())
    }
    kaldiio.save_ark(str(folder / "feats.ark"), features, scp=str(folder / "feats.scp"))
    sums = {}
    for number, speaker in enumerate(whole.speaker_names.tolist()):
        own = np.concatenate([features[n] for n in features if n.startswith(speaker)]).astype(np.float64)
        sums[speaker] = np.vstack([[*own.sum(axis=0), len(own)], [*np.square(own).sum(axis=0), number * 0]])
    kaldiio.save_ark(str(folder / "cmvn.ark"), sums, scp=str(folder / "cmvn.scp"))
    said = [[tiny_lexicon.words[word] for word in one] for one in whole.transcripts()]
    (folder / "text").write_text(
        "".join(f"{n} {' '.join(w)}\n" for n, w in zip(whole.names, said, strict=True))
    )
    (folder / "utt2spk").write_text("".join(f"{name} {name[:3]}\n" for name in whole.names))
    return folder, whole


def replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_without_normalisation_it_is_what_was_written(made, tiny_lexicon):
    folder, whole = made
    (folder / "cmvn.scp").unlink()
    got = kaldi.read_directory(folder, tiny_lexicon)
    for field in corpus.Corpus.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(got, field), getattr(whole, field))


@pytest.mark.parametrize("variance", [True, False])
def test_normalised_by_speaker(made, tiny_lexicon, variance):
    folder, whole = made
    got = kaldi.read_directory(folder, tiny_lexicon, normalise_variance=variance)
    assert got.features.dtype == np.float32
    for speaker in range(2):
        frames = np.repeat(whole.speakers, whole.lengths) == speaker
        raw = whole.features[frames].astype(np.float64)
        expected = (raw - raw.mean(axis=0)) / (raw.std(axis=0) if variance else 1)
        np.testing.assert_allclose(got.features[frames], expected, atol=1e-4)


def test_a_moved_directory_is_still_read(made, tiny_lexicon, monkeypatch, tmp_path):
    """Entries may be relative to the data directory."""
    folder, whole = made
    for name in ("feats", "cmvn"):
        path = folder / f"{name}.scp"
        path.write_text(path.read_text().replace(f"{folder}/", ""))
    got = kaldi.read_directory(folder, tiny_lexicon)
    assert len(got) == len(whole)


@pytest.mark.parametrize("form", ["text", "archive", "gzip"])
def test_alignments(made, form, tmp_path):
    _, whole = made
    rng = np.random.default_rng(0)
    aligned = {
        name: rng.integers(0, 9, frames).astype(np.int32)
        for name, frames in zip(whole.names.tolist(), whole.lengths, strict=True)
    }
    path = tmp_path / "ali"
    if form == "text":  # as `copy-int-vector ark:- ark,t:-` writes it
        path.write_text("".join(f"{name} {' '.join(map(str, one))}\n" for name, one in aligned.items()))
    else:
        kaldiio.save_ark(str(path), dict(reversed(aligned.items())))
    if form == "gzip":
        packed = tmp_path / "ali.1.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path = packed
    got = kaldi.read_alignments(path, whole, 9)
    np.testing.assert_array_equal(got, np.concatenate(list(aligned.values())))
    with pytest.raises(UserError, match=r"class 8 in .*allowed: 0 to 6"):
        kaldi.read_alignments(path, whole, 7)


def test_alignments_that_do_not_fit_are_named(made, tmp_path):
    _, whole = made
    path = tmp_path / "ali"
    with pytest.raises(UserError, match="no alignments"):
        kaldi.read_alignments(path, whole, 3)
    lines = [f"{n} {' '.join(['1'] * f)}" for n, f in zip(whole.names, whole.lengths, strict=True)]
    path.write_text("\n".join(lines[:-1]))
    with pytest.raises(UserError, match="utterance bob-2: no alignment"):
        kaldi.read_alignments(path, whole, 3)
    path.write_text("\n".join([*lines[:-1], lines[-1] + " 1"]))
    with pytest.raises(UserError, match=r"utterance bob-2: .* aligned frames, but"):
        kaldi.read_alignments(path, whole, 3)
    path.write_text("\n".join([*lines[:-1], lines[-1] + " x"]))
    with pytest.raises(UserError, match="ali: damaged alignments"):
        kaldi.read_alignments(path, whole, 3)


@pytest.mark.parametrize("keep", [-1, -5, 12])
def test_truncated_alignments_are_named(made, tmp_path, keep):
    _, whole = made
    path = tmp_path / "ali"
    kaldiio.save_ark(
        str(path),
        {n: np.ones(f, np.int32) for n, f in zip(whole.names.tolist(), whole.lengths, strict=True)},
    )
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match="ali: damaged alignments"):
        kaldi.read_alignments(path, whole, 3)


@pytest.mark.parametrize("name", ["feats.scp", "text"])
def test_a_missing_file_is_named(made, tiny_lexicon, name):
    folder, _ = made
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"not a whole Kaldi data directory: no {name}"):
        kaldi.read_directory(folder, tiny_lexicon)


def test_faults_are_named(made, tiny_lexicon):
    folder, _ = made
    (folder / "text").write_text((folder / "text").read_text().replace("ann-0", "ann-9"))
    with pytest.raises(UserError, match="utterance ann-0: no transcript"):
        kaldi.read_directory(folder, tiny_lexicon)


def test_missing_statistics_are_named(made, tiny_lexicon):
    folder, _ = made
    replace(folder / "cmvn.scp", "bob", "eve")
    with pytest.raises(UserError, match="speaker bob: no statistics"):
        kaldi.read_directory(folder, tiny_lexicon)


def test_a_truncated_archive_is_named(made, tiny_lexicon):
    folder, _ = made
    raw = (folder / "feats.ark").read_bytes()
    (folder / "feats.ark").write_bytes(raw[:-10])
    with pytest.raises(UserError, match="utterance bob-2: cannot read"):
        kaldi.read_directory(folder, tiny_lexicon)
    (folder / "feats.ark").unlink()
    with pytest.raises(UserError, match="utterance ann-0: cannot read"):
        kaldi.read_directory(folder, tiny_lexicon)


def test_a_vector_is_no_features(made, tiny_lexicon):
    folder, _ = made
    kaldiio.save_ark(str(folder / "feats.ark"), {"ann-0": np.ones(9, np.float32)}, str(folder / "feats.scp"))
    with pytest.raises(UserError, match=r"utterance ann-0: .* not a matrix"):
        kaldi.read_directory(folder, tiny_lexicon)


def test_nothing_in_a_directory_is_run(made, tiny_lexicon):
    """Neither a command in a table nor an archive that holds a pickle."""
    folder, _ = made
    lines = (folder / "feats.scp").read_text().splitlines()
    trap = folder / "trap"
    (folder / "feats.scp").write_text("\n".join([f"ann-0 touch {trap} |", *lines[1:]]))
    with pytest.raises(UserError, match=r"utterance ann-0: entry .* is not a file"):
        kaldi.read_directory(folder, tiny_lexicon)
    assert not trap.exists()
    kaldiio.save_ark(
        str(folder / "feats.ark"),
        {"ann-0": np.ones((9, 4))},
        str(folder / "feats.scp"),
        write_function="pickle",
    )
    with pytest.raises(UserError, match=r"utterance ann-0: .* not a Kaldi matrix"):
        kaldi.read_directory(folder, tiny_lexicon)
