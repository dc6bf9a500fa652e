"""Saved policies, for `play`, `match` and other programs: PEFT adapters, or whole models with their symbols."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxmarl_llm.models import loading, peft_files
from jaxmarl_llm.models.lora import Adapter, Lora
from jaxmarl_llm.models.safetensors_files import write_json
from jaxmarl_llm.rollout.policy import PLAIN, Sampling
from jaxmarl_llm.rollout.team import PolicySet, strings
from jaxmarl_llm.text.grammar import UNREACHABLE, Free, lift
from jaxmarl_llm.text.refusals import read_json, suggest
from jaxmarl_llm.text.tokenizers import HFTokenizer, SymbolTokenizer, Tokenizer

SYMBOLS, ADAPTER, CONFIG = "symbols.json", "adapter_config.json", "config.json"
POLICIES = "policies"  # the directory of a run's policies
SHOWN = 3  # policies that an error names


class Policy(NamedTuple):
    """A saved policy: a model, its tokenizer, and its adapter, if any."""

    model: loading.Loaded
    tokenizer: Tokenizer
    adapter: tuple[Lora, Adapter] | None


def save_policy(directory: Path, policy_set: PolicySet, policy: int, weights: Any, base: str) -> None:
    """Writes the weights of one policy of a set to `directory`, replacing its contents.

    An adapter is written in PEFT's format, for the model `base`; a whole model is written in Hugging Face's layout. A
    tiny policy also gets symbols.json with the texts of its tokens. The old files stay until the new ones are written
    and their tensors were opened again. Raises ValueError if `directory` is a file.
    """
    assert policy_set.config is not None  # scripts are not trained
    directory = Path(directory).resolve()
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{directory} is a file: a policy is saved to a directory.")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".policy-", dir=directory.parent) as temporary:
        new = Path(temporary) / "new"
        if policy_set.loras:
            peft_files.save_adapter(new, policy_set.config, policy_set.loras[policy], weights, base_name=base)
        else:
            loading.save(new, policy_set.config, weights)
        tokenizer = policy_set.tokenizer
        if not policy_set.loras and isinstance(tokenizer, SymbolTokenizer):
            symbols = {"symbols": list(tokenizer.strings), "heard": list(tokenizer.heard)}
            write_json(new / SYMBOLS, symbols | {"ends": tokenizer.end is not None})
        old = Path(temporary) / "old"
        if directory.exists():
            directory.rename(old)
        try:
            new.rename(directory)
        except OSError:
            if old.exists():
                old.rename(directory)
            raise


def load_policy(
    source: str | Path, adapter: Path | None = None, load: Callable[[str], loading.Loaded] = loading.load
) -> Policy:
    """A policy that `save_policy` wrote, or a model as `loading.load` takes it, with a PEFT `adapter` on it.

    `load` reads the model. Raises ValueError for a source that cannot be loaded.
    """
    path = Path(source)
    if (path / ADAPTER).is_file():
        base = read_json(path / ADAPTER).get("base_model_name_or_path")
        if adapter is not None or not base:
            why = "is an adapter itself" if adapter is not None else "does not name the model that it belongs to"
            raise ValueError(f"{path} {why}: name the model, and give --adapter.")
        source, adapter = base, path
    model = load(str(source))
    home = Path(source)
    symbols = (home if (home / SYMBOLS).is_file() else model.directory) / SYMBOLS
    if symbols.is_file():
        symbol_table = read_json(symbols)
        tokenizer: Tokenizer = SymbolTokenizer(symbol_table["symbols"], symbol_table["heard"], symbol_table["ends"])
    else:
        tokenizer = HFTokenizer(model.directory, model.config.vocab_size, options={"enable_thinking": False})
    loaded = None
    if adapter:
        config, params, loaded = peft_files.load_on(adapter, model.config, model.params)
        model = model._replace(config=config, params=params)
    return Policy(model, tokenizer, loaded)


def policies_below(directory: Path) -> list[Path]:
    """The policies of a run, or those of a directory that holds policies, sorted by path."""
    homes = sorted(directory.rglob(f"{POLICIES}/*")) or sorted(directory.iterdir())
    return [home for home in homes if any((home / name).is_file() for name in (CONFIG, ADAPTER))]


def check_source(source: str, scripts: Mapping[str, Any]) -> None:
    """Raises ValueError for a misspelt script, and for a path that is no policy and no model."""
    path = Path(source)
    listed = f"Scripted players of this game: {', '.join(scripts)}."
    if source in (*loading.PACKAGED, *loading.HUB_IDS):
        return
    if path.is_dir() and not any((path / name).is_file() for name in (CONFIG, ADAPTER)):
        homes = policies_below(path)
        more = f" and {len(homes) - SHOWN} more" if len(homes) > SHOWN else ""
        below = f": below it are {', '.join(map(str, homes[:SHOWN]))}{more}" if homes else ", and none is below it"
        raise ValueError(f"{source} is no policy and no model{below}.")
    if not path.exists() and source.count("/") > 1:  # a hub id has one
        raise ValueError(f"There is no directory {source!r}. {listed}")
    if not path.exists() and (near := suggest(source, scripts)):
        raise ValueError(f"No player is called {source!r}. {near}{listed}")


def note_game(source: str, game: Any) -> str:
    """A sentence if a run's policy learnt in another game, or in other settings of it; empty if that is not known.

    The settings of a run stand in the config.json of its arm.
    """
    home = Path(source).resolve()
    if home.parent.name != POLICIES:
        return ""
    try:
        learnt = json.loads((home.parents[1] / CONFIG).read_text(encoding="utf-8"))["game"]
        kind = learnt["kind"]
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    if kind != type(game).__name__:
        return f"Note: {source} learnt in {kind}, and this is {type(game).__name__}."
    other = {}
    for name, value in learnt.items():
        then, here = _tuples(value), getattr(game, name, None)
        if name != "kind" and isinstance(here, bool | int | float | str | tuple) and here != then:
            other[name] = then
    if not other:
        return ""
    learnt_with = ",".join(f"{name}={value!r}" for name, value in other.items())
    now = ",".join(f"{name}={getattr(game, name)!r}" for name in other)
    return f"Note: {source} learnt with {learnt_with}, and this game has {now}: add :{learnt_with} to the game's name."


def _tuples(value: Any) -> Any:
    """A value of JSON with tuples in place of its lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def check_texts(game: Any, policy: Policy, source: str) -> None:
    """Raises ValueError if a tiny policy lacks tokens for texts of a game."""
    tokenizer = policy.tokenizer
    if isinstance(tokenizer, SymbolTokenizer) and (unknown := sorted(set(strings(game)) - set(tokenizer.strings))):
        raise ValueError(
            f"{source} is a tiny policy of another game, or of this one with other settings (NAME:FIELD=VALUE,...): it "
            f"has no tokens for the texts of this one. The first of {len(unknown)} is {unknown[0]!r}."
        )


def budgets(game: Any, tokenizer: Tokenizer, words: int) -> np.ndarray:
    """The tokens that each grammar of a game needs, int [grammars]: its longest shortest answer, plus `words` tokens if
    it has free text.

    Raises ValueError if the tokenizer lacks a token.
    """
    tables = lift(game.grammars, tokenizer.token_bytes, tokenizer.end)
    shortest = np.where(tables.distance[tables.start] < UNREACHABLE, tables.distance[tables.start], 0).max(1)
    free = [any(isinstance(part, Free) for part in parts) for parts in game.grammars]
    return np.maximum(shortest + np.where(free, words, 0), 1)  # an empty answer takes no token


def load_players(
    sources: Mapping[str, str],
    game: Any = None,
    load: Callable[[str], loading.Loaded] = loading.load,
    sampling: Sampling = PLAIN,
) -> tuple[dict[str, PolicySet], dict[str, dict]]:
    """(policy sets, their weights as a rollout takes them) of policies {name: source}, as `load_policy` takes them.

    A set is called by its first policy. Adapters on the same base are one set, and each base is read once.

    Raises ValueError for a source that cannot be loaded, and for a tiny policy of another game than `game`, if one is
    given.
    """
    load = cache(load)
    policies = {name: load_policy(source, load=load) for name, source in sources.items()}
    together: dict[Any, list[str]] = {}
    for name, policy in policies.items():
        if game is not None:
            check_texts(game, policy, sources[name])
        together.setdefault(id(policy.model.params) if policy.adapter else name, []).append(name)
    policy_sets: dict[str, PolicySet] = {}
    weights: dict[str, dict] = {}
    for names in together.values():
        policy, adapters = policies[names[0]], [policies[name].adapter for name in names]
        pairs = [adapter for adapter in adapters if adapter is not None]
        loras = tuple(lora for lora, _ in pairs) or None
        policy_sets[names[0]] = PolicySet(policy.tokenizer, tuple(names), policy.model.config, loras, sampling)
        weights[names[0]] = {"params": policy.model.params}
        if pairs:
            weights[names[0]]["adapters"] = tuple(adapter for _, adapter in pairs)
    return policy_sets, weights
