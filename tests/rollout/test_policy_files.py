"""A trained policy is saved and plays on: the same weights, the same tokens, and no other game.

The long case compiles rollouts of saved policies; the short ones read the same files.
"""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxmarl_llm import play
from jaxmarl_llm.environments.bridges.table import Table
from jaxmarl_llm.environments.classic.board_games import TicTacToe
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.policy_table import tabulate
from jaxmarl_llm.models import decoder, loading, lora, safetensors_files
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.models.safetensors_files import open_tensors
from jaxmarl_llm.rollout.policy_files import check_source, load_policy, note_game, policies_below, save_policy
from jaxmarl_llm.rollout.team import PolicySet, strings
from jaxmarl_llm.studies.identity import describe
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.setup import tiny
from tests.support.families import CONFIG, weights


def same(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x), np.asarray(y)), a, b)


@pytest.fixture
def saved(tmp_path):
    """A tiny random policy of Kuhn poker with marked preferences; its directory, policy set and weights."""
    tokenizer = SymbolTokenizer(strings(KuhnPoker()))
    policy_set = PolicySet(tokenizer, ("a",), tiny(tokenizer.vocab_size))
    params = jax.tree.map(lambda x: 3 * x, decoder.init(policy_set.config, jax.random.key(0)))
    save_policy(tmp_path / "better", policy_set, 0, params, "")
    return tmp_path / "better", policy_set, params


def test_a_tiny_policy_is_read_as_it_was_written(saved):
    directory, policy_set, params = saved
    read = load_policy(directory)
    same(read.model.params, params)
    assert read.tokenizer.strings == policy_set.tokenizer.strings and read.adapter is None


def fail_to_open(stack, files):
    raise OSError(28, "No space left on device")


def open_cut(stack, files):
    files[0].write_bytes(files[0].read_bytes()[:-8])
    return open_tensors(stack, files)


def open_renamed(stack, files):
    files[0].write_bytes(files[0].read_bytes().replace(b"embed_tokens", b"embed_tokans"))
    return open_tensors(stack, files)


@pytest.mark.parametrize("opening", [fail_to_open, open_cut, open_renamed])
def test_a_policy_takes_the_place_of_another_once_it_was_opened_again(saved, monkeypatch, opening):
    directory, policy_set, params = saved
    changed = jax.tree.map(lambda x: x + 1, params)
    monkeypatch.setattr(safetensors_files, "open_tensors", opening)
    with pytest.raises((ValueError, OSError), match=r"truncated or corrupt|does not hold the tensors|No space left"):
        save_policy(directory, policy_set, 0, changed, "")
    monkeypatch.undo()
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]
    same(load_policy(directory).model.params, params)
    save_policy(directory, policy_set, 0, changed, "")
    same(load_policy(directory).model.params, changed)


def test_a_policy_comes_back_if_another_cannot_take_its_name(saved, monkeypatch):
    directory, policy_set, params = saved
    rename, renamed = Path.rename, []

    def fails_at_last(path, target):
        renamed.append(path.name)
        if target == directory and path.name == "new":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails_at_last)
    with pytest.raises(OSError, match="No space left"):
        save_policy(directory, policy_set, 0, params, "")
    assert "new" in renamed
    same(load_policy(directory).model.params, params)


def test_a_policy_is_saved_through_a_link_and_to_no_file(saved, tmp_path):
    directory, policy_set, params = saved
    (tmp_path / "link").symlink_to(directory, target_is_directory=True)
    save_policy(tmp_path / "link", policy_set, 0, jax.tree.map(lambda x: x + 1, params), "")
    assert (tmp_path / "link").is_symlink()
    same(load_policy(directory).model.params, jax.tree.map(lambda x: x + 1, params))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is a file: a policy is saved to a directory"):
        save_policy(tmp_path / "file", policy_set, 0, params, "")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_adapter_names_the_model_it_belongs_to(tmp_path, monkeypatch):
    own = Lora(2, 4.0, ("*",))
    adapter = jax.tree.map(lambda x: x + 0.5, lora.init(jax.random.key(1), weights(CONFIG), own))
    policy_set = PolicySet(SymbolTokenizer(["x"]), ("a", "b"), CONFIG, (Lora(1, 1.0), own))
    loading.save(tmp_path / "base", CONFIG, weights(CONFIG))
    (tmp_path / "base/symbols.json").write_text(json.dumps({"symbols": ["x"], "heard": [], "ends": False}))
    save_policy(tmp_path / "adapter", policy_set, 1, adapter, str(tmp_path / "base"))
    read = load_policy(tmp_path / "adapter")
    same(read.model.params, weights(CONFIG))
    assert read.adapter is not None and replace(read.adapter[0], targets=own.targets) == own
    same(read.adapter[1], adapter)
    with pytest.raises(ValueError, match="is an adapter itself"):
        load_policy(tmp_path / "adapter", tmp_path / "adapter")
    about = json.loads((tmp_path / "adapter/adapter_config.json").read_text()) | {"base_model_name_or_path": None}
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="does not name the model"):
        load_policy(tmp_path / "adapter")


@pytest.mark.long
def test_a_saved_policy_takes_a_seat_of_its_game_and_of_no_other(saved):
    """It bets as often with each card as its exact probabilities say."""
    directory, policy_set, params = saved
    game = KuhnPoker()
    tree = solve.tree(game)
    expected = tabulate(tree, policy_set, budget=1)({"params": params})[:, 1]
    player = play.load_player(game, str(directory), None, 8)
    bets: dict[int, list[int]] = {}
    for seed in range(120):
        table = Table(game, seed)
        bets.setdefault(int(table.state.cards[0]), []).append(player(table.state, table, 0)[0])
    roots = [i for i in range(len(expected)) if tree.owner[i] == 0 and tree.form.above[i] >= len(expected) * 2]
    assert len(roots) == len(bets) == 3
    for card, root in zip(sorted(bets), roots, strict=True):
        share, n = expected[root], len(bets[card])
        assert abs(np.mean(bets[card]) - share) < 4 * (share * (1 - share) / n) ** 0.5 + 1e-6
    assert expected[roots].max() - expected[roots].min() > 0.1
    with pytest.raises(ValueError, match="a tiny policy of another game"):
        play.load_player(TicTacToe(), str(directory), None, 8)


def test_policies_below_a_directory_are_named(tmp_path):
    for home in ("run/a/policies/me", "run/a/policies/you", "run/b/policies/me", "run/c/policies/me"):
        (tmp_path / home).mkdir(parents=True)
        (tmp_path / home / "config.json").write_text("{}")
    assert len(policies_below(tmp_path / "run")) == 4 and len(policies_below(tmp_path / "run/a/policies")) == 2
    scripts = MatrixGame().scripts
    with pytest.raises(ValueError, match=r"no policy and no model: below it are .*run/a/policies/me, .* and 1 more"):
        check_source(str(tmp_path / "run"), scripts)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="is no policy and no model, and none is below it"):
        check_source(str(tmp_path / "empty"), scripts)
    with pytest.raises(ValueError, match="There is no directory 'runs/nothing/policies/me'"):
        check_source("runs/nothing/policies/me", scripts)
    with pytest.raises(ValueError, match=r"^No player is called 'tit4tat'\. Did you mean tit_for_tat\?"):
        check_source("tit4tat", scripts)
    for source in ("smollm2", "owner/name", "unheard_of", str(tmp_path / "run/a/policies/me")):
        check_source(source, scripts)


def test_a_policy_of_a_run_tells_the_settings_of_its_game(tmp_path):
    home = tmp_path / "run/arm/policies/me"
    home.mkdir(parents=True)
    assert note_game(str(home), MatrixGame()) == ""
    learnt = MatrixGame(rounds=1)
    (tmp_path / "run/arm/config.json").write_text(json.dumps(describe(Recipe(learnt, (("me", "me"),)))))
    assert note_game(str(home), learnt) == note_game("smollm2", learnt) == ""
    note = note_game(str(home), MatrixGame(rounds=5))
    assert note.endswith("learnt with rounds=1, and this game has rounds=5: add :rounds=1 to the game's name.")
    assert "learnt in MatrixGame, and this is KuhnPoker." in note_game(str(home), KuhnPoker())
