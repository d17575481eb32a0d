"""The command that a shell script runs, with the variables that it sets.

Read are assignments, lists, quotes, `${NAME:-default}`, sums of whole numbers, and `if` and `case` that are
decided by texts. A variable that another program decides stays as `$NAME`. One that is set where a condition
is not known stays as the variable in that condition, where there is one: `given` says it from outside. Nothing
is executed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from simlab.cli.shell_conditions import calculated, holds

NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=")
SAYS = (
    "echo",
    "printf",
    "cat",
    "mkdir",
    "cd",
    "ls",
    "rm",
    "cp",
    "pip",
    "conda",
    "module",
    "source",
    "set",
)
"""Commands whose options are no training's."""
ENDS = "\n;|&(){}"
CONDITIONS = (["["], ["[["], ["if"], ["elif"], ["case"])
"""Behind these words, a variable that holds nothing counts as a word."""
RUN = re.compile(r"\$\(.*\)|`.*`", re.DOTALL)
"""What another program says."""
ARGUMENTS = re.compile(r"\$#|\$@|\$\*|\bgetopts\b")
"""The arguments that a script itself is started with."""
SBATCH = re.compile(
    r"^#SBATCH\s+(--nodes|-N|--gpus-per-node|--gres|--ntasks-per-node)[= ]\s*(?:gpu:)?(?:[A-Za-z]\w*:)?(\d+)\b(?!-)",
    re.MULTILINE,
)
SLURM = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "-N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "--gres": ("SLURM_GPUS_ON_NODE",),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
}
"""{option of sbatch in a script: the variables that Slurm sets by it}"""
MOST_WORDS = 100_000


@dataclass(eq=False)
class Branch:
    """A branch of an `if` or a `case`.

    runs: whether it is executed. done: whether one before it was, or it is. None where that is not known.
    asks: the variable in the condition that is not known; '' if there is none.
    """

    runs: bool | None
    done: bool | None
    asks: str = ""


@dataclass
class Script:
    """A script, read from left to right."""

    text: str
    given: Mapping[str, str]
    """{variable: value} from outside, above what the script says."""
    at: int = 0
    variables: dict[str, list[str]] = field(default_factory=dict)
    """{name: its words; one for a plain variable}"""
    used: set[str] = field(default_factory=set)
    decided_by: dict[str, str] = field(default_factory=dict)
    """{variable that is not known: the one in the condition that decides it, behind -- if it would hold
    options}"""
    open: list[Branch] = field(default_factory=list)
    """The branches of each `if` and `case` around."""
    commands: list[list[str]] = field(default_factory=list)
    guard: tuple[Branch, ...] = ()
    """The branch of the statement that comes next, behind a condition and && or ||."""

    def __post_init__(self) -> None:
        self.text = re.sub(
            r"<<-?\s*['\"]?(\w+)['\"]?.*?\n\s*\1\s*(?=\n|$)", "", self.text, flags=re.DOTALL
        )
        self.text = self.text.replace("\r", "").replace("\\\n", " ")
        self.variables = {
            variable: [number]
            for option, number in SBATCH.findall(self.text)
            for variable in SLURM[option]
        }
        self.variables |= {name: [value] for name, value in self.given.items()}

    def words(self) -> list[str]:
        """The words of the command that trains: of the commands that have options, of which the last
        counts; where there is none, those of all variables."""
        while self.at < len(self.text) and len(self.commands) < MOST_WORDS:
            self._statement()
        split = [[word for text in words for word in _split(text)] for words in self.commands]
        found = [words for words in split if any(word[:2] == "--" for word in words)]
        named = [words for words in found if any(word.endswith(".py") for word in words)]
        rest = [
            word
            for name, its in self.variables.items()
            if name not in self.used and any("--" in one for one in its)
            for word in its
        ]
        if not found:
            return [word for text in rest for word in _split(text)]
        asking = [words for words in found if any(word[:3] == "--$" for word in words)]
        return (named or asking or found)[-1]

    def _statement(self) -> None:
        words: list[str] = []
        assigned: list[tuple[str, bool, list[str]]] = []
        while self.at < len(self.text):
            self._skip(" \t")
            here = self.text[self.at : self.at + 1]
            if not here or here in ENDS:
                self.at += 1
                break
            if here == "#":
                self.at = (self.text + "\n").index("\n", self.at)
                continue
            if sent := re.compile(r"\d*[<>]+&?\d*").match(self.text, self.at):
                self.at = sent.end()
                self._skip(" \t")
                self._word()
                continue
            match = ASSIGNED.match(self.text, self.at)
            if match and (not words or words[0] in ("export", "declare", "local", "readonly")):
                self.at = match.end()
                assigned.append((match[1], bool(match[2]), self._value()))
                continue
            before = self.at
            its = self._word()
            is_nothing = its == [""] and not re.search("[\"']", self.text[before : self.at])
            if not is_nothing or words[:1] in CONDITIONS:
                words += its
            self.at += self.at == before
            if words in (["then"], ["do"], ["else"]) or (
                words[:1] == ["case"] and words[-1] == "in"
            ):
                break
        guard, self.guard = self.guard, ()
        self.open += guard
        self._done(words, assigned)
        if guard:
            self.open.remove(guard[0])
        if words[:1] in (["["], ["[["]) and self.text[self.at - 1 : self.at + 1] in ("&&", "||"):
            known = holds(words)
            self.at += 1
            known = known if self.text[self.at - 1] == "&" or known is None else not known
            self.guard = (Branch(known, known, _asked(words)),)

    def _done(self, words: list[str], assigned: list[tuple[str, bool, list[str]]]) -> None:
        if words and words[0] in ("then", "do", "time", "exec", "nohup", "sudo", "!", "eval"):
            inner = words[1:]
            words = (
                [word for text in inner for word in _split(text)] if words[0] == "eval" else inner
            )
        first = words[0] if words else ""
        if first in ("for", "while", "until") and ARGUMENTS.search(" ".join(words)):
            self._pass_loop()
        elif first == "for" and len(words) > 1:
            self._unknown(words[1])
        elif first in ("if", "elif", "else", "fi"):
            self._branch(first, words[1:])
        elif first == "case":
            self._case(" ".join(words[1:-1]))
        elif self._runs() is False:
            for name, _, its in assigned:  # options that are not given
                if any("--" in one for one in its) and name not in self.decided_by:
                    self.variables.setdefault(name, [])
        else:
            for name, more, its in assigned:
                self._assign(name, more, its)
            if words and first not in SAYS and first != "export":
                goes_on = first[:2] == "--" and self.commands and self.commands[-1][0][:2] == "--"
                if goes_on:  # a list of options, one a line
                    self.commands[-1] += words
                else:
                    self.commands.append(words)

    def _pass_loop(self) -> None:
        """Pass over a loop's body: without arguments, what is said above stays."""
        depth = 0
        for word in re.finditer(r"(?<![^\s;])(do|done)(?![^\s;&|)<])", self.text[self.at :]):
            depth += 1 if word[1] == "do" else -1
            if depth <= 0:
                self.at += word.end()
                return

    def _runs(self) -> bool | None:
        """Whether what is read now is executed; None where a condition is not known."""
        all_known = [branch.runs for branch in self.open]
        return False if False in all_known else None if None in all_known else True

    def _assign(self, name: str, more: bool, its: list[str]) -> None:
        if name in self.given:
            return
        if self._runs() is None and self.variables.get(name) != its:
            decides = next((one.asks for one in self.open if one.runs is None), "") or name
            holds_options = any("--" in word for word in its)
            known = self.variables.get(name)
            if holds_options and known and (more or " ".join(its).startswith(" ".join(known))):
                if f"--${decides}" not in known[-1]:
                    self.variables[name] = [*known, f"--${decides}"]
                return
            self._unknown(name, f"--{decides}" if holds_options else decides)
            return
        asks = [
            word for word in its if re.search(r"\$\(|\$`", word) or re.fullmatch(r"\S*\$\S*", word)
        ]
        if len(its) == 1 and asks and "--" not in RUN.sub("", its[0]) and not more:
            self._unknown(name)  # the variable is what is asked for
        elif more and len(self.variables.get(name, [])) == len(its) == 1 and "--" not in its[0]:
            self.variables[name] = [self.variables[name][0] + its[0]]
        else:
            self.variables[name] = (self.variables.get(name, []) if more else []) + its

    def _unknown(self, name: str, asks: str = "") -> None:
        if name not in self.given:
            self.variables.pop(name, None)
            self.decided_by[name] = asks or name

    # conditions
    # -------------------------------------------------------------------------------------------

    def _branch(self, word: str, condition: list[str]) -> None:
        if word == "fi":
            self.open[-1:] = []
        elif word == "if":
            known = holds(condition)
            self.open.append(Branch(known, known, _asked(condition)))
        elif self.open:
            done = self.open[-1].done
            known = True if word == "else" else holds(condition)
            runs = (
                False if done else known if done is False else None if known is not False else False
            )
            self.open[-1] = Branch(
                runs,
                True if done or runs else None if None in (done, runs) else False,
                self.open[-1].asks or _asked(condition),
            )

    def _case(self, value: str) -> None:
        """The branch of a `case` whose pattern fits; all others are passed over."""
        end = re.compile(r"\besac\b").search(self.text, self.at)
        inside = self.text[self.at : end.start() if end else len(self.text)]
        self.at = end.end() if end else len(self.text)
        known = "$" not in value
        for patterns, body in re.findall(r"\(?\s*([^()\n;]+?)\)(.*?)(?:;;|$)", inside, re.DOTALL):
            options = [option.strip().strip("\"'") for option in patterns.split("|")]
            fits = "*" in options or value in options
            if known and not fits:
                continue
            part = Script(body, self.given, variables={})
            part.variables, part.used = self.variables, self.used
            part.decided_by = self.decided_by
            part.open = [] if known else [Branch(None, None, _asked([value]))]
            while part.at < len(body):
                part._statement()
            self.commands += part.commands
            if known:
                return

    # words
    # -------------------------------------------------------------------------------------------

    def _skip(self, letters: str) -> None:
        while self.at < len(self.text) and self.text[self.at] in letters:
            self.at += 1

    def _value(self) -> list[str]:
        """The words of what is assigned: a list in brackets, or one word."""
        if self.text[self.at : self.at + 1] != "(":
            return [" ".join(self._word(split=False)) if self._is_word() else ""]
        self.at += 1
        words: list[str] = []
        while self.at < len(self.text):
            self._skip(" \t\n")
            if self.text[self.at : self.at + 1] == "#":
                self.at = (self.text + "\n").index("\n", self.at)
            elif self.text[self.at : self.at + 1] in (")", ""):
                self.at += 1
                break
            else:
                before = self.at
                words += [word for word in self._word() if word]
                self.at += self.at == before
        return words

    def _is_word(self) -> bool:
        return self.text[self.at : self.at + 1] not in ("", *" \t\n;|&)")

    def _word(self, split: bool = True) -> list[str]:
        """The next word; several where a variable without quotes, or a list, holds several."""
        parts: list[list[str]] = [[""]]
        while self._is_word():
            here = self.text[self.at]
            if here == "'":
                end = (self.text + "'").index("'", self.at + 1)
                _join(parts, [self.text[self.at + 1 : end]])
                self.at = end + 1
            elif here == '"':
                self._quoted(parts)
            elif here in "$`":
                its = self._expanded()
                is_run = RUN.fullmatch(" ".join(its)) is not None
                bare = [word for text in its for word in text.split()]
                bare = bare if split and not is_run else its
                _join(parts, bare)
            elif here in "(<>" and parts != [[""]]:
                break
            else:
                self.at += here == "\\"
                _join(parts, [self.text[self.at : self.at + 1]])
                self.at += 1
        found = list(parts[0])
        return found if found != [""] else [""]

    def _quoted(self, parts: list[list[str]]) -> None:
        self.at += 1
        _join(parts, [""])
        while self.at < len(self.text) and self.text[self.at] != '"':
            here = self.text[self.at]
            if here in "$`":
                _join(parts, self._expanded())
                continue
            self.at += here == "\\"
            _join(parts, [self.text[self.at : self.at + 1]])
            self.at += 1
        self.at += 1

    def _expanded(self) -> list[str]:
        """The words of what begins with $ or ` here; the text as it stands where it is not known."""
        begin = self.at
        if self.text[begin] == "`":
            self.at = (self.text + "`").index("`", begin + 1) + 1
            return [f"${self.text[begin : self.at]}"]
        if self.text.startswith("$((", begin):
            return [self._sum(begin)]
        if self.text.startswith("$(", begin) or self.text.startswith("${", begin):
            self.at = _closing(self.text, begin + 1)
            inside = self.text[begin + 2 : self.at - 1]
            return self._braced(inside) if self.text[begin + 1] == "{" else [f"$({inside})"]
        match = NAME.match(self.text, begin + 1)
        self.at = match.end() if match else min(begin + 2, len(self.text))
        return self._of(self.text[begin + 1 : self.at])

    def _of(self, name: str) -> list[str]:
        """The words of a variable; where they are not known, the name of what is to be said."""
        self.used.add(name)
        asks = self.decided_by.get(name, name)
        return self.variables.get(name, [f"--${asks[2:]}" if asks[:2] == "--" else f"${asks}"])

    def _braced(self, inside: str) -> list[str]:
        match = re.match(r"([A-Za-z_]\w*|\d+|@)(\[[@*]\])?(?:(:?[-=])(.*))?$", inside, re.DOTALL)
        if not match:
            return [f"${{{inside}}}"]
        self.used.add(match[1])
        known = self.variables.get(match[1])
        if known is not None and not (match[3] and match[3][0] == ":" and known == [""]):
            return known
        if match[3] is None:
            return self._of(match[1])
        default = Script(match[4], self.given)
        default.variables, default.used = self.variables, self.used
        default.decided_by = self.decided_by
        its = " ".join(default._word(split=False)) if match[4] else ""
        if match[3][-1] == "=":
            self.variables[match[1]] = [its]
        return [its]

    def _sum(self, begin: int) -> str:
        """What whole numbers in $(( )) come to; the text where one is not known."""
        self.at = _closing(self.text, begin + 1)
        inside = self.text[begin + 3 : self.at - 2]
        if "$(" in inside or "`" in inside:
            return self.text[begin : self.at]

        def value(found: "re.Match[str]") -> str:
            return self._of(found[1])[0]

        text = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", value, inside)
        number = calculated(text)
        return (
            text
            if number is None and "$" in text
            else str(number)
            if number is not None
            else f"$(({inside}))"
        )


def _asked(condition: list[str]) -> str:
    """The first variable in a condition that is not known; '' if there is none."""
    found = re.search(r"\$([A-Za-z_]\w*|\d+)", " ".join(condition))
    return found[1] if found else ""


def _join(parts: list[list[str]], its: list[str]) -> None:
    """Put the first of some words behind the last one that there is, and the others after it."""
    if its:
        parts[0][-1] += its[0]
        parts[0] += its[1:]


def _closing(text: str, begin: int) -> int:
    """The place behind the bracket that closes the one at `begin`."""
    depth = 0
    pairs = {"(": 1, "{": 1, ")": -1, "}": -1}
    for at in range(begin, len(text)):
        depth += pairs.get(text[at], 0)
        if depth == 0:
            return at + 1
    return len(text)


def _split(text: str) -> Iterator[str]:
    """The words of a text that holds options, as in "--bf16 --seq-length 2048"."""
    if re.search(r"\s", text) and "--" in text:
        yield from (word.strip("\"'") for word in re.findall(r"(?:\$\([^()]*\)|\S)+", text))
    else:
        yield text


def script_words(text: str, given: Mapping[str, Any]) -> list[str]:
    """The words of the command that the script trains with. given: {variable: value}, from outside."""
    return Script(text, {name: str(value) for name, value in given.items()}).words()
