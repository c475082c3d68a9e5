"""Generated keywords: a small data set of a few voices, and where words and noise end up in a clip."""

import numpy as np
import pytest

from implementations import data
from implementations.data.preparation import _recipe
from implementations.speech import noise, spoken, synthesis
from implementations.speech.keywords import SAMPLES


def test_parts_share_no_voice_and_words_are_those_of_speech_commands():
    voices = [voice for _, variants in spoken.PARTS.values() for voice in variants]
    assert len(voices) == len(set(voices)) and set(voices) <= {*synthesis.MALE, *synthesis.FEMALE}
    assert len(spoken.WORDS) == 35 and list(spoken.WORDS) == sorted(set(spoken.WORDS))


@pytest.fixture
def few(monkeypatch):
    """Two speakers of each part."""
    monkeypatch.setattr(spoken, "PARTS", {part: (2, voices) for part, (_, voices) in spoken.PARTS.items()})


def test_the_same_bytes_each_time(few, monkeypatch, tmp_path):
    monkeypatch.setattr(spoken, "WORDS", ("no", "seven", "yes"))
    card = data.load_card("generated_keywords_small")
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    facts, again = (_recipe(card).prepare(None, folder, card) for folder in folders)
    assert facts == again and facts["input_shape"] == card.sizes["input_shape"]
    assert facts["splits"]["test"] == {"samples": 6, "per_class": [2, 2, 2], "speakers": 2}
    for path in folders[0].glob("*.npy"):
        assert path.read_bytes() == (folders[1] / path.name).read_bytes()


def test_every_speaker_says_every_word_in_a_way_of_their_own(few):
    with synthesis.synthesiser() as speak:
        clips = list(spoken.clips("test", speak))
    assert [clip.label for clip in clips] == [*spoken.WORDS] * 2
    assert len({clip.speaker for clip in clips}) == 2 and len({clip.name for clip in clips}) == 70
    for clip in clips:
        assert clip.samples.shape == (SAMPLES,) and clip.samples.dtype == np.float32
        assert 0.01 < np.abs(clip.samples).max() < 3, clip.name


@pytest.mark.parametrize("length", [5000, 16000, 24000])
def test_words_lie_near_the_middle(monkeypatch, length):
    monkeypatch.setattr(spoken, "SNR_DB", (200, 200))  # next to none
    speech = np.linspace(1, 2, length, dtype=np.float32)
    shifts = []
    for seed in range(40):
        clip = spoken.in_noise(speech, np.random.default_rng(seed))
        assert clip.shape == (SAMPLES,)
        inside = np.flatnonzero(clip > 0.5)
        start = inside[0] - round((clip[inside[0]] - 1) * (length - 1))  # of the speech, in the clip
        expected = np.zeros(SAMPLES)
        expected[inside] = speech[inside - start]
        np.testing.assert_allclose(clip, expected, atol=1e-4)
        assert len(inside) == min(length, SAMPLES, length + start, SAMPLES - start)
        shifts.append(start - (SAMPLES - length) // 2)
    assert -1600 <= min(shifts) < -1000 and 1000 < max(shifts) <= 1600


def test_noise_has_the_level_it_is_meant_to_have():
    sound = np.random.default_rng(1).normal(size=8000).astype(np.float32)
    spectra = []
    for seed in range(6):
        added = noise.add(sound, 0.5, (10, 10), np.random.default_rng(seed)) - sound
        assert 10 * np.log10(0.5 / np.mean(np.square(added))) == pytest.approx(10, abs=0.01)
        power = np.square(np.abs(np.fft.rfft(added)))
        spectra.append(power[1:400].mean() / power[-400:].mean())
    assert sum(ratio > 5 for ratio in spectra) not in (0, 6)  # pink, and white: about 1
    assert all(ratio > 5 or 0.7 < ratio < 1.4 for ratio in spectra)
