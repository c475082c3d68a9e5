import pytest

from implementations.data import load_card, names
from implementations.data.cards import SCHEMA
from implementations.errors import UserError


def test_every_card_is_valid_and_tells_where_a_mirror_may_be():
    assert {"digits", "fashion_mnist", "teacher"} <= set(names())
    for name in names():
        card = load_card(name)
        local = [source["local"] for source in card.sources if "local" in source]
        assert not card.files or f"${{PARATRAIN_DATA}}/{name}" in local


def test_speech_says_whose_it_is_and_stand_ins_are_there(toy):
    cards = [load_card(name) for name in names()]
    kinds = {card.name: card.values["data_kind"] for card in cards if card.values["kind"] == "speech"}
    assert kinds == {"an4": "real", "generated_words": "generated", "switchboard": "licensed"}
    stand_ins = {card.stand_in for card in cards if card.stand_in}
    assert stand_ins == {"generated_words", "generated_keywords", "generated_keywords_small", "king_james"}
    toy.card["kind"] = "speech"
    toy.write([])
    with pytest.raises(UserError, match="'data_kind' is a required property"):
        load_card("toy", toy.datasets_dir)


def test_unknown_name_lists_the_known():
    with pytest.raises(UserError, match=r"no data set 'mnits'.*digits, fashion_mnist"):
        load_card("mnits")
    with pytest.raises(UserError, match="no data set"):
        load_card("../digits")


def test_all_problems_at_once(toy):
    toy.card |= {"kind": "picture", "colour": "red", "name": "Toy"}
    toy.card["sizes"]["classes"] = 1
    toy.card["files"][0]["sha256"] = "12"
    toy.write([{"url": "ftp://example.org"}, {"deb": "toy"}, {"local": "a", "manual": "b"}])
    with pytest.raises(UserError) as raised:
        load_card("toy", toy.datasets_dir)
    lines = str(raised.value).splitlines()
    assert all(line.startswith(str(toy.folder / "card.yaml")) for line in lines)
    for part in (
        "kind: 'picture'",
        "'colour'",
        "name: 'Toy'",
        "sizes.classes: 1",
        "files.0.sha256",
        "sources.0.url",
    ):
        assert any(part in line for line in lines), part
    assert any("sources.1: " in line for line in lines) and any("sources.2: " in line for line in lines)


def test_name_is_the_folder(toy):
    toy.card["name"] = "other"
    toy.write([])
    with pytest.raises(UserError, match="name: got 'other'; allowed: the folder's name, 'toy'"):
        load_card("toy", toy.datasets_dir)


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "a\\b"])
def test_a_file_name_is_a_plain_name(toy, name):
    toy.card["files"][0]["name"] = name
    toy.write([])
    with pytest.raises(UserError, match=r"files\.0\.name"):
        load_card("toy", toy.datasets_dir)


def test_not_yaml(toy):
    (toy.folder / "card.yaml").write_text("{")
    with pytest.raises(UserError, match=r"card\.yaml: not YAML"):
        load_card("toy", toy.datasets_dir)


def test_a_key_that_stands_twice(toy):
    path = toy.folder / "card.yaml"
    path.write_text(path.read_text() + "kind: text\n")
    with pytest.raises(UserError, match=r"card\.yaml: not YAML: key 'kind' stands twice"):
        load_card("toy", toy.datasets_dir)


def test_the_schema_is_a_schema():
    import jsonschema
    import yaml

    jsonschema.Draft202012Validator.check_schema(yaml.safe_load(SCHEMA.read_text()))
