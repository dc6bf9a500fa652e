"""Do win rates find the best mixture where a fitted reward cannot? SPO and DNO on five answers, computed.

A judge prefers answer i to j with chance P(i, j). Its exact minimax winner is the mixture that no answer beats.

  cycle  each of three answers beats the next with its own chance, drawn from 0.6 to 0.95; both others lose with 0.8
  noisy  P(i, j) = sigmoid(q_i - q_j) with normal qualities, and three labels of ten are flipped
  both   the cycle, with three labels of ten flipped

Policies are softmax tables and start uniform. All arms get 28 labels in each of 400 iterations.

  bt         a Bradley-Terry reward is fitted to all labels, of uniform pairs; then 400 exact gradient steps on it
  bt_online  pairs of the present policy; the reward is fitted to all labels so far, a gradient step an iteration
  dpo        400 gradient steps of DPO on all labels, of uniform pairs
  spo        the reward is the share of wins in a group of eight answers of the policy, a gradient step an iteration
  dno_prct   seven answers of the policy and one of a teacher, softmax(q); pairs of a winner with a share of wins of at
             least 0.8 and a loser with 0.4 less (0.2 if the policy's answer won); a gradient step of DPO an iteration,
             from the last policy as reference; 30% and 15% of the pairs are of the two iterations before
  dno        the ideal form: the exact win rates against the last policy give the target sigmoid(r(y) - r(y'))

  average, last  exploitability of the mean and of the last policy: the best answer's exact win rate, less 1/2
  gain           win rate against the policy of five iterations before, mean over iterations

  python -m experiments preferences --seeds 20    # a minute

Papers: SPO (Swamy et al.) 2024, https://arxiv.org/abs/2401.04056. DNO (Rosset et al.) 2024,
https://arxiv.org/abs/2404.03715, with points for five answers and a teacher's. Abstracts and descriptions were read.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.studies.computed import side_by_side
from jaxmarl_llm.studies.study import AtLeast, Lower, Paper, Study
from jaxmarl_llm.tabular import duels

ANSWERS, ITERATIONS, LABELS, GROUP, BEFORE = 5, 400, 28, 8, 5
RATE, BETA, FLIPPED, FITS, SHARES = 0.5, 0.1, 0.3, 20, (0.55, 0.3, 0.15)
REGIMES = ("cycle", "noisy", "both")
UNIFORM = np.full((ANSWERS,), 1 / ANSWERS, np.float32)


def world(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Preferences and those of a label, float32 [regimes, K, K], and the teacher's policy, float32 [regimes, K]."""
    keys = jax.random.split(key)
    quality = jax.random.normal(keys[0], (ANSWERS,))
    noisy = duels.transitive(quality)
    cycle = duels.cyclic(jax.random.uniform(keys[1], (duels.CYCLE,), minval=0.6, maxval=0.95), ANSWERS)
    labels = [cycle, duels.flip_labels(noisy, FLIPPED), duels.flip_labels(cycle, FLIPPED)]
    return jnp.stack([cycle, noisy, cycle]), jnp.stack(labels), jnp.stack([UNIFORM, jax.nn.softmax(quality), UNIFORM])


def iterate(run: dict[str, Any], key: jax.Array, arm: Mapping[str, Any], regime: tuple[jax.Array, ...]) -> tuple:
    """One iteration of all algorithms from the arm's policy, and the step of the arm's own."""
    prefers, labels, teacher = regime
    keys, policy = jax.random.split(key, 4), jax.nn.softmax(run["logits"])
    wins = run["wins"] + duels.count_wins(keys[0], policy, labels, LABELS)
    reward = duels.fit_bradley_terry(run["reward"], wins, FITS)
    along = lambda r: policy * (r - policy @ r)  # gradient of policy @ r
    drawn = jax.random.categorical(keys[1], jnp.log(policy), shape=(GROUP,))
    share = duels.judge_group(keys[2], drawn, labels)
    spo = jnp.zeros((ANSWERS,)).at[drawn].add((share - 0.5) / GROUP)

    answers = drawn.at[-1].set(jax.random.categorical(keys[3], jnp.log(teacher)))
    share = duels.judge_group(keys[2], answers, labels)
    margin = jnp.where(jnp.arange(GROUP) < GROUP - 1, 0.2, 0.4) - 1e-6
    kept = (share >= 0.8)[:, None] & (share[:, None] - share[None] >= margin[:, None])
    new = jnp.zeros((ANSWERS, ANSWERS)).at[answers[:, None], answers[None]].add(kept)
    pairs = jnp.concatenate([new[None], run["pairs"][:-1]])
    weighed = jnp.tensordot(jnp.array(SHARES), pairs / jnp.maximum(pairs.sum((1, 2), keepdims=True), 1), 1)

    rate = prefers @ policy
    target = jax.nn.sigmoid(rate[:, None] - rate[None])
    step = select(
        arm,
        "algorithm",
        bt=along(run["offline"]),
        bt_online=along(reward),
        dpo=duels.dpo_step(run["logits"], run["uniform"], jnp.zeros_like(policy), BETA),
        spo=spo,
        dno_prct=duels.dpo_step(run["logits"], weighed, run["logits"], BETA),
        dno=duels.dpo_step(run["logits"], jnp.outer(policy, policy), run["logits"], BETA, target),
    )
    past = jnp.concatenate([run["past"][1:], policy[None]])
    gain = policy @ prefers @ run["past"][0]
    after = {"logits": run["logits"] + RATE * step, "wins": wins, "reward": reward, "pairs": pairs, "past": past}
    return run | after, (policy, gain)


def compute(key: jax.Array, arm: Mapping[str, Any]) -> dict[str, jax.Array]:
    """The metrics of one arm in all regimes."""
    world_key, uniform_key, play_key = jax.random.split(key, 3)
    regimes, metrics = world(world_key), {}
    for number, name in enumerate(REGIMES):
        regime = tuple(x[number] for x in regimes)
        uniform = duels.count_wins(
            jax.random.fold_in(uniform_key, number), jnp.asarray(UNIFORM), regime[1], ITERATIONS * LABELS
        )
        zeros, empty = jnp.zeros((ANSWERS,)), jnp.zeros((ANSWERS, ANSWERS))
        offline = duels.fit_bradley_terry(zeros, uniform, FITS**2)
        run = {"logits": zeros, "wins": empty, "reward": zeros, "pairs": jnp.stack([empty] * len(SHARES))}
        run |= {"past": jnp.stack([UNIFORM] * BEFORE), "uniform": uniform, "offline": offline}
        keys = jax.random.split(jax.random.fold_in(play_key, number), ITERATIONS)
        step: Any = partial(iterate, arm=arm, regime=regime)
        run, (policies, gain) = jax.lax.scan(step, run, keys)
        metrics[f"average, {name}"] = duels.exploitability(policies.mean(0), regime[0])
        metrics[f"last, {name}"] = duels.exploitability(jax.nn.softmax(run["logits"]), regime[0])
        metrics[f"gain, {name}"] = gain.mean()
    return metrics


ARMS = ("bt", "bt_online", "dpo", "spo", "dno_prct", "dno")
WINNER = 'SPO, abstract: "robustly handle[s] ... intransitive ... preferences"'
RISES = 'DNO, abstract: "enjoys monotonic improvement across iterations"'
STUDY = Study(
    paper=Paper("SPO (Swamy et al.)", "https://arxiv.org/abs/2401.04056", 2024, checked="abstract"),
    question="Do win rates find the best mixture where a fitted reward cannot?",
    claim="With a cycle of preferences win rates come nearer to the minimax winner than a reward or fixed pairs.",
    arms=side_by_side(compute, {arm: {"algorithm": arm} for arm in ARMS}, choices={"algorithm": ARMS}),
    method="spo",
    metrics=tuple(f"{metric}, {regime}" for regime in REGIMES for metric in ("average", "last", "gain")),
    predictions=(
        Lower("average, cycle", "spo", than="bt", source="paper", where=WINNER),
        Lower("average, cycle", "spo", than="bt_online", source="paper", where=WINNER),
        Lower("average, both", "spo", than="bt_online", source="paper", where=WINNER),
        Lower("average, cycle", "dno_prct", than="dpo", source="paper", where="DNO, abstract: general preferences"),
        AtLeast("gain, noisy", "dno_prct", 0.5, source="paper", where=RISES),
    ),
)
