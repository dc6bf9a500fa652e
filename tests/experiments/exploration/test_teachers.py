"""Skills from solved games, the words that a teacher hears, and the depth of games."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from experiments.exploration.guided import LOCKS, TURNS
from experiments.exploration.teachers import GAME, KEYS, STUDY, advise, estimate_advantages
from jaxmarl_llm.rl.losses import Scores
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet, strings
from jaxmarl_llm.rollout.trajectory import gather_sampled, phrase_tokens
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from tests.support.recipe_plays import differences

TOKENIZER, EPISODES = SymbolTokenizer(strings(GAME)), 6
PHRASES = phrase_tokens(TOKENIZER, GAME.texts)


def test_a_skill_is_the_key_tried_most_often_and_a_lock_without_one_is_silent():
    tried = np.zeros((LOCKS, KEYS), np.float32)
    tried[0], tried[3] = [1, 5, 0, 2], [0, 0, 0, 1]
    lock = np.array([[[0], [3]], [[2], [3]]])
    np.testing.assert_array_equal(jax.jit(advise)(tried, lock), [[[1], [3]], [[KEYS], [3]]])


def told(option: str, tried: np.ndarray):
    """(games of a random player and a flawless one, the words in the teacher's rows after the student's)."""
    sets = {"learner": PolicySet(TOKENIZER, ("random", "correct"))}
    lineup = Lineup((("random",),) * (EPISODES - 1) + (("correct",),), 1)
    rollout, seen = Rollout(GAME, sets, lineup, 1), {}

    def score(name, weights=None, rows=None):
        if rows is not None:
            seen["rows"] = rows.prompts.tokens, rows.tokens
        return Scores(jnp.zeros((EPISODES, TURNS)), jnp.zeros((EPISODES, TURNS)))

    @jax.jit
    def run(tried):
        played = rollout({"learner": {}}, jax.random.key(0))
        sampled = {"learner": gather_sampled(played.rows["learner"], played.episodes.legal, TURNS)}
        acts = played.episodes.acted, played.episodes.group, EPISODES
        state = {"expert": {}, "phrases": jnp.asarray(PHRASES), "tried": tried}
        hparams = STUDY.arms["skill"].all_hparams | {"told": option}
        experience = SimpleNamespace(
            rows=played.rows, episodes=played.episodes, sampled=sampled, acts=acts, score=score
        )
        found = estimate_advantages(experience, hparams, state)
        return played, seen["rows"], found.state["tried"], found.metrics

    return run(jnp.asarray(tried))


def guide_says(tokens: np.ndarray) -> list[int]:
    return [int(np.flatnonzero(PHRASES[:, 0] == token)[0]) for token in tokens if token in PHRASES]


def test_what_a_teacher_hears_and_the_keys_of_solved_games():
    tried = np.zeros((LOCKS, KEYS), np.float32)
    tried[0, 2], tried[1, 1] = 3, 1
    for option in ("skill", "answer"):
        played, (prompts, tokens), after, _ = told(option, tried)
        actions, solved = np.asarray(played.episodes.action)[..., 0], np.asarray(played.episodes.reward).sum((1, 2, 3))
        acted, wanted = np.asarray(played.episodes.acted)[..., 0], tried.copy()
        for b in range(EPISODES):
            lock, heard = 0, []
            for t in range(int(acted[b].sum())):
                skill = int(tried[lock].argmax()) if tried[lock].any() else KEYS
                heard.append(skill if option == "skill" else t % KEYS if t < LOCKS else KEYS)
                wanted[lock, actions[b, t]] += solved[b]
                lock += int(actions[b, t] == lock % KEYS)
            own = np.asarray(played.rows["learner"].prompt)[b]
            row = [*np.asarray(prompts)[own], *np.asarray(tokens)[b][: int(played.rows["learner"].length[b])]]
            assert guide_says(row) == heard
        assert solved[-1] == 1
        np.testing.assert_array_equal(after, wanted)


def test_arms_share_a_program_and_depth_grows_by_a_turn():
    for arm in STUDY.arms.values():
        assert differences(STUDY.arms["grpo"], arm) <= {"selection", "hparams"}
        hparams = arm.all_hparams
        turns = [int(arm.arrange(hparams, {}, None, jnp.int32(n)).turns) for n in (0, 2, 3, 33, 59)]
        grown = arm is STUDY.arms["depth"]
        assert turns == ([1, 1, 2, 12, 12] if grown else [TURNS] * 5)
