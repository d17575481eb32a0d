"""The options of another project's configuration, of which each is taken once or named as left over."""

from collections.abc import Iterable, Mapping
from typing import Any

from simlab.errors import InputError, require_whole, shortened
from simlab.planner.formats.known import Known

OFF: tuple[Any, ...] = (None, False, "", [])
"""What a switch or a text is where it is not used."""
Settings = dict[str, Any]
"""{option: value}; the options of a section are a table of their own."""


class Options:
    """The options that a file gives, by their full names, such as "parallelism.tensor_parallel_degree".

    What is taken is no longer there: `rest` says what the options are that nobody asked for.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._values = dict(_flat(content))
        self._asked: dict[str, None] = {}
        self._idle: list[str] = []
        self.unsaid: list[str] = []
        """What of the options that were taken a plan cannot say, in words."""

    def take(self, option: str, default: Any = None) -> Any:
        """The value of an option; `default` where it is not given or null. `InputError` for one that
        is not known: a variable of a script, or 'auto', which a trainer replaces."""
        self._asked[option] = None
        value = self._values.pop(option, None)
        text = " ".join(map(str, value)) if isinstance(value, list) else value
        if isinstance(text, str) and "$" in text:
            name = text.partition("$")[2].strip("{}()").split("}")[0]
            raise InputError(
                f"{option} = {shortened(text)}: the script does not say what {name} is: give "
                f"--set {name}=VALUE"
            )
        if value == "auto":
            raise InputError(
                f"{option} = 'auto' is set by the trainer: give --set {option}=VALUE, or write it there"
            )
        return default if value is None else value

    @property
    def names(self) -> list[str]:
        """[options that are not yet taken]"""
        return [*self._values]

    def recognised(self, names: Iterable[str], known: Known) -> list[str]:
        """[those of `names` that were taken, or of which something is known]"""
        return [
            name
            for name in names
            if name not in self._values or known.is_none(name) or known.changes(name)
        ]

    def sections(self, names: Iterable[str], known: Known) -> list[str]:
        """[those of `names` that begin as an option does that was asked for, or of which something is
        known]"""
        known_ones = (*self._asked, *known.none, *known.unsaid)
        begins = {option.partition(".")[0] for option in known_ones}
        return [
            option
            for option in names
            if option not in self._values
            or option[:1] in "-$"
            or option.partition(".")[0] in begins
        ]

    def given(self, option: str) -> bool:
        """Whether an option is given, and not yet taken."""
        return self._values.get(option) is not None

    def look(self, option: str) -> Any:
        """The value of an option, which stays there for whoever reads it; None where it is not given."""
        return self._values.get(option)

    def set(self, option: str, value: Any) -> None:
        """Say what an older option says. `InputError` where the option itself says another thing."""
        if self._values.setdefault(option, value) != value:
            raise InputError(
                f"{option} = {shortened(self._values[option])}: an older option says {value}"
            )

    def section(self, name: str) -> Settings:
        """{option without the name of its section: value} of all options of a section, taken."""
        before = f"{name}."
        its = [option for option in self._values if option.startswith(before)]
        return {option.removeprefix(before): self._values.pop(option) for option in its}

    def set_aside(self, section: str) -> None:
        """Take the options of a section that is not used: they are none of a plan."""
        self._idle += [f"{section}.{option}" for option in self.section(section)]

    def drop(self, *options: str) -> None:
        """Take options whose values change nothing here, whatever they are."""
        for option in options:
            self._asked[option] = None
            self._values.pop(option, None)

    def rename(self, names: Mapping[str, str]) -> None:
        """Take options by older names for those of {older name: name}."""
        for older, name in names.items():
            self._asked[older] = None
            value = self._values.pop(older, None)
            if value is None:
                continue
            if self._values.setdefault(name, value) != value:
                raise InputError(f"{older} and {name} differ: give one of them")

    def whole(self, option: str, default: int | None = None, least: int = 1) -> int | None:
        """A whole number. `InputError` for anything else."""
        value = self.take(option)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # 5e8, as JSON files have it
        require_whole(option, value, least)
        return int(value)

    def switch(self, option: str, default: bool = False) -> bool:
        """A truth value. `InputError` for anything else."""
        value = self.look(option)
        if isinstance(value, str) and value[:1] == "$":  # what comes behind a switch
            self.drop(option)
            self._values[value] = value
            return True
        value = self.take(option, default)
        if not isinstance(value, bool):
            raise InputError(f"{option} = {shortened(value)}: give true or false")
        return value

    def choice(self, option: str, meanings: Mapping[str, Any], default: Any) -> Any:
        """What one of several texts means. Another one is named among `unsaid`, and `default` taken."""
        value = self.look(option)
        if isinstance(value, str) and value in meanings:  # such as 'auto', where it is a choice
            self.drop(option)
            return meanings[value]
        value = self.take(option)
        if value is None:
            return default
        self.unsaid.append(f"{option} = {shortened(value)}")
        return default

    def rest(self, known: Known) -> tuple[list[str], list[str]]:
        """([options that were not taken and are known to be none of a plan], [those that nothing
        knows, in words]). Those that are known to change what no plan says go to `unsaid`."""
        none, unknown = [*self._idle], []
        for option, value in self._values.items():
            if known.changes(option):
                if not known.is_off(option, value):
                    self.unsaid.append(f"{option} = {shortened(value)}: {known.changes(option)}")
            elif known.is_none(option):
                none.append(option)
            elif option[:1] == "$" or option[:3] == "--$":
                name = option.strip("-${}")
                unknown.append(
                    f"${name}: the script does not say what it is: give --set {name}=VALUE"
                )
            elif value not in OFF:
                unknown.append(option + known.nearest(option, self._asked))
        return none, unknown


def _flat(content: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in content.items():
        if not isinstance(key, str):
            raise InputError(f"{shortened(key)} is no option: give names")
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{before}{key}.")
        else:
            pairs.append((before + key, value))
    return pairs


def replicas(gpus: int | None, split: int) -> int:
    """The data-parallel replicas of `gpus` GPUs of which `split` share a model."""
    if gpus is None:
        raise InputError("the file does not say how many GPUs there are: give --gpus")
    require_whole("gpus", gpus)
    if gpus % split:
        raise InputError(f"{gpus} GPUs cannot be split into replicas of {split}")
    return gpus // split


def microbatches(option: str, batch: int, dp: int, size: int) -> int:
    """The microbatches of a replica, of a global batch of sequences that `option` says."""
    if batch % (dp * size):
        raise InputError(
            f"{option} = {batch} is no multiple of {dp} replicas x {size} sequences in a microbatch"
        )
    return batch // (dp * size)
