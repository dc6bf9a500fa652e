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
EXPERT, INFORMED = np.random.default_rng(0).uniform(-3, 0, (2, EPISODES, TURNS)).astype(np.float32)


def test_a_skill_is_the_key_tried_most_often_and_a_lock_without_one_is_silent():
    tried = np.zeros((LOCKS, KEYS), np.float32)
    tried[0], tried[3] = [1, 5, 0, 2], [0, 0, 0, 1]
    lock = np.array([[[0], [3]], [[2], [3]]])
    np.testing.assert_array_equal(jax.jit(advise)(tried, lock), [[[1], [3]], [[KEYS], [3]]])


@jax.jit
def estimated(tried, hparams):
    """(games of a random player and a flawless one, the words in the teacher's rows after the student's, sampled
    tokens, what the estimator gives). The expert's log-probabilities are EXPERT, the informed student's INFORMED."""
    sets = {"learner": PolicySet(TOKENIZER, ("random", "correct"))}
    lineup = Lineup((("random",),) * (EPISODES - 1) + (("correct",),), 1)
    state, seen = {"expert": {"of": jnp.zeros(1)}, "phrases": jnp.asarray(PHRASES), "tried": tried}, {}

    def score(name, weights=None, rows=None):
        if rows is not None:
            seen["rows"] = rows.prompts.tokens, rows.tokens
            return Scores(jnp.asarray(INFORMED), jnp.asarray(INFORMED))
        assert weights == {"learner": {"policy": state["expert"]}}
        return Scores(jnp.asarray(EXPERT), jnp.asarray(EXPERT))

    played = Rollout(GAME, sets, lineup, 1)({"learner": {}}, jax.random.key(0))
    sampled = {"learner": gather_sampled(played.rows["learner"], played.episodes.legal, TURNS)}
    acts = played.episodes.acted, played.episodes.group, EPISODES
    experience = SimpleNamespace(rows=played.rows, episodes=played.episodes, sampled=sampled, acts=acts, score=score)
    found = estimate_advantages(experience, hparams, state)
    return played, seen["rows"], sampled["learner"], found._replace(remember=None)


def told(option: str, tried: np.ndarray, arm: str = "skill"):
    return estimated(jnp.asarray(tried), STUDY.arms[arm].with_choice(told=option).traced_hparams)


def guide_says(tokens: np.ndarray) -> list[int]:
    return [int(np.flatnonzero(PHRASES[:, 0] == token)[0]) for token in tokens if token in PHRASES]


def test_what_a_teacher_hears_and_the_keys_of_solved_games():
    tried = np.zeros((LOCKS, KEYS), np.float32)
    tried[0, 2], tried[1, 1] = 3, 1
    for option in ("skill", "answer"):
        played, (prompts, tokens), _, found = told(option, tried)
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
        np.testing.assert_array_equal(found.state["tried"], wanted)


def test_without_a_skill_the_teacher_reads_the_student_s_own_rows():
    """Its divergence is then 0 exactly, and `skill` is `grpo`."""
    played, (prompts, tokens), _, _ = told("skill", np.zeros((LOCKS, KEYS), np.float32))
    rows = played.rows["learner"]
    np.testing.assert_array_equal(prompts, rows.prompts.tokens)
    np.testing.assert_array_equal(tokens, rows.tokens)


def test_credit_teacher_and_divergence_against_a_loop():
    none = np.zeros((LOCKS, KEYS), np.float32)
    for arm, teacher in (("opd", EXPERT), ("skill", INFORMED)):
        played, _, sampled, found = told("skill", none, arm)
        mask, turn, old = (np.asarray(getattr(sampled, name)) for name in ("mask", "turn", "behaviour_logp"))
        lasts = np.asarray(played.episodes.acted).sum((1, 2)) - 1
        first, last = [], []
        for r, m in np.argwhere(mask):  # a row an episode
            gap = teacher[r, m] - old[r, m]
            first += [np.exp(gap) - 1 - gap] * int(turn[r, m] == 0)
            last += [np.exp(gap) - 1 - gap] * int(turn[r, m] == lasts[r])
        assert len(first) == len(last) == EPISODES
        np.testing.assert_allclose(found.metrics["last KL"], np.mean(last), rtol=1e-4)
        np.testing.assert_allclose(found.metrics["rise of KL"], np.mean(last) - np.mean(first), rtol=1e-4)
        np.testing.assert_array_equal(found.extra["teacher"]["learner"], teacher)
        credit = np.where(mask, teacher - old, 0) if arm == "opd" else 0 * old  # one game a group: nothing to compare
        np.testing.assert_allclose(found.advantage["learner"], credit, rtol=1e-5)


def test_arms_share_a_program_and_depth_grows_by_a_turn():
    for arm in STUDY.arms.values():
        assert differences(STUDY.arms["grpo"], arm) <= {"selection", "hparams"}
        hparams = arm.all_hparams
        turns = [int(arm.arrange(hparams, {}, None, jnp.int32(n)).turns) for n in (0, 2, 3, 33, 59)]
        grown = arm is STUDY.arms["depth"]
        assert turns == ([1, 1, 2, 12, 12] if grown else [TURNS] * 5)
