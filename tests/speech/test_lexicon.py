import pytest

from implementations.errors import UserError
from implementations.speech import lexicon


def test_pronunciations_are_gathered_by_word():
    read = lexicon.parse(["A  AH", "A(2) EY", "", "AND AE N D", "A EY"], "an4.dic")
    assert read.words == ("A", "AND")
    assert read.phones == ("AE", "AH", "D", "EY", "N", "SIL")
    names = [[[read.phones[p] for p in sounds] for sounds in some] for some in read.pronunciations]
    assert names == [[["AH"], ["EY"]], [["AE", "N", "D"]]]
    assert read.phones[read.silence] == "SIL"


def test_files(tmp_path):
    (tmp_path / "x.dic").write_text("YES Y EH S\n")
    (tmp_path / "x.phone").write_text("EH\nS\nSIL\nY\nZ\n")
    assert lexicon.read(tmp_path / "x.dic", tmp_path / "x.phone").phones == ("EH", "S", "SIL", "Y", "Z")


def test_a_word_missing_from_the_dictionary_is_named():
    read = lexicon.parse(["A AH"], "an4.dic")
    assert read.encode(["A", "A"], "u1") == (0, 0)
    with pytest.raises(UserError, match="utterance u1: not in the dictionary: B, C; add"):
        read.encode(["B", "A", "C", "B"], "u1")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["A AH", "B"], "x.dic: line 2: word B has no phones"),
        (["A AH", "B XX"], "x.dic: line 2: word B: phone XX is not in the phone list"),
        (["", " "], "x.dic: no words"),
    ],
)
def test_faults_are_named(lines, message):
    with pytest.raises(UserError, match=message):
        lexicon.parse(lines, "x.dic", ["AH", "SIL"])
