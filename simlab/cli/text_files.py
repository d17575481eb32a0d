"""It reads YAML that holds nothing but plain values."""

import json
import re
from pathlib import Path
from typing import Any

from simlab.errors import InputError, shortened
from simlab.input_files import read_text


def plain_yaml(path: str | Path) -> Any:
    """What the YAML file at `path` holds, without aliases and names that are given twice.
    `InputError` if `read_text` cannot read it, or if it is not YAML. Without PyYAML only lines such as
    those of `simlab plan --out` are read."""
    try:
        import yaml
    except ImportError:
        return _lines(path, read_text(path))

    class Plain(yaml.SafeLoader):
        """Without aliases, by which a short file stands for a huge one, and without names that are
        given twice, of which the last would count."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError(f"*{self.peek_event().anchor}: aliases are not taken")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            names = [key.value for key, _ in node.value]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise yaml.YAMLError(f"{shortened(twice)} is given twice")
            return super().construct_mapping(node, deep)

    text = read_text(path)
    try:
        return yaml.load(text, Loader=Plain)
    except (yaml.YAMLError, ValueError) as error:
        why = " ".join(str(error).split())
        raise InputError(
            f"{path} is no plain YAML: {why[:200]}{'...' * (len(why) > 200)}"
        ) from error
    except RecursionError as error:
        raise InputError(f"{path} is nested too deeply") from error


WORDS = {"yes": True, "true": True, "no": False, "false": False, "null": None, "~": None, "": None}
"""What YAML takes for a truth value, or for nothing, in whatever letters."""


def _lines(path: str | Path, text: str) -> dict[str, Any]:
    """{name: value} of lines 'name: value', whose values are plain texts, numbers, truth values, or
    lists and tables as JSON has them."""
    content: dict[str, Any] = {}
    for line in text.splitlines():
        if not line.strip() or line.lstrip()[0] == "#":
            continue
        match = re.fullmatch(r"(\w+):(?: +(.*?))?(?: +#.*)?\s*", line)
        if match is None or (match[2] or "")[:1] in tuple("&*!|>%@`'"):
            raise InputError(
                f"{path}: {shortened(line)}: without PyYAML only lines 'name: value' are read; "
                "pip install pyyaml"
            )
        if match[1] in content:
            raise InputError(f"{path} is no plain YAML: {shortened(match[1])} is given twice")
        content[match[1]] = _plain_value(path, match[2] or "")
    return content


def _plain_value(path: str | Path, text: str) -> Any:
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    try:
        if text[:1] in tuple('[{"'):
            return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: {shortened(text)}: without PyYAML a list or a table is read as JSON has it; "
            "pip install pyyaml"
        ) from error
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    return float(text) if re.fullmatch(r"[-+]?(\d+\.\d*|\.\d+)([eE][-+]\d+)?", text) else text
