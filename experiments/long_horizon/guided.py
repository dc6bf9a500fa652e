"""Does a guided second attempt rescue a task that plain reward cannot reach? Agent-RLVR on eight locks.

One seat opens eight locks in a row within twelve turns and tries one of six keys per turn; two keys fit no lock. Only
the last lock pays, and a random player opens all in one game of 6,000. Before each turn a guide speaks, or says that it
is silent. All arms begin with a policy that has imitated a follower of random advice: it does as a guide says, and
without advice it tries any key. Each question has eight first attempts; one that fails is followed by a second attempt
in a dialogue of its own. A GRPO group is all attempts at a question that were made.

  alone     nobody is guided
  kept      in second attempts the guide names the key in the first four turns; trained in the words that were read
  removed   the same, trained as if the guide had been silent: the row has the neutral phrase, and the probabilities
            before the update are those of that row
  weighted  as removed, with the ratio to the probabilities under the advice (Guide)
  always    first and second attempts are guided for four turns; trained in the words that were read

  solved          share of games without a guide that are solved, 256 of them after training
  solved guided   share of second attempts that are solved, after failures

  python -m experiments guided --seeds 20

Papers: Agent-RLVR (Da et al.) 2025, https://arxiv.org/abs/2506.11425; 72 billion parameters, 817 software tasks, plans
and feedback on errors by a model. Whether its training rows keep the guidance we could not read. Guide (Nath et al.)
2025, https://arxiv.org/abs/2506.13923, gives hints where all rollouts fail and corrects the ratio.
"""

from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.guided import Guidance, Guided
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.methods.fresh_games import in_fresh_games
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.trajectory import Episodes, exchange_told, phrase_tokens
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Paper, Study
from jaxmarl_llm.training import step
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe, component_returns
from jaxmarl_llm.training.records import Advantages, Arranged, Experience
from jaxmarl_llm.training.scoring import Part, Weights, score_policies
from jaxmarl_llm.training.update import Learners

LOCKS, TURNS, TOLD, PAIRS, MEMBERS = 8, 12, 4, 4, 8
SOLVED, GUIDED = "solved", "solved guided"
GAME = Guided(LockChain(LOCKS, TURNS, in_order=True, decoys=2))


def random_advice(key: jax.Array) -> Guidance:
    return Guidance(TURNS, False, LOCKS)


def guide(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    """Group 2q plays the first attempts at question q, group 2q + 1 the second ones. All chains are alike."""
    second = jnp.arange(2 * PAIRS) % 2 == 1
    told = select(hparams, "guide", nobody=second & False, second=second, both=second | True)
    return Arranged(Guidance(jnp.where(told, TOLD, 0), jnp.ones(2 * PAIRS, bool), jnp.full(2 * PAIRS, LOCKS)))


def attempts(episodes: Episodes) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(second attempt, made, solved), bool [B] each: a second attempt is made if its first one failed."""
    solved = episodes.reward[..., 0].sum((1, 2)) > 0
    first, _ = jnp.split(solved.reshape(PAIRS, 2, MEMBERS), 2, 1)
    made = jnp.concatenate([jnp.ones_like(first), ~first], 1).ravel()
    return episodes.group % 2 == 1, made, solved


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    episodes, (acted, group, _) = experience.episodes, experience.acts
    second, made, solved = attempts(episodes)
    retried = second & made
    metrics = {GUIDED: (solved & retried).sum() / jnp.maximum(retried.sum(), 1)}
    credit = advantages.grpo(episodes.reward[..., 0], acted & made[:, None, None], group // 2, PAIRS)
    trained = jnp.broadcast_to(made[:, None, None], acted.shape)
    return Advantages(credit, trained=trained, metrics=metrics)


def learn(
    parts: Parts, learners: Learners, hparams: Hparams, batches: dict[str, Part], key: jax.Array, frozen: Weights
) -> tuple[Learners, step.Metrics]:
    """The update on rows with the guide's words, or with its silence in their place."""

    def part_of(name: str, part: Part) -> Part:
        phrases = phrase_tokens(parts.policy_sets[name].tokenizer, GAME.told)
        silent = exchange_told(part.rows, phrases, jnp.int32(len(phrases) - 1))
        rows = select(hparams, "row", kept=part.rows, removed=silent, weighted=silent)
        again = score_policies(parts, learners.weights | frozen, name, silent, part.sampled)[0].logp
        was = part.batch.behaviour_logp
        behaviour = select(hparams, "row", kept=was, removed=again, weighted=was)
        return part.replace(rows=rows, batch=part.batch.replace(behaviour_logp=behaviour))

    exchanged = {name: part_of(name, part) for name, part in batches.items()}
    return step.apply_update(parts, learners, hparams, exchanged, key, frozen)


ALONE = Recipe(
    GAME,
    seats=(("learner",),),
    advantage=estimate_advantages,
    arrange=guide,
    step=partial(step.on_policy_step, apply=learn),
    choices={"guide": ("nobody", "second", "both"), "row": ("kept", "removed", "weighted")},
    warm_start=(("follower",),),
    warm_start_deal=random_advice,
    warm_start_updates=100,
    budget=1,
    updates=80,
    groups=2 * PAIRS,
    group_size=MEMBERS,
    evaluate=partial(
        in_fresh_games, measure=partial(component_returns, **{SOLVED: 0}), deal=Guidance(0, True, LOCKS), games=256
    ),
    eval_every=10,
    pretrained={"budget": 4},
)
KEPT = ALONE.with_choice(guide="second")
RELEASE = "abstract: 9.4% to 22.4% on SWE-Bench Verified with guided reattempts; plain reward is too sparse"
OURS = "The level is ours: a task that plain reward solves needs no guide, and a guide that never leads there has none."
STUDY = Study(
    paper=Paper("Agent-RLVR (Da et al.)", "https://arxiv.org/abs/2506.11425", 2025, checked="abstract"),
    question="Does a guided second attempt rescue a task that plain reward cannot reach?",
    claim="Trained on guided second attempts without the guide's words, a policy solves more on its own.",
    arms={
        "alone": ALONE,
        "kept": KEPT,
        "removed": KEPT.with_choice(row="removed"),
        "weighted": KEPT.with_choice(row="weighted"),
        "always": ALONE.with_choice(guide="both"),
    },
    method="removed",
    metrics=(SOLVED, GUIDED, "entropy/learner"),
    predictions=(
        Higher(SOLVED, "removed", than="alone", source="paper", where=RELEASE),
        AtMost(SOLVED, "alone", 0.1, source="theory", where=OURS, condition=True),
        AtLeast(GUIDED, "removed", 0.02, source="theory", where=OURS, condition=True),
        Higher(
            SOLVED,
            "removed",
            than="kept",
            source="theory",
            where="With the hint in the row it is the hint that is read.",
        ),
    ),
)
