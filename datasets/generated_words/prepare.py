"""Generated words: digits, spelled letters and commands spoken by espeak-ng's voices, in noise. Not real speech.

    python datasets/generated_words/prepare.py      # or: python -m implementations prepare generated_words

writes results/data/generated_words as an4 is written: normalised frames of 39 values, their HMM states, the lexicon and
the monophone recogniser that gave the states. Nothing is downloaded; takes about a minute on one core.
"""

import sys
from pathlib import Path

LEXICON = """
ZERO    Z IH R OW
ZERO(2) Z IY R OW
ONE     W AH N
TWO     T UW
THREE   TH R IY
FOUR    F AO R
FIVE    F AY V
SIX     S IH K S
SEVEN   S EH V AH N
EIGHT   EY T
NINE    N AY N
A       EY
B       B IY
C       S IY
D       D IY
E       IY
F       EH F
G       JH IY
H       EY CH
I       AY
J       JH EY
K       K EY
L       EH L
M       EH M
N       EH N
O       OW
P       P IY
Q       K Y UW
R       AA R
S       EH S
T       T IY
U       Y UW
V       V IY
W       D AH B AH L Y UW
X       EH K S
Y       W AY
Z       Z EH D
Z(2)    Z IY
YES     Y EH S
NO      N OW
GO      G OW
STOP    S T AA P
START   S T AA R T
HELP    HH EH L P
ENTER   EH N T ER
ERASE   IH R EY S
ERASE(2) IH R EY Z
REPEAT  R IH P IY T
UP      AH P
DOWN    D AW N
LEFT    L EH F T
RIGHT   R AY T
"""
DIGITS = ["ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE"]
LETTERS = [chr(code) for code in range(ord("A"), ord("Z") + 1)]
ALONE = ["YES", "NO", "GO", "STOP", "START", "HELP"]
WITH_NUMBER = ["ENTER", "ERASE", "REPEAT", "UP", "DOWN", "LEFT", "RIGHT"]

MEN = ["m1", "m3", "m4", "m5", "m7", "Gene", "gustave", "paul", "robert"]
WOMEN = ["f1", "Annie", "belinda", "shelby", "steph"]

# Of each part: speakers, utterances of each, and voices' variants, which no other part has.
PARTS = {
    "train": (100, 10, MEN + WOMEN),
    "valid": (12, 10, ["m2", "Mike", "f4", "aunty"]),
    "test": (20, 10, ["m6", "m8", "miguel", "Michael", "travis", "Andrea", "grandma", "linda"]),
}
SNR_DB = (5, 20)
PAUSE_S = (0.1, 0.3)  # before and after the words
SCHEDULE = (5, 3, 3, 5)  # passes of the recogniser's training


def prepare(raw, out, card):
    """Speak, add noise, make features and train the recogniser; returns the summary's facts."""
    from implementations.speech import corpus, lexicon, prepared, synthesis

    words = lexicon.parse(LEXICON.splitlines(), "the lexicon in prepare.py")
    with synthesis.synthesiser() as speak:
        parts = {part: corpus.build(list(utterances(part, speak, card.name)), words) for part in PARTS}
    return prepared.write(out, parts, words, SCHEDULE)


def utterances(part, speak, name):
    """The utterances of a part, speaker by speaker."""
    from implementations.seeds import numpy_stream
    from implementations.speech.cepstra import mfcc
    from implementations.speech.corpus import Utterance
    from implementations.speech.synthesis import DIALECTS, RATE, Speaker

    speakers, each, variants = PARTS[part]
    for number in range(speakers):
        draws = numpy_stream(0, "data", name, part, number)
        voice = f"{draws.choice(DIALECTS)}+{variants[number % len(variants)]}"
        speaker = Speaker(voice, rate=int(draws.integers(130, 211)), pitch=int(draws.integers(25, 76)))
        for place in range(each):
            words = sentence(draws)
            # Alone before a noun, A would be the article.
            text = " ".join("[['eI]]" if word == "A" else word for word in words)
            sound = in_noise(speak(text, speaker), RATE, draws)
            called = f"{part}{number:02d}_{speaker.voice}"
            yield Utterance(f"{called}_{place}", called, tuple(words), mfcc(sound, RATE))


def sentence(draws):
    """One to eight words: a number, a spelled name, or a command with or without a number or letter."""
    kind = draws.random()
    if kind < 0.35:
        return draws.choice(DIGITS, draws.integers(2, 8)).tolist()
    if kind < 0.65:
        return draws.choice(LETTERS, draws.integers(2, 9)).tolist()
    if kind < 0.75:
        return [str(draws.choice(ALONE))]
    after = draws.choice(DIGITS if draws.random() < 0.7 else LETTERS, draws.integers(1, 3))
    return [str(draws.choice(WITH_NUMBER)), *after.tolist()]


def in_noise(speech, rate, draws):
    """The sound with pauses around it, in white or pink noise at a random ratio to the speech's mean power."""
    import numpy as np

    from implementations.speech import noise

    before, after = (np.zeros(int(seconds * rate)) for seconds in draws.uniform(*PAUSE_S, 2))
    sound = np.concatenate([before, speech, after])
    return noise.add(sound, np.mean(np.square(speech)), SNR_DB, draws)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))
