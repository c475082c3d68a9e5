"""The lexicon: words, phones, and the pronunciations that join them (the Sphinx and Kaldi text format)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from implementations.errors import UserError

SILENCE = "SIL"


@dataclass(frozen=True)
class Lexicon:
    """Words and their pronunciations as phone numbers; ``silence`` is the number of the silence phone."""

    words: tuple[str, ...]
    phones: tuple[str, ...]
    pronunciations: tuple[tuple[tuple[int, ...], ...], ...]  # of each word, one or more

    @cached_property
    def word_ids(self) -> dict[str, int]:
        """Number of each word."""
        return {word: number for number, word in enumerate(self.words)}

    @cached_property
    def silence(self) -> int:
        """Number of the silence phone."""
        return self.phones.index(SILENCE)

    def encode(self, words: Sequence[str], utterance: str) -> tuple[int, ...]:
        """Numbers of ``words``; UserError names the utterance and the words that are not in the dictionary."""
        unknown = [word for word in words if word not in self.word_ids]
        if unknown:
            named = ", ".join(dict.fromkeys(unknown))
            raise UserError(f"utterance {utterance}: not in the dictionary: {named}; add a pronunciation")
        return tuple(self.word_ids[word] for word in words)


def parse(lines: Iterable[str], name: str, phones: Sequence[str] | None = None) -> Lexicon:
    """A lexicon of lines ``WORD PHONE PHONE ...``; ``WORD(2)`` or a second line of WORD is another pronunciation.

    Without ``phones`` they are gathered from the lines. The silence phone SIL is always among them. UserError names
    file (``name``), line and fault: no phones, an unknown phone, no words at all.
    """
    entries: dict[str, dict[tuple[str, ...], None]] = {}
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields:
            continue
        word, sounds = re.sub(r"(?<=.)\(\d+\)$", "", fields[0]), tuple(fields[1:])
        if not sounds:
            raise UserError(f"{name}: line {number}: word {word} has no phones")
        unknown = [phone for phone in sounds if phones is not None and phone not in phones]
        if unknown:
            raise UserError(
                f"{name}: line {number}: word {word}: phone {unknown[0]} is not in the phone list"
            )
        entries.setdefault(word, {})[sounds] = None
    if not entries:
        raise UserError(f"{name}: no words")
    found = (
        {phone for one in entries.values() for sounds in one for phone in sounds}
        if phones is None
        else phones
    )
    ordered = tuple(sorted({*found, SILENCE}))
    ids = {phone: number for number, phone in enumerate(ordered)}
    words = tuple(sorted(entries))
    spoken = tuple(tuple(tuple(ids[phone] for phone in sounds) for sounds in entries[word]) for word in words)
    return Lexicon(words, ordered, spoken)


def read(dictionary: Path, phones: Path | None = None) -> Lexicon:
    """The lexicon of a dictionary file, and of a file with a phone a line where given. UserError if it is not there."""
    if not dictionary.is_file():
        raise UserError(f"no dictionary {dictionary}")
    listed = None if phones is None else phones.read_text(encoding="utf-8").split()
    return parse(dictionary.read_text(encoding="utf-8").splitlines(), dictionary.name, listed)
