"""Games of TextArena and reasoning_gym as text environments: what they say, accept and pay is their own."""

import random
from collections.abc import Sequence

import pytest

from jaxmarl_llm.environments.bridges import python_games
from jaxmarl_llm.environments.bridges.python_games import Turn


def caller(seen: Sequence[str]) -> str:
    """Checks, or calls where it may not check."""
    return "[call]" if "'[call]'" in seen[-1].rsplit("available", 1)[-1] else "[check]"


def test_a_game_of_textarena_between_scripts_is_textarenas_own():
    textarena = pytest.importorskip("textarena")
    for seed in range(3):
        random.seed(seed)
        ours, said, texts = python_games.textarena("KuhnPoker-v0", 2)(), [], []
        rules, turn = ours.reset(seed)
        while not turn.done:
            (seat,) = turn.acting
            texts.append((seat, turn.told[seat]))
            said.append(caller([turn.told[seat]]))
            turn = ours.step({seat: said[-1]})
        random.seed(seed)
        theirs = textarena.make("KuhnPoker-v0")
        theirs.reset(num_players=2, seed=seed)
        done, heard = False, ["", ""]
        for action, (seat, text) in zip(said, texts, strict=True):
            player, whole = theirs.get_observation()  # all that the seat has met so far, its own answers too
            assert player == seat and not done
            assert whole.startswith("\n[GAME] " + rules[seat])
            new = whole[len(heard[seat]) :]
            for line in text.split("\n"):
                assert line in new
            loss_mask = f"[Player {seat}] "
            kept = [line for line in new.split("\n") if line and not line.startswith(loss_mask)]
            assert text.split("\n") == [line for line in kept if line not in f"[GAME] {rules[seat]}".split("\n")]
            heard[seat] = whole
            done, _ = theirs.step(action)
        assert done and turn.reward == theirs.close()[0] and turn.reward[0] == -turn.reward[1]


def test_an_answer_that_textarena_turns_down_is_invalid():
    pytest.importorskip("textarena")
    game = python_games.textarena("TicTacToe-v0", 2)()
    _, turn = game.reset(0)
    turn = game.step({0: "no move"})
    assert turn.acting == (0,) and turn.invalid == (0,) and "invalid move" in turn.told[0] and not turn.done
    turn = game.step({0: "[4]"})
    assert turn.acting == (1,) and turn.invalid == ()
    turn = game.step({1: "[4]"})
    assert turn.invalid == (1,) and not turn.done
    turn = game.step({1: "[4]"})
    assert turn.done and turn.invalid == (1,) and turn.reward == {0: 1.0, 1: -1.0}
    monte = python_games.textarena("ThreeCardMonte-v0", 1)()  # pays "Bad action. ..." in place of a number
    monte.reset(0)
    turn = monte.step({0: "no move"})
    while not turn.done:
        turn = monte.step({0: "no move"})
    assert turn.reward == {0: -1.0} and turn.invalid == (0,)


def test_answers_to_reasoning_gym_are_scored_by_it():
    package = pytest.importorskip("reasoning_gym")
    make = python_games.reasoning_gym("chain_sum", "Sum.", seed=7, size=9)
    dataset = package.create_dataset("chain_sum", seed=7, size=9)
    for seed in (4, 13):
        entry, game = dataset[4], make()
        rules, turn = game.reset(seed)
        assert list(rules) == ["Sum."] and turn == Turn({0: entry["question"]}, (0,))
        assert game.step({0: f" {entry['answer']}\n"}) == Turn(reward={0: 1.0}, done=True)
        assert game.step({0: "x"}) == Turn(reward={0: dataset.score_answer("x", entry)}, done=True)
    game = python_games.reasoning_gym("chain_sum", tag="answer", seed=7, size=9)()
    game.reset(4)
    assert game.step({0: f"Is it <answer>{dataset[4]['answer']}</answer>?"}).reward == {0: 1.0}
    assert game.step({0: dataset[4]["answer"]}) == Turn(reward={0: 0.0}, done=True, invalid=(0,))
    game = python_games.reasoning_gym("prime_factorization")()
    game.reset(0)
    assert game.step({0: "two"}) == Turn(reward={0: 0.0}, done=True, invalid=(0,))  # its scorer raises


def test_errors_of_textarena_are_one_sentence():
    pytest.importorskip("textarena")
    with pytest.raises(ValueError, match=r"TextArena has no game 'KunPoker-v0'. Did you mean KuhnPoker-v0"):
        python_games.textarena("KunPoker-v0", 2)
    with pytest.raises(
        ValueError, match=r"KuhnPokerEnv cannot begin with 5 players: The number of players has to be 2"
    ):
        python_games.textarena("KuhnPoker-v0", 5)().reset(0)
