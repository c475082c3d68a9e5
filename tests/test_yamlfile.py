"""One dialect of YAML for all of the suite's readers."""

import ast
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from implementations.reporting.claims import load_claims
from implementations.yamlfile import load_yaml

NUMBERS = ["1e-3", "2e-5", "-3e4", "+1E6", "1.5e3", "2.e-1", ".5e3", "1.0e-3", "117.7e+6", "0.25", "7"]


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_are_numbers(text):
    value = load_yaml(f"a: {{b: {text}}}")["a"]["b"]
    assert isinstance(value, int | float) and value == float(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_float_as_python_writes_it(value):
    assert load_yaml(f"[{value!r}]") == [value]


@pytest.mark.parametrize("text", ["e5", "1e", "1-e3", "v1e3", "1e3x", "2026-01-31", "'1e3'", "1e3 s"])
def test_words_and_dates_are_text(text):
    assert load_yaml(f"a: {text}") == {"a": text.strip("'")}


def test_a_file_and_a_text(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("name: \u00e4", encoding="utf-8")
    assert load_yaml(path) == load_yaml("name: \u00e4") == {"name": "\u00e4"}
    with pytest.raises(OSError):
        load_yaml(tmp_path / "none.yaml")


def test_a_key_twice_is_refused():
    with pytest.raises(yaml.YAMLError, match="'lr' stands twice"):
        load_yaml("{a: {lr: 1, b: 2, lr: 3}}")
    with pytest.raises(yaml.YAMLError):
        load_yaml("{")


def test_claims_are_read_the_same_way(tmp_path):
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "a.yaml").write_text("claims: []\nclaims: []\n")
    with pytest.raises(Exception, match="'claims' stands twice"):
        load_claims(tmp_path)


READERS = ("config", "data", "cluster", "reporting/claims.py")


@pytest.mark.parametrize("part", READERS)
def test_no_reader_has_a_dialect_of_its_own(part):
    top = Path(__file__).parents[1] / "implementations" / part
    for path in [top] if top.is_file() else top.rglob("*.py"):
        calls = {
            node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)
        }
        assert not calls & {"safe_load", "full_load", "CSafeLoader", "SafeLoader"}, path
