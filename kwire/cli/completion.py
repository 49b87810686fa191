"""`kwire completion`: a shell script that completes commands, actions, options and names."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from kwire.wire.named_tuple import NamedTuple

LIST_COMMANDS: Final = {"TOPIC": "topics", "GROUP": "groups", "USER": "users"}
"""Commands that list the possible names for an argument, by the argument's metavar."""
_LISTING: Final = "kwire $names list --names --timeout 2"


class Suggestion(NamedTuple):
    """A word that can come next, and its help text."""

    word: str
    text: str


class Position(NamedTuple):
    """A point in the command line: the words so far, and the words that can follow."""

    path: str
    actions: tuple[Suggestion, ...]
    options: tuple[Suggestion, ...]
    values: Mapping[str, tuple[str, ...]]
    """The choices of each option that takes a value; empty if any value is possible, such as a file."""
    names: str = ""
    """The command that lists the names that are possible here; empty if there is none."""


def positions(path: str, parser: argparse.ArgumentParser) -> Iterator[Position]:
    """Yield the positions of a parser and its subparsers, outermost first."""
    actions: list[Suggestion] = []
    options: list[Suggestion] = []
    values: dict[str, tuple[str, ...]] = {}
    below: list[tuple[str, argparse.ArgumentParser]] = []
    names = ""
    kinds: list[str] = []
    for action in parser._actions:  # argparse has no public API for this
        if isinstance(action, argparse._SubParsersAction):
            texts = {one.dest: one.help or "" for one in action._choices_actions}
            for name, inner in action.choices.items():
                actions.append(Suggestion(name, texts.get(name, "")))
                below.append((name, inner))
        elif action.option_strings:
            options += [Suggestion(word, action.help or "") for word in action.option_strings]
            if action.nargs != 0:
                values |= dict.fromkeys(action.option_strings, tuple(map(str, action.choices or ())))
        elif action.metavar in LIST_COMMANDS and not path.endswith(" create"):
            names = LIST_COMMANDS[str(action.metavar)]
        elif action.choices:
            actions += [Suggestion(str(word), action.help or "") for word in action.choices]
            kinds += [str(word) for word in action.choices if str(word).upper() in LIST_COMMANDS]
    yield Position(path, tuple(actions), tuple(options), values, names)
    for kind in kinds:  # followed by a name: kwire configs describe topic NAME
        yield Position(f"{path} {kind}", (), tuple(options), values, LIST_COMMANDS[kind.upper()])
    for name, inner in below:
        yield from positions(f"{path} {name}", inner)


def script(shell: str, known: list[Position]) -> str:
    """Return the completion script for bash, zsh or fish. `known` are all positions."""
    return _SCRIPTS[shell](known)


def _bash(known: list[Position]) -> str:
    some = """COMPREPLY=($(compgen -W '{}' -- "$current")); return"""
    return f"""\
# Completion of kwire for bash: source <(kwire completion bash)
_kwire() {{
    local path=kwire word last= servers= config= names= offers=
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        [[ $last == -b || $last == --bootstrap-server ]] && servers=$word
        [[ $last == --command-config ]] && config=${{word/#\\~/$HOME}}
        last=$word
        case "$path $word" in
{_path_cases(known)}
        esac
    done
    case "$path|$before" in
{_value_cases(known, some, "COMPREPLY=(); return")}
    esac
    case "$path" in
{_suggestions(known)}
    esac
    if [[ $names && $current != -* ]]; then
        # compgen -W would expand the names as shell code.
        COMPREPLY=()
        while IFS= read -r word; do
            [[ $word == "$current"* ]] && COMPREPLY+=("$(printf %q "$word")")
        done < <({_LISTING} ${{servers:+-b "$servers"}} ${{config:+--command-config "$config"}} 2>/dev/null)
        return
    fi
    COMPREPLY=($(compgen -W "$offers" -- "$current"))
}}
complete -o default -F _kwire kwire
"""


def _zsh(known: list[Position]) -> str:
    described = "\n".join(
        f"    {_quote(position.path)}) offers=("
        f"{' '.join(_quote(_zsh_description(one)) for one in _suggestions_at(position))}) "
        f"names={position.names} ;;"
        for position in known
    )
    return f"""\
#compdef kwire
# Completion of kwire for zsh: source <(kwire completion zsh)
_kwire() {{
    local path_=kwire word last= servers= config= names=
    local -a offers
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        [[ $last == -b || $last == --bootstrap-server ]] && servers=$word
        [[ $last == --command-config ]] && config=${{word/#\\~/$HOME}}
        last=$word
        case "$path_ $word" in
{_path_cases(known, "path_")}
        esac
    done
    case "$path_|$words[CURRENT-1]" in
{_value_cases(known, "compadd -- {}; return", "_files; return")}
    esac
    case "$path_" in
{described}
    esac
    if [[ -n $names && $words[CURRENT] != -* ]]; then
        local -a place=(${{servers:+-b}} $servers ${{config:+--command-config}} $config)
        compadd -- ${{(f)"$({_LISTING} $place 2>/dev/null)"}}
        return
    fi
    _describe kwire offers
    _files
}}
compdef _kwire kwire
"""


def _fish(known: list[Position]) -> str:
    lines = []
    for position in known:
        at = f'complete -c kwire -n "test (__kwire_path) = {_quote(position.path)}"'
        lines += [f"{at} -f -a {one.word} -d {_quote(_shorten(one.text))}" for one in position.actions]
        if position.names:
            lines.append(f"{at} -f -a '(__kwire_names {position.names})'")
        for one in position.options:
            name = f"-l {one.word[2:]}" if one.word.startswith("--") else f"-s {one.word[1:]}"
            taken = ""
            if one.word in position.values:
                taken = f" -x -a {_quote(' '.join(given))}" if (given := position.values[one.word]) else " -r"
            lines.append(f"{at} {name}{taken} -d {_quote(_shorten(one.text))}")
    paths = "\n".join(
        f"            case {_quote(position.path)}\n                set path {_quote(position.path)}"
        for position in known[1:]
    )
    return f"""\
# Completion of kwire for fish: kwire completion fish | source
function __kwire_path
    set -l path kwire
    for word in (commandline -opc)[2..]
        switch "$path $word"
{paths}
        end
    end
    echo $path
end
function __kwire_names --argument-names names
    set -l words (commandline -opc)
    set -l place
    for at in (seq (math (count $words) - 1))
        if contains -- $words[$at] -b --bootstrap-server
            set -a place -b $words[(math $at + 1)]
        else if test $words[$at] = --command-config
            set -a place --command-config (string replace -r '^~' $HOME $words[(math $at + 1)])
        end
    end
    {_LISTING} $place 2>/dev/null
end
{chr(10).join(lines)}
"""


def _path_cases(known: list[Position], name: str = "path") -> str:
    """Return `case` branches that set the shell variable `name` to the path of a position."""
    return "\n".join(
        f"        {_quote(position.path)}) {name}={_quote(position.path)} ;;" for position in known[1:]
    )


def _value_cases(known: list[Position], some: str, anything: str) -> str:
    """Return a `case` branch for each option that has a value.

    `some` is code for an option whose values are known, with a placeholder for the values. `anything` is code
    for an option with free text.
    """
    return "\n".join(
        f"    {_quote(f'{position.path}|{option}')}) {some.format(' '.join(given)) if given else anything} ;;"
        for position in known
        for option, given in position.values.items()
    )


def _suggestions(known: list[Position]) -> str:
    return "\n".join(
        f"    {_quote(position.path)}) "
        f"offers={_quote(' '.join(one.word for one in _suggestions_at(position)))} names={position.names} ;;"
        for position in known
    )


def _suggestions_at(position: Position) -> tuple[Suggestion, ...]:
    return (*position.actions, *position.options)


def _zsh_description(offer: Suggestion) -> str:
    return offer.word.replace(":", "\\:") + ":" + _shorten(offer.text)


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


_SCRIPTS: Final[Mapping[str, Callable[[list[Position]], str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
