"""`kwire completion`: a script for a shell that completes the command, its actions and options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from kwire.wire.named_tuple import NamedTuple

NAMES: Final = {"TOPIC": "topics", "GROUP": "groups", "USER": "users"}
"""What the words for arguments stand for, by the command that lists it."""
_ASKED: Final = "kwire $names list --names --timeout 2"


class Offer(NamedTuple):
    """A word that may come next, and what it does."""

    word: str
    text: str


class Level(NamedTuple):
    """A place in the command line: what was said before, and what may come next."""

    path: str
    actions: tuple[Offer, ...]
    options: tuple[Offer, ...]
    values: Mapping[str, tuple[str, ...]]
    """What an option takes, of those that name it; nothing for an option that takes anything, like a file."""
    names: str = ""
    """The command whose list has the names that stand here, if there is one."""


def levels(path: str, parser: argparse.ArgumentParser) -> Iterator[Level]:
    """What may be said at each place, from the command's parser down."""
    actions: list[Offer] = []
    options: list[Offer] = []
    values: dict[str, tuple[str, ...]] = {}
    below: list[tuple[str, argparse.ArgumentParser]] = []
    names = ""
    kinds: list[str] = []
    for action in parser._actions:  # argparse has no other way to tell
        if isinstance(action, argparse._SubParsersAction):
            texts = {one.dest: one.help or "" for one in action._choices_actions}
            for name, inner in action.choices.items():
                actions.append(Offer(name, texts.get(name, "")))
                below.append((name, inner))
        elif action.option_strings:
            options += [Offer(word, action.help or "") for word in action.option_strings]
            if action.nargs != 0:
                values |= dict.fromkeys(action.option_strings, tuple(map(str, action.choices or ())))
        elif action.metavar in NAMES and not path.endswith(" create"):
            names = NAMES[str(action.metavar)]
        elif action.choices:
            actions += [Offer(str(word), action.help or "") for word in action.choices]
            kinds += [str(word) for word in action.choices if str(word).upper() in NAMES]
    yield Level(path, tuple(actions), tuple(options), values, names)
    for kind in kinds:  # a name follows: kwire configs describe topic NAME
        yield Level(f"{path} {kind}", (), tuple(options), values, NAMES[kind.upper()])
    for name, inner in below:
        yield from levels(f"{path} {name}", inner)


def script(shell: str, known: list[Level]) -> str:
    """The whole script."""
    return _SCRIPTS[shell](known)


def _bash(known: list[Level]) -> str:
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
{_paths(known)}
        esac
    done
    case "$path|$before" in
{_values(known, some, "COMPREPLY=(); return")}
    esac
    case "$path" in
{_offers(known)}
    esac
    if [[ $names && $current != -* ]]; then
        # Not by compgen, which would run what a name says.
        COMPREPLY=()
        while IFS= read -r word; do
            [[ $word == "$current"* ]] && COMPREPLY+=("$(printf %q "$word")")
        done < <({_ASKED} ${{servers:+-b "$servers"}} ${{config:+--command-config "$config"}} 2>/dev/null)
        return
    fi
    COMPREPLY=($(compgen -W "$offers" -- "$current"))
}}
complete -o default -F _kwire kwire
"""


def _zsh(known: list[Level]) -> str:
    described = "\n".join(
        f"    {_quoted(level.path)}) offers=({' '.join(_quoted(_described(one)) for one in _all(level))}) "
        f"names={level.names} ;;"
        for level in known
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
{_paths(known, "path_")}
        esac
    done
    case "$path_|$words[CURRENT-1]" in
{_values(known, "compadd -- {}; return", "_files; return")}
    esac
    case "$path_" in
{described}
    esac
    if [[ -n $names && $words[CURRENT] != -* ]]; then
        local -a place=(${{servers:+-b}} $servers ${{config:+--command-config}} $config)
        compadd -- ${{(f)"$({_ASKED} $place 2>/dev/null)"}}
        return
    fi
    _describe kwire offers
    _files
}}
compdef _kwire kwire
"""


def _fish(known: list[Level]) -> str:
    lines = []
    for level in known:
        at = f'complete -c kwire -n "test (__kwire_path) = {_quoted(level.path)}"'
        lines += [f"{at} -f -a {one.word} -d {_quoted(_short(one.text))}" for one in level.actions]
        if level.names:
            lines.append(f"{at} -f -a '(__kwire_names {level.names})'")
        for one in level.options:
            name = f"-l {one.word[2:]}" if one.word.startswith("--") else f"-s {one.word[1:]}"
            taken = ""
            if one.word in level.values:
                taken = f" -x -a {_quoted(' '.join(given))}" if (given := level.values[one.word]) else " -r"
            lines.append(f"{at} {name}{taken} -d {_quoted(_short(one.text))}")
    paths = "\n".join(
        f"            case {_quoted(level.path)}\n                set path {_quoted(level.path)}"
        for level in known[1:]
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
    {_ASKED} $place 2>/dev/null
end
{chr(10).join(lines)}
"""


def _paths(known: list[Level], name: str = "path") -> str:
    """Cases that go down to where the words lead."""
    return "\n".join(f"        {_quoted(level.path)}) {name}={_quoted(level.path)} ;;" for level in known[1:])


def _values(known: list[Level], some: str, anything: str) -> str:
    """Cases for what follows an option that takes something."""
    return "\n".join(
        f"    {_quoted(f'{level.path}|{option}')}) {some.format(' '.join(given)) if given else anything} ;;"
        for level in known
        for option, given in level.values.items()
    )


def _offers(known: list[Level]) -> str:
    return "\n".join(
        f"    {_quoted(level.path)}) offers={_quoted(' '.join(one.word for one in _all(level)))} "
        f"names={level.names} ;;"
        for level in known
    )


def _all(level: Level) -> tuple[Offer, ...]:
    return (*level.actions, *level.options)


def _described(offer: Offer) -> str:
    return offer.word.replace(":", "\\:") + ":" + _short(offer.text)


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


_SCRIPTS: Final[Mapping[str, Callable[[list[Level]], str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
