"""What the suite's own cards and models come to, and which data sets are replaced."""

import dataclasses
import json

import pytest

from implementations import config, models
from implementations.config import Catalog, catalog, load
from implementations.config.documents import schema
from implementations.data import load_card, names
from implementations.point import Point
from tests.config.stubs import write

PAIRS = {
    "an4": "generated_words",
    "speech_commands": "generated_keywords",
    "speech_commands_small": "generated_keywords_small",
}
TEXTS = {"shakespeare": "king_james"}  # both real


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A working directory without results, where no start has decided anything."""
    monkeypatch.setattr(catalog, "RESULTS", tmp_path / "results")
    monkeypatch.delenv(config.STAND_INS_VARIABLE, raising=False)
    return tmp_path


def leave_outcome(folder, name, ok):
    path = folder / "results" / "prepared" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"ok": ok, "reason": None if ok else "not fetched", "attempts": 1}))


def test_cards_name_their_stand_ins():
    cards = {name: load_card(name) for name in names()}
    assert {name: card.stand_in for name, card in cards.items() if card.stand_in} == PAIRS | TEXTS
    for name, stand_in in PAIRS.items():
        mine, other = cards[name].values, cards[stand_in].values
        assert (mine["data_kind"], other["data_kind"]) == ("real", "generated")
        assert mine["kind"] == other["kind"]
        assert mine["sizes"]["input_shape"] == other["sizes"]["input_shape"]
        assert not other["files"] and "stand_in" not in other  # nothing of it has to be fetched
    for name, stand_in in TEXTS.items():
        mine, other = cards[name].values, cards[stand_in].values
        assert mine["kind"] == other["kind"] == "text" and "stand_in" not in other
        assert mine["sizes"]["input_shape"] == other["sizes"]["input_shape"]
        assert any("pypi" in source for source in other["sources"])  # where the suite itself is had from


def test_what_failed_is_replaced_and_nothing_else(elsewhere):
    assert Catalog.installed().stand_ins == {}
    for name in PAIRS:
        leave_outcome(elsewhere, name, ok=name == "an4")
    keywords = {name: PAIRS[name] for name in ("speech_commands", "speech_commands_small")}
    assert Catalog.installed().stand_ins == keywords
    (elsewhere / "results/data/speech_commands").mkdir(parents=True)
    (elsewhere / "results/data/speech_commands/summary.json").write_text("{}")
    assert set(Catalog.installed().stand_ins) == {"speech_commands_small"}  # the other is there by now


def test_jobs_hear_of_it_from_their_start(elsewhere, monkeypatch):
    leave_outcome(elsewhere, "an4", ok=False)
    monkeypatch.setenv(config.STAND_INS_VARIABLE, "speech_commands,speech_commands_small")
    assert Catalog.installed().stand_ins == {name: PAIRS[name] for name in PAIRS if name != "an4"}
    monkeypatch.setenv(config.STAND_INS_VARIABLE, "")
    assert Catalog.installed().stand_ins == {}


@pytest.mark.parametrize(("asked", "had"), [(3000, 3000), (6000, None), (None, None)])
def test_keywords_are_trained_on_where_speech_commands_cannot_be_had(
    elsewhere, monkeypatch, tmp_path, asked, had
):
    """35 classes for 12; all of its 5,600 clips where more are asked for."""
    monkeypatch.setenv(config.STAND_INS_VARIABLE, "speech_commands_small")
    values = {"method": "sequential", "workers": 1, "dataset": "speech_commands_small", "model": "fc-8"}
    sweep = {"name": "a", "evidence": "simulated", "set": values | {"data_size": asked}}
    (point,) = load(write(tmp_path, one={"paper": "ist", "title": "t", "sweeps": [sweep]})).points
    assert (point.dataset, point.data_size) == ("generated_keywords_small", had)


def test_sparse_data_and_sparse_models():
    installed = Catalog.installed()
    assert installed.sparse == {"amazon670k", "delicious", "wordnet_hypernym", "wordnet_hypernym_5"}
    assert installed.models == {name: builder["schema"] for name, builder in models.BUILDERS.items()}
    assert installed.sparse_models < set(installed.models) and "fc" not in installed.sparse_models


def test_every_key_of_a_point_can_be_given():
    """But for those that a sweep has at its own place, and those that its method and recipe take."""
    own = {"paper", "evidence", "seed", "repeat", "experiments", "method_params", "recipe"}
    fields = {field.name for field in dataclasses.fields(Point)}
    assert set(schema("point")["properties"]) == fields - own
