"""Speech Commands: an archive of the same layout made here, and the real one where it can be had."""

import csv
import hashlib
import io
import tarfile

import numpy as np
import pytest
import soundfile

from implementations import data
from implementations.data import sources
from implementations.data.preparation import _recipe
from implementations.errors import UserError
from implementations.speech import commands

ROWS = [
    {
        "file": f"{label}/{number}_nohash_0.opus",
        "label": label,
        "speaker": f"{split}{number % 2}",
        "split": split,
    }
    for split, numbers in (("train", range(6)), ("valid", range(6, 8)), ("test", range(8, 12)))
    for number, label in zip(numbers, ["yes", "no", "_silence_"] * 2)
]


def sound(number, samples=16000):
    return (np.sin(np.arange(samples) * 0.02 * (number + 1)) * 0.3).astype(np.float32)


def coded(samples, rate=16000, **how):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, **(how or {"format": "OGG", "subtype": "OPUS"}))
    return file.getvalue()


@pytest.fixture
def make(tmp_path):
    """make(index's rows, what the folder holds): paths of folder and index."""

    def run(rows=ROWS, columns=("file", "label", "speaker", "split"), held=None):
        folder, index = tmp_path / "clips", tmp_path / "index.csv"
        held = {row["file"]: coded(sound(n)) for n, row in enumerate(ROWS)} if held is None else held
        for name, content in held.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        with open(index, "w", newline="") as file:
            table = csv.DictWriter(file, columns, extrasaction="ignore")
            table.writeheader()
            table.writerows(rows)
        return folder, index

    return run


def test_clips(make):
    parts = {part: list(some) for part, some in commands.read(*make()).items()}
    assert [len(parts[part]) for part in ("train", "valid", "test")] == [6, 2, 4]
    read = [clip for part in ("train", "valid", "test") for clip in parts[part]]
    for number, (row, clip) in enumerate(zip(ROWS, read, strict=True)):
        assert (clip.name, clip.label) == (row["file"], row["label"])
        assert clip.speaker == (None if row["label"] == "_silence_" else row["speaker"])
        assert clip.samples.shape == (16000,) and clip.samples.dtype == np.float32
        assert np.corrcoef(clip.samples[500:-500], sound(number)[500:-500])[0, 1] > 0.98  # Opus is lossy


def test_other_codings_and_names(make):
    """As in the official archive: WAV, some with the suffix twice, and files that are no clips."""
    names = [row["file"].replace(".opus", ".wav.wav" if n % 2 else ".wav") for n, row in enumerate(ROWS)]
    held = {name: coded(sound(n), format="WAV") for n, name in enumerate(names)}
    folder, index = make(held=held | {"LICENSE": b"words", "no/.DS_Store": b"\0"})
    (first, *_), *_ = map(list, commands.read(folder, index).values())
    np.testing.assert_allclose(first.samples, sound(0), atol=1 / 32768)


ALL = {row["file"]: b"" for row in ROWS}


@pytest.mark.parametrize(
    ("rows", "held", "message"),
    [
        (ROWS[1:], ALL, r"clips that are there and have no row in index\.csv: yes/0_nohash_0$"),
        (ROWS[5:], ALL, r"have no row in index\.csv: _silence_/2_nohash_0, no/1_nohash_0, .* and 2 more"),
        (
            ROWS,
            {name: b"" for name in ALL if name[:3] != "no/"},
            r"and are not there: no/1_nohash_0, no/4",
        ),
        ([*ROWS, ROWS[3]], ALL, r"clips that stand twice in index\.csv: yes/3_nohash_0"),
        (
            [*ROWS[:-1], ROWS[-1] | {"split": "dev"}],
            ALL,
            r"line 13: split 'dev'; allowed: train, valid, test",
        ),
        ([ROWS[0] | {"speaker": ""}, *ROWS[1:]], ALL, r"index\.csv: line 2: speaker is empty"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(make, rows, held, message):
    with pytest.raises(UserError, match=message):
        commands.read(*make(rows, held=held))


def test_a_missing_column_is_named(make):
    with pytest.raises(
        UserError, match=r"index\.csv: no column speaker; needed: file, label, speaker, split"
    ):
        commands.read(*make(columns=("file", "label", "split")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (coded(sound(0, 12000), format="WAV"), r"clip no/1_nohash_0\.opus: got 12000 samples; needed: 16000"),
        (coded(sound(0), 8000, format="WAV"), r"clip no/1_nohash_0\.opus: got 8000 samples a second"),
        (b"OggS and no more", r"clip no/1_nohash_0\.opus: cannot be decoded"),
    ],
)
def test_a_clip_that_is_wrong_is_named(make, tmp_path, content, message):
    held = {row["file"]: coded(sound(n)) for n, row in enumerate(ROWS)} | {"no/1_nohash_0.opus": content}
    folder, _ = make(held=held)
    card = data.load_card("speech_commands_small")
    with tarfile.open(tmp_path / card.files[0].name, "w:gz") as tar:
        tar.add(folder, ".")
    with pytest.raises(UserError, match=message):
        _recipe(card).prepare(tmp_path, tmp_path, card)


@pytest.mark.data
def test_the_real_index(tmp_path):
    """Parts follow a hash of the speaker; the official set has about 400 clips a class."""
    card = data.load_card("speech_commands")
    try:
        sources.fetch(card, tmp_path)
    except UserError:
        pytest.skip("no mirror of speech_commands here")
    index = tmp_path / card.files[1].name
    with open(index, newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        place = int(hashlib.sha1(row["speaker"].encode()).hexdigest(), 16) % 100
        assert row["split"] == ("test" if place < 20 else "valid" if place < 30 else "train")
    assert len(rows) == 4890
    for label in commands.LABELS:
        assert 390 < sum(row["label"] == label for row in rows) < 430
    with tarfile.open(tmp_path / card.files[0].name) as tar:
        assert sorted(tar.getnames()) == sorted(row["file"] for row in rows)
