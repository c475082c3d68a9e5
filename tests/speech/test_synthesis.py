"""Generated speech: the voices, the cepstra, and a small data set made of both."""

import hashlib
import importlib.util

import numpy as np
import pytest

from implementations import data
from implementations.data.preparation import _recipe
from implementations.errors import UserError
from implementations.speech import cepstra, corpus, synthesis
from implementations.speech.synthesis import RATE, Speaker, synthesiser


def spoken(requests):
    with synthesiser() as speak:
        return [speak(text, speaker) for text, speaker in requests]


def test_every_voice_speaks_and_two_processes_say_the_same():
    variants = ("", *synthesis.MALE, *synthesis.FEMALE)
    voices = [f"{synthesis.DIALECTS[n % 8]}+{one}".rstrip("+") for n, one in enumerate(variants)]
    voices += list(synthesis.DIALECTS)
    requests = [("seven six", Speaker(voice, 160, 40)) for voice in voices]
    first, again = spoken(requests), spoken(requests)
    for voice, one, other in zip(voices, first, again):
        assert one.dtype == np.float32 and 0.3 * RATE < len(one) < 3 * RATE, voice
        assert 0.05 < np.abs(one).max() < 1.05, voice
        np.testing.assert_array_equal(one, other, err_msg=voice)
    assert len({hashlib.sha256(one).digest() for one in first}) > len(first) - 3  # en is en-us's cousin


def test_rate_pitch_and_phonemes_are_heard():
    fast, slow, named, meant = spoken(
        [
            ("nine three", Speaker("en-us", rate=220)),
            ("nine three", Speaker("en-us", rate=110)),
            ("A B", Speaker("en-us")),
            ("[['eI]] B", Speaker("en-us")),
        ]
    )
    assert len(slow) > 1.5 * len(fast)
    assert len(meant) != len(named)  # the letter, not the article
    low, high = spoken([("no", Speaker("en-us", pitch=0)), ("no", Speaker("en-us", pitch=99))])
    assert pitch(high) > 1.3 * pitch(low)


def pitch(samples):
    """Of the loudest part, by autocorrelation."""
    middle = int(np.convolve(np.square(samples), np.ones(800), "same").argmax())
    piece = samples[max(0, middle - 800) : middle + 800]
    same = np.correlate(piece, piece, "full")[len(piece) - 1 :]
    return RATE / (RATE // 400 + same[RATE // 400 : RATE // 60].argmax())


def test_unknown_voices_and_a_missing_wheel_are_named(monkeypatch):
    for voice in ("en-us+nobody", "klingon"):
        with pytest.raises(UserError, match=rf"voice {voice.replace('+', '.')}: allowed: "):
            spoken([("one", Speaker(voice))])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"espeakng-loader; run: pip install -r requirements\.lock"):
        spoken([])


def test_resampled_sound_is_the_same_tone():
    seconds = np.arange(22050) / 22050
    tone = synthesis.resample(np.sin(2 * np.pi * 440 * seconds).astype(np.float32), 22050)
    expected = np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
    assert len(tone) == RATE and np.abs(tone - expected)[200:-200].max() < 0.01


def test_cepstra():
    """A hundred frames a second; loudness is in C0 alone; the first is the scaled mean of the log mel energies."""
    noise = np.random.default_rng(0).normal(size=RATE).astype(np.float32) * 0.1
    values = cepstra.mfcc(noise, RATE)
    assert values.shape == (100, 13) and values.dtype == np.float32
    louder = cepstra.mfcc(noise * 2, RATE)
    np.testing.assert_allclose(louder[:, 1:], values[:, 1:], atol=1e-2)
    np.testing.assert_allclose(louder[:, 0] - values[:, 0], np.sqrt(23) * np.log(4), rtol=1e-3)
    np.testing.assert_array_equal(cepstra.mfcc(noise, RATE), values)


@pytest.fixture
def few(monkeypatch):
    """The recipe of generated_words with a handful of speakers."""
    card = data.load_card("generated_words")
    recipe = _recipe(card)
    parts = {part: (3, 4, variants) for part, (_, _, variants) in recipe.PARTS.items()}
    monkeypatch.setattr(recipe, "PARTS", parts | {"train": (6, 6, recipe.PARTS["train"][2])})
    monkeypatch.setattr(recipe, "SCHEDULE", (3, 2))
    return recipe, card


def test_generated_words(few, tmp_path):
    recipe, card = few
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    facts, again = (recipe.prepare(None, folder, card) for folder in folders)
    assert facts == again and facts["classes"] == card.sizes["classes"] and facts["input_shape"] == [11, 39]
    for path in folders[0].glob("*.npy"):
        assert path.read_bytes() == (folders[1] / path.name).read_bytes()
    parts = {part: corpus.read(folders[0], part) for part in recipe.PARTS}
    variants = {
        part: {name.partition("+")[2] for name in one.speaker_names.tolist()} for part, one in parts.items()
    }
    assert not set.intersection(*map(set, variants.values()))
    assert facts["splits"]["train"]["utterances"] == 36 and facts["splits"]["test"]["speakers"] == 3
    for one in parts.values():
        lengths = np.diff(one.word_offsets)
        assert lengths.min() >= 1 and lengths.max() <= 8


def test_all_words_and_phones_are_used(few):
    recipe, card = few
    kinds = {*recipe.DIGITS, *recipe.LETTERS, *recipe.ALONE, *recipe.WITH_NUMBER}
    words = {line.split()[0].partition("(")[0] for line in recipe.LEXICON.splitlines() if line.split()}
    assert kinds == words
    phones = {phone for line in recipe.LEXICON.splitlines() for phone in line.split()[1:]}
    assert card.sizes["classes"] == 3 * (len(phones) + 1)
    voices = [variant for _, _, variants in recipe.PARTS.values() for variant in variants]
    assert len(voices) == len(set(voices)) and set(voices) <= {*synthesis.MALE, *synthesis.FEMALE}


def test_noise_has_the_level_it_is_meant_to_have(few, monkeypatch):
    recipe, _ = few
    monkeypatch.setattr(recipe, "SNR_DB", (10, 10))
    speech = np.random.default_rng(1).normal(size=8000).astype(np.float32)
    for seed in range(4):
        sound = recipe.in_noise(speech, RATE, np.random.default_rng(seed))
        before = np.random.default_rng(seed).uniform(*recipe.PAUSE_S, 2)[0]
        start = int(before * RATE)
        noise = sound.copy()
        noise[start : start + len(speech)] -= speech
        ratio = np.mean(np.square(speech)) / np.mean(np.square(noise))
        assert 10 * np.log10(ratio) == pytest.approx(10, abs=0.01)
