import numpy as np
import pytest

from implementations.errors import UserError
from implementations.speech import corpus


def utterance(name, words=("ON",), frames=8, speaker="ann", width=4):
    values = np.arange(frames * width, dtype=np.float32).reshape(frames, width)
    return corpus.Utterance(name, speaker, tuple(words), values)


def test_stacked(tiny_lexicon):
    built = corpus.build(
        [utterance("u1", ("ON", "NO"), 13, "bob"), utterance("u2", ("GO",), 9, "ann")], tiny_lexicon
    )
    assert built.offsets.tolist() == [0, 13, 22] and built.lengths.tolist() == [13, 9]
    assert [built.speaker_names[one] for one in built.speakers] == ["bob", "ann"]
    assert [[tiny_lexicon.words[w] for w in one] for one in built.transcripts()] == [["ON", "NO"], ["GO"]]
    np.testing.assert_array_equal(built.features[13:], utterance("u2", frames=9).features)


def test_selected(speak):
    whole = speak(["ann", "bob"], 4, 1)
    some = whole.select([6, 1])
    assert some.names.tolist() == ["bob-2", "ann-1"]
    assert some.transcripts() == [whole.transcript(6), whole.transcript(1)]
    expected = [whole.features[whole.offsets[one] : whole.offsets[one + 1]] for one in (6, 1)]
    np.testing.assert_array_equal(some.features, np.concatenate(expected))
    assert some.offsets.tolist() == [0, len(expected[0]), len(some.features)]


def test_written_and_read(tmp_path, speak, tiny_lexicon):
    parts = {part: speak([part], 3, seed) for seed, part in enumerate(("train", "valid", "test"))}
    facts = corpus.write(tmp_path, parts, tiny_lexicon)
    assert facts["classes"] == 3 * len(tiny_lexicon.phones) and facts["input_shape"] == [4]
    assert facts["splits"]["valid"]["samples"] == len(parts["valid"].features)
    assert corpus.read_lexicon(tmp_path) == tiny_lexicon
    for part, made in parts.items():
        read = corpus.read(tmp_path, part)
        for field in corpus.Corpus.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(read, field), getattr(made, field))


def test_shortest_takes_the_shortest_pronunciations(tiny_lexicon):
    assert corpus.shortest(tiny_lexicon.encode(["GO", "ON"], "u"), tiny_lexicon) == 9 + 6


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (utterance("u1", ("ON", "XYZ")), "utterance u1: not in the dictionary: XYZ"),
        (utterance("u1", ()), "utterance u1: its transcript is empty"),
        (
            utterance("u1", ("ON",), 5),
            "utterance u1: 5 frames are too few for its words, which have 6 states",
        ),
        (utterance("u0"), "utterance u0: is there twice"),
        (utterance("u1", width=3), "different widths: 3, 4"),
    ],
)
def test_a_bad_utterance_is_named(tiny_lexicon, bad, message):
    with pytest.raises(UserError, match=message):
        corpus.build([utterance("u0"), bad], tiny_lexicon)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_named(tiny_lexicon, value):
    bad = utterance("u1")
    bad.features[3, 1] = value
    with pytest.raises(UserError, match="utterance u1: features: frame 3 is not finite"):
        corpus.build([bad], tiny_lexicon)


def test_all_problems_at_once_but_not_without_end(tiny_lexicon):
    with pytest.raises(UserError) as raised:
        corpus.build([utterance(f"u{n}", ()) for n in range(30)], tiny_lexicon)
    lines = str(raised.value).splitlines()
    assert len(lines) == 11 and lines[-1] == "and 20 more"
    with pytest.raises(UserError, match="at least one utterance"):
        corpus.build([], tiny_lexicon)
