"""The MaxText configuration that the user has: a file, words, or both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml


class ConfigError(Exception):
    """A configuration cannot be read; the message names file, line or word."""


@dataclass(frozen=True)
class Given:
    """
    Attributes:
      values: by key, later words winning.
      version: of MaxText, where a ``conversion.json`` says it.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    version: str | None = None


def read_given(words: Sequence[str]) -> Given:
    """The configuration of ``words``: each is ``key=value``, or a YAML or JSON file.

    Raises:
      ConfigError: a word is neither, or a file holds no mapping.
    """
    values: dict[str, Any] = {}
    version = None
    for word in words:
        if Path(word).is_file():
            found, said = _file(Path(word))
            values, version = values | found, said or version
        else:
            values |= dict([_word(word)])
    return Given(values, version)


def _word(word: str) -> tuple[str, Any]:
    key, equals, text = word.partition("=")
    if not equals or not key.isidentifier():
        raise ConfigError(f"--maxtext-config {word}: no such file, and not KEY=VALUE")
    try:
        return key, yaml.safe_load(text) if text else ""
    except yaml.YAMLError as error:
        raise ConfigError(f"--maxtext-config {word}: {text!r} is no YAML value") from error


def _file(file: Path) -> tuple[dict[str, Any], str | None]:
    found = read_yaml(file)
    if not isinstance(found.get("maxtext_config", {}), dict):
        raise ConfigError(f"{file}: maxtext_config is {found['maxtext_config']!r}, expected keys")
    if isinstance(found.get("maxtext_config"), dict):
        version = found.get("maxtext_version")
        return dict(found["maxtext_config"]), None if version is None else str(version)
    # The file that a MaxText configuration extends is no key of the model.
    return {key: value for key, value in found.items() if key != "base_config"}, None


def read_yaml(file: Path) -> dict[str, Any]:
    """The mapping in a YAML or JSON file.

    Raises:
      ConfigError: it cannot be read, or is no mapping; file and line are named.
    """
    try:
        text = file.read_text(encoding="utf-8")
        found = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not a text file (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file}:{error.lineno}: not JSON: {error.msg}") from error
    except RecursionError as error:
        raise ConfigError(f"{file}: nested too deeply") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}{_line(error)}: not YAML: {_problem(error)}") from error
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ConfigError(f"{file}: expected keys and values, as MaxText's base.yml has them")
    return found


def _line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return "" if mark is None else f":{mark.line + 1}"


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or error).splitlines()[0]


def same(one: Any, other: Any) -> bool:
    """Whether two values mean the same to MaxText, however YAML reads them."""
    a, b = _plain(one), _plain(other)
    if isinstance(a, float) and isinstance(b, float):
        return a == b or abs(a - b) <= 1e-9 * max(abs(a), abs(b))
    return bool(a == b)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, str):
        return _from_text(value.strip())
    # Before int: True is a number, too.
    if value is None or isinstance(value, bool):
        return value
    return float(value) if isinstance(value, (int, float)) else value


def _from_text(text: str) -> Any:
    """YAML 1.1 leaves ``1e-7`` and ``None`` as text; MaxText reads a number and nothing."""
    words: dict[str, Any] = {"": None, "none": None, "null": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return float(text)
    except ValueError:
        return text
