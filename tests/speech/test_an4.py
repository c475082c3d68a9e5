"""AN4: its preparation on an archive of the same layout made here, and the real one where it can be had."""

import struct
import tarfile

import numpy as np
import pytest

from implementations import data
from implementations.data import sources
from implementations.data.preparation import _recipe
from implementations.errors import UserError
from implementations.speech import corpus, hmm

SPEAKERS = [f"s{number:02d}" for number in range(12)]


def mfc(frames, width=13):
    values = np.random.default_rng(frames).normal(size=frames * width)
    return struct.pack(f">i{len(values)}f", len(values), *values)


@pytest.fixture
def prepare(tmp_path):
    """prepare(changed files): parts of an archive with two utterances of each of 12 speakers, and one to test."""

    def run(**changed):
        made = tmp_path / "made"
        etc = made / "an4" / "etc"
        etc.mkdir(parents=True)
        (etc / "an4.dic").write_text("NO    N OW\nYES   Y EH S\n")
        (etc / "an4.phone").write_text("EH\nN\nOW\nS\nSIL\nY\n")
        for part, speakers in (("train", SPEAKERS), ("test", ["t"])):
            names = [(speaker, f"an{number}-{speaker}-b") for speaker in speakers for number in (1, 2)]
            clstk = "an4_clstk" if part == "train" else "an4test_clstk"
            (etc / f"an4_{part}.fileids").write_text("".join(f"{clstk}/{s}/{n}\n" for s, n in names))
            (etc / f"an4_{part}.transcription").write_text("".join(f"YES NO ({n})\n" for _, n in names))
            for speaker, name in names:
                path = made / "an4" / "feat" / clstk / speaker / f"{name}.mfc"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(mfc(20))
        for name, change in changed.items():
            (path,) = made.rglob(name)
            path.write_bytes(change(path.read_bytes()))
        raw, out, card = tmp_path / "raw", tmp_path / "out", data.load_card("an4")
        raw.mkdir()
        out.mkdir()
        with tarfile.open(raw / card.files[0].name, "w:xz") as archive:
            archive.add(made / "an4", "an4")
        facts = _recipe(card).prepare(raw, out, card)
        return facts, {part: corpus.read(out, part) for part in ("train", "valid", "test")}

    return run


def test_eight_speakers_are_held_out(prepare):
    facts, parts = prepare()
    speakers = {part: set(one.speaker_names[one.speakers].tolist()) for part, one in parts.items()}
    assert len(speakers["valid"]) == 8 and speakers["test"] == {"t"}
    assert speakers["train"] | speakers["valid"] == set(SPEAKERS)
    assert not speakers["train"] & speakers["valid"]
    assert facts["splits"]["valid"] == {"samples": 16 * 20, "utterances": 16, "words": 32, "speakers": 8}
    assert facts["input_shape"] == [11, 39] and facts["classes"] == 18


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("an1-s03-b.mfc", lambda raw: raw[:-7], r"an1-s03-b\.mfc: damaged feature file"),
        ("an1-s03-b.mfc", lambda raw: mfc(14), r"utterance an1-s03-b: 14 frames are too few .* 15 states"),
        (
            "an1-s03-b.mfc",
            lambda raw: raw[:-4] + struct.pack(">f", np.nan),
            "an1-s03-b: features: frame 19 is not",
        ),
        ("an4.dic", lambda raw: raw.replace(b"NO ", b"NOT "), "utterance an1-.*: not in the dictionary: NO"),
        (
            "an4_test.transcription",
            lambda raw: raw.replace(b"YES NO", b"", 1),
            "an1-t-b: its transcript is empty",
        ),
    ],
)
def test_what_is_wrong_is_named(prepare, file, change, message):
    with pytest.raises(UserError, match=message):
        prepare(**{file: change})


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The real corpora and lexicon, without the recogniser's training."""
    card, raw = data.load_card("an4"), tmp_path_factory.mktemp("an4") / "raw"
    if "files in" not in sources.outlook(card)[1]:
        pytest.skip("no mirror of an4 here")
    sources.fetch(card, raw)
    return _recipe(card).read(raw, card)


@pytest.mark.data
def test_counts(real):
    """Those of the database's own documentation."""
    parts, lexicon = real
    assert len(parts["train"]) + len(parts["valid"]) == 948 and len(parts["test"]) == 130
    assert len(parts["train"].features) + len(parts["valid"].features) == 253_682
    assert len(parts["test"].features) == 35_570
    assert len(parts["train"].words) + len(parts["valid"].words) == 5442 and len(parts["test"].words) == 773
    speakers = [set(one.speaker_names[one.speakers].tolist()) for one in parts.values()]
    assert [len(one) for one in speakers] == [66, 8, 10]
    assert len(set.union(*speakers)) == 84
    assert len(lexicon.words) == 101 and len(lexicon.phones) == 34
    assert sum(map(len, lexicon.pronunciations)) == 130
    sizes = data.load_card("an4").sizes
    assert [len(one.features) for one in parts.values()] == [
        sizes[part] for part in ("train", "valid", "test")
    ]


@pytest.mark.data
def test_a_first_alignment(real):
    """The energy (C0) of what is called silence is well below that of vowels after a few passes."""
    parts, lexicon = real
    some = parts["valid"].select(range(40))
    _, alignment, history = hmm.train(some, some.features, lexicon, (4,))
    assert history[0] == sorted(history[0])
    phones, energy = alignment.classes // 3, some.features[:, 0]
    vowels = [lexicon.phones.index(phone) for phone in ("AA", "AY", "EY", "IY", "OW")]
    assert energy[phones == lexicon.silence].mean() < energy[np.isin(phones, vowels)].mean() - 1
