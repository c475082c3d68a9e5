"""All 35 words of Speech Commands: folders of WAV files of the archive's layout, made here."""

import hashlib
import tarfile
import tracemalloc

import numpy as np
import pytest
import soundfile

from implementations import data
from implementations.config import Catalog, catalog
from implementations.data.summary import read_summary
from implementations.errors import UserError
from implementations.speech import commands35, keywords
from implementations.speech.commands35 import WORDS, part_of
from implementations.speech.keywords import SAMPLES, Clip
from implementations.speech.logmel import PAPER, FrontEnd

NAME = "speech_commands_35"
TINY = FrontEnd(mels=8, window=2048, shift=4000, centred=True)
# Speakers of the archive's own validation_list.txt and testing_list.txt (10 parts of 100 each): test, as published.
LISTED = (
    "a69b9b3e", "439c84f4", "409c962a", "dbaf8fc6", "a6d586b7", "0e17f595", "ff2b842e", "7fd25f7c", "3cc595de",
    "2aa787cf", "ffa76c4a", "24ad3ebe", "d7467392", "5828dfa2", "91223b83", "f0ae7203", "95ba4996", "94de6a6a",
)  # fmt: skip


def place(speaker):
    return int(hashlib.sha1(speaker.encode()).hexdigest(), 16) % 2**27


def of_part(speaker):
    """The rule in whole numbers: below 20 of 100 parts of 2^27 - 1, below 28, or above."""
    most = 2**27 - 1
    return "test" if 5 * place(speaker) < most else "valid" if 25 * place(speaker) < 7 * most else "train"


SPEAKERS = {
    part: [name for name in (f"{number:08x}" for number in range(60)) if of_part(name) == part][:2]
    for part in ("train", "valid", "test")
}


def sound(number, samples=SAMPLES):
    return np.round(np.sin(np.arange(samples) * 0.003 * (number + 1)) * 9000).astype(np.int16)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The folder, with a clip of each part for each word (two for train), and noise that belongs to no word."""
    folder = tmp_path / "own" / "speech_commands_v0.02"
    number = 0
    for word in WORDS:
        (folder / word).mkdir(parents=True)
        for part, count in (("train", 2), ("valid", 1), ("test", 1)):
            for speaker in SPEAKERS[part][:count]:
                soundfile.write(folder / word / f"{speaker}_nohash_0.wav", sound(number), 16000)
                number += 1
    (folder / "_background_noise_").mkdir()
    soundfile.write(folder / "_background_noise_" / "pink_noise.wav", sound(0, 50000), 16000)
    (folder / "testing_list.txt").write_text("not read\n")
    monkeypatch.setenv("PARATRAIN_DATA", str(folder.parent))
    return folder


def test_the_archives_own_lists_are_test():
    assert {part_of(f"{speaker}_nohash_3.wav") for speaker in LISTED} == {"test"}
    # The rule of the smaller set's index, which is ours, holds out other speakers.
    assert part_of("4a294341_nohash_0.wav") == "train"


def test_parts_follow_the_speaker_alone():
    names = [f"{number:08x}" for number in range(5000)]
    parts = [part_of(f"{name}_nohash_0.wav") for name in names]
    assert parts == [of_part(name) for name in names]
    assert parts == [part_of(f"{name}_nohash_12.wav") for name in names]
    shares = [parts.count(part) / 5000 for part in ("train", "valid", "test")]
    assert shares == pytest.approx(
        [0.72, 0.08, 0.2], abs=0.02
    )  # a tenth of those that are not test are valid


def test_prepared_as_any_data_set(made, results_dir):
    assert data.status(NAME, results_dir)["state"] == "can be had"
    summary = read_summary(data.prepare(NAME, results_dir).parent)
    assert summary["input_shape"] == [1, 128, 32] and summary["classes"] == 35
    assert summary["class_names"] == list(WORDS) and summary["data_kind"] == "real"
    for part, count in (("train", 2), ("valid", 1), ("test", 1)):
        assert summary["splits"][part] == {
            "samples": 35 * count,
            "per_class": [count] * 35,
            "speakers": count,
            "left_out": 0,
        }
    loaded = data.load(NAME, results_dir, verify=True)
    x_nf, y_n = loaded.tensors("train")
    assert x_nf.shape == (70, 4096) and sorted(y_n.tolist()) == sorted([*range(35)] * 2)
    assert x_nf.mean() == pytest.approx(0, abs=1e-4) and x_nf.std(correction=0) == pytest.approx(1, rel=1e-4)


def test_arrays_are_those_of_the_common_writer(made, tmp_path):
    """The writer of the smaller sets, which holds all in memory, given the same clips, read by another reader."""
    from scipy.io import wavfile

    parts = {part: [] for part in SPEAKERS}
    for word in WORDS:
        for path in sorted((made / word).iterdir()):
            speaker = path.name[:8]
            samples = wavfile.read(path)[1].astype(np.float32) / 32768
            parts[of_part(speaker)].append(Clip(path.name, word, speaker, samples))
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    facts = commands35.write(ours, made, TINY)
    expected = keywords.write(theirs, parts, WORDS, TINY)
    for key in ("mean", "std"):
        assert facts.pop(key) == pytest.approx(expected.pop(key), rel=1e-9)
    for split in facts["splits"].values():
        assert split.pop("left_out") == 0
    assert facts == expected
    for part in SPEAKERS:
        x, y = (np.load(ours / f"{part}_{what}.npy") for what in "xy")
        x_ref, y_ref = (np.load(theirs / f"{part}_{what}.npy") for what in "xy")
        assert (x.dtype, y.dtype) == (x_ref.dtype, y_ref.dtype) == (np.float16, np.int64)

        def rows(x, y):
            return sorted((int(label), values.tobytes()) for label, values in zip(y, x))

        assert rows(x, y) == rows(x_ref, y_ref)
        assert (y.tolist() == sorted(y.tolist())) == (part != "train")  # train alone is shuffled


def test_clips_of_another_length_are_left_out_and_counted(made, tmp_path):
    speaker = SPEAKERS["train"][1]
    soundfile.write(made / "cat" / f"{speaker}_nohash_1.wav", sound(0, 15999), 16000)
    soundfile.write(made / "dog" / f"{speaker}_nohash_1.wav", sound(0, 16001), 16000)
    soundfile.write(made / "dog" / f"{SPEAKERS['test'][0]}_nohash_0.wav", sound(0, 8000), 16000)
    splits = commands35.write(tmp_path, made, TINY)["splits"]
    assert {part: (one["samples"], one["left_out"]) for part, one in splits.items()} == {
        "train": (70, 2),
        "valid": (35, 0),
        "test": (34, 1),
    }
    assert splits["test"]["per_class"][WORDS.index("dog")] == 0


def test_spectrograms_are_never_all_in_memory(made, tmp_path, monkeypatch):
    """Python's and NumPy's own memory, which mapped files are not part of, does not grow with the clips."""
    monkeypatch.setattr(commands35, "log_mel", lambda samples, front_end: np.zeros((128, 32), np.float32))
    commands35.write(tmp_path, made, PAPER)  # what is imported once is there by now
    tracemalloc.start()
    commands35.write(tmp_path, made, PAPER)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 35 * 4 * 128 * 32 * 2 / 2  # half of the float16 values that are written


def test_the_archive_will_do(made, results_dir):
    with tarfile.open(made.parent / "packed", "w:gz") as tar:
        tar.add(made, ".")
    expected = read_summary(data.prepare(NAME, results_dir / "folders").parent)
    for path in sorted(made.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (made.parent / "packed").rename(made / "speech_commands_v0.02.tar.gz")
    assert read_summary(data.prepare(NAME, results_dir).parent) == expected
    assert [path.name for path in made.iterdir()] == ["speech_commands_v0.02.tar.gz"]


def test_what_is_wrong_is_named(made, results_dir):
    clip = made / "no" / f"{SPEAKERS['valid'][0]}_nohash_0.wav"
    whole = clip.read_bytes()

    def refused(message):
        with pytest.raises(UserError, match=message) as raised:
            data.prepare(NAME, results_dir)
        assert "\n" not in str(raised.value)

    for content, message in (
        (whole[:20000], rf"clip no/{clip.name}: damaged: 20000 of {len(whole)} bytes"),
        (whole[:44], rf"clip no/{clip.name}: damaged: 44 of {len(whole)} bytes"),
        (b"", rf"clip no/{clip.name}: cannot be decoded"),
        (b"no sound" * 40, rf"clip no/{clip.name}: cannot be decoded"),
    ):
        clip.write_bytes(content)
        refused(message)
    soundfile.write(clip, sound(0), 8000)
    refused(f"clip no/{clip.name}: got 8000 samples a second")
    soundfile.write(clip, np.stack([sound(0)] * 2, axis=1), 16000)
    refused(f"clip no/{clip.name}: got 2 channels; needed: one")
    clip.write_bytes(whole)
    (made / "zero").rename(made / "nil")
    refused(r"no clips \(\.wav\) in the folder of: zero; needed: a folder for each of the 35 words")
    (made / "bed").rename(made / "bad")
    refused(r"in the folder of: bed, zero;")
    (made / "nil").rename(made / "zero")
    (made / "bad").rename(made / "bed")
    for word in WORDS:
        (made / word / clip.name).unlink()
    refused("no clip of 16000 samples for valid")


def test_without_the_folder_the_card_tells_how(results_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("PARATRAIN_DATA", str(tmp_path))
    with pytest.raises(
        UserError, match=r"its folder is not here[\s\S]*speech_commands_v0\.02\.tar\.gz by hand"
    ):
        data.prepare(NAME, results_dir)


def test_only_projected_until_it_is_prepared(tmp_path, monkeypatch):
    """As the data sets that are sold: sizes, and no files that could be fetched."""
    monkeypatch.setattr(catalog, "RESULTS", tmp_path)
    installed = Catalog.installed()
    assert NAME in installed.licensed and NAME not in installed.speech | installed.sparse
    assert installed.datasets[NAME] == data.load_card(NAME).sizes["train"]
    (tmp_path / "data" / NAME).mkdir(parents=True)
    (tmp_path / "data" / NAME / "summary.json").write_text("{}")
    assert NAME not in Catalog.installed().licensed


def test_the_card_agrees_with_the_code():
    card = data.load_card(NAME)
    sizes = card.sizes
    assert sizes["class_names"] == list(WORDS) and sizes["classes"] == 35 and sizes["nominal"]
    assert sizes["input_shape"] == [1, PAPER.mels, PAPER.frames(SAMPLES)]
    recordings = {"train": 0.9 * 84843, "valid": 0.1 * 84843, "test": 9981 + 11005}  # of the archive's lists
    for part, count in recordings.items():
        assert sizes[part] / count == pytest.approx(95400 / 105829, rel=0.01)
