"""It reads YAML that holds nothing but plain values."""

from pathlib import Path
from typing import Any

from simlab.errors import InputError, shortened
from simlab.input_files import read_text


def plain_yaml(path: str | Path) -> Any:
    """What the YAML file at `path` holds, without aliases and names that are given twice.
    `InputError` if `read_text` cannot read it, if it is not YAML, or without PyYAML."""
    try:
        import yaml
    except ImportError as error:
        raise InputError(f"{path}: YAML files need PyYAML: pip install pyyaml") from error

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
