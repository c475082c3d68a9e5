"""YAML files: read strictly (a key twice is a mistake) and held against a JSON schema."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from implementations.config.problems import Place, Problems, listing, show
from implementations.yamlfile import load_yaml

SCHEMAS = Path(__file__).parents[2] / "config/schemas"
UNREADABLE: Any = object()


def _integer(_: Any, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(_: Any, value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# Stricter than JSON schema: 2.0 is no integer and infinity no number.
_Validator = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", _integer).redefine(
        "number", _number
    ),
)


@cache
def schema(name: str) -> dict[str, Any]:
    """The schema in ``config/schemas/<name>.schema.yaml``."""
    return load_yaml(SCHEMAS / f"{name}.schema.yaml")


def read(path: Path, problems: Problems) -> Any:
    """The content of a YAML file; UNREADABLE, and a problem with the line's number, when it cannot be read."""
    place = Place(str(path))
    try:
        return load_yaml(path)
    except FileNotFoundError:
        problems.say(place, "no such file")
    except (OSError, UnicodeDecodeError) as error:
        problems.say(place, f"cannot be read: {error}")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        problems.say(place, f"{line}not YAML: {' '.join(filter(None, [error.context, error.problem]))}")
    except (yaml.YAMLError, ValueError) as error:
        problems.say(place, f"not YAML: {error}")
    return UNREADABLE


def read_checked(path: Path, name: str, problems: Problems) -> dict[str, Any] | None:
    """The content of a YAML file without what the schema ``name`` refuses, which is reported; None if nothing is left.

    What is sound is kept, so that one mistake does not hide the others. Keys that are needed may lack.
    """
    content, rules = read(path, problems), schema(name)
    if content is UNREADABLE:
        return None
    check(content, rules, Place(str(path)), problems)
    return _sound(content, rules, rules) if isinstance(content, dict) else None


def _sound(value: Any, rules: dict[str, Any], root: dict[str, Any]) -> Any:
    """The part of a value that fits its schema; UNREADABLE if it is of the wrong kind altogether."""
    rules = _resolve(rules, root)
    if "properties" in rules and isinstance(value, dict):
        others = rules.get("additionalProperties", {})
        kept = {}
        for key, item in value.items():
            inner = rules["properties"].get(key, others)
            if inner is not False and (part := _sound(item, inner, root)) is not UNREADABLE:
                kept[key] = part
        return kept
    if isinstance(value, list) and "properties" in _resolve(rules.get("items", {}), root):
        parts = [_sound(item, rules["items"], root) for item in value]
        return [part if isinstance(part, dict) else {} for part in parts]  # positions stay as they are
    return value if _Validator({**rules, "$defs": root.get("$defs", {})}).is_valid(value) else UNREADABLE


def _resolve(rules: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """The schema that a reference within its file stands for."""
    if "$ref" not in rules:
        return rules
    target: Any = root
    for part in rules["$ref"].removeprefix("#/").split("/"):
        target = target[part]
    return target


def check(value: Any, rules: dict[str, Any], place: Place, problems: Problems) -> bool:
    """Whether ``value`` fits the JSON schema ``rules``; says every way in which it does not."""
    errors = sorted(
        _Validator(rules).iter_errors(value), key=lambda error: list(map(str, error.absolute_path))
    )
    for error in errors:
        here = place.at(*error.absolute_path)
        for where, got, wanted in _faults(error, rules):
            problems.add(here.at(*where), got, wanted)
    return not errors


def _faults(
    error: jsonschema.ValidationError, root: dict[str, Any]
) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """What an error of the validator says: path below the error's own, what stands there, what may."""
    rules, value = error.schema, error.instance
    if error.validator == "additionalProperties" and isinstance(rules.get("additionalProperties"), bool):
        known = list(rules.get("properties", {}))
        for key in value:
            if key not in known:
                yield (str(key),), "an unknown key", known_names(str(key), known)
    elif error.validator == "required":
        missing = next(
            key for key in error.validator_value if key not in value and f"'{key}'" in error.message
        )
        yield (missing,), "nothing", allowed(rules.get("properties", {}).get(missing, {}), root)
    elif error.validator == "uniqueItems":
        yield (), show(value), "each value once"
    else:
        yield (), show(value), allowed(rules, root)


def known_names(wrong: str, known: list[str]) -> str:
    """The known names for a message, with the likely one first when there is one."""
    close = difflib.get_close_matches(wrong, known, 1)
    return f"{listing(known)}{f' (did you mean {close[0]}?)' if close else ''}"


def allowed(rules: dict[str, Any], root: dict[str, Any]) -> str:
    """What a schema allows, in words."""
    rules = _resolve(rules, root)
    for key in ("anyOf", "oneOf"):
        if key in rules and "type" not in rules:
            return " or ".join(allowed(option, root) for option in rules[key])
    if "title" in rules:
        return rules["title"]
    if "const" in rules:
        return show(rules["const"])
    if "enum" in rules:
        return " | ".join(map(str, rules["enum"]))
    types = rules.get("type", "a value")
    text = " or ".join(
        "null" if kind == "null" else kind for kind in ([types] if isinstance(types, str) else types)
    )
    if "minimum" in rules:
        text += f" >= {rules['minimum']}"
    if "exclusiveMinimum" in rules:
        text += f" > {rules['exclusiveMinimum']}"
    if "maximum" in rules:
        text += f" <= {rules['maximum']}"
    if "pattern" in rules:
        text += f" like {rules['pattern']}"
    if "items" in rules:
        text += f" of {allowed(rules['items'], root)}"
    if rules.get("minItems") or rules.get("minProperties") or rules.get("minLength"):
        text += ", not empty"
    if rules.get("type") == "object" and rules.get("properties"):
        text += f" with {listing(list(rules['properties']))}"
    return text
