"""Do a fading bonus for tool calls and recalibrated successes raise the success of self-imitation? SPEAR on locks.

One seat opens six locks in a row within ten turns. Four of its eight keys fit some lock (`LockChain`), and trying one
of these stands for a tool call. Only the last lock pays: a random player opens all in one game of 2,000. Each update
learns by Dr. GRPO from 64 fresh games, then, in a step of its own, from the successes of one of the last five updates.
The weight of that step rises from 0 to 1 by half a cosine in 100 updates.

  fresh      fresh games alone
  none       games whose advantage was positive when played, and whose return is above the median of the group means of
             the last 20 updates; their advantage is the difference
  constant   as none, with a bonus of 0.1 for each key that fits
  cosine     as constant; the bonus fades to 0 by half a cosine in 100 updates
  spear      as cosine; replayed tokens with a covariance of log-probability and advantage above 0.2 have no gradient,
             as many as 0.02 of all replayed tokens, drawn at random
  as_it_was  as spear, with the advantage of the update that played the game, above the median or not
  repeated   as spear, but the second step repeats the fresh games, good and bad. The release's code for ALFWorld would,
             if a script of it set batches of dynamic size: its replay loop then cuts the last fresh minibatch

  solved     share of chains solved
  replayed   share of games of a kept update that the second step learns from

  python -m experiments self_imitation --seeds 20

Paper: SPEAR (Qin et al.) 2025, https://arxiv.org/abs/2509.22601. The release replays up to 2,048 games once, when 3,072
are kept. Its median is over the last 10,240 group means, and its bounds of covariance, 2 and 60, suit its rewards.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax

from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.keys import POOL, UPDATE, key_for
from jaxmarl_llm.methods import replay
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.studies.study import AtLeast, Higher, Paper, Study
from jaxmarl_llm.training import step
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe, always, component_returns
from jaxmarl_llm.training.records import Advantages, Experience, Run
from jaxmarl_llm.training.scoring import score_policies

LOCKS, KEPT, WINDOW, SOLVED, ENTROPY = 6, 5, 20, "solved", "entropy/learner"


def empty_memory(parts: Parts, key: jax.Array) -> tuple[replay.Ring, jax.Array]:
    """Kept batches, and the group means of returns, float32 [WINDOW, groups], NaN: none yet."""
    return replay.empty(parts, key, kept=KEPT), jnp.full((WINDOW, parts.recipe.groups), jnp.nan)


def dr_grpo(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """Dr. GRPO with the bonus. The target of a critic, which nobody has, carries the return to the memory."""
    episodes = experience.episodes
    bonus = select(hparams, "bonus", none=0.0, constant=0.1, cosine=0.1 * hparams["fading"])
    reward = episodes.reward[..., 0] + bonus * episodes.measured[..., 1]
    total = jnp.broadcast_to(reward.sum((1, 2), keepdims=True), reward.shape)
    return Advantages(advantages.grpo(reward, *experience.acts, scale="none"), total, state)


def spear(parts: Parts, run: Run, hparams: Hparams, key: jax.Array, number: jax.Array) -> tuple[Run, step.Metrics]:
    """A recipe's step: an update from fresh games, and one from games of a kept update. A skipped update keeps
    nothing."""
    key, (ring, means) = key_for(key, UPDATE, number), run.state
    games = step.collect_experience(parts, run, hparams, key, number)
    batches = step.make_batches(parts, games.experience, games.advantages)
    learners, metrics = step.apply_update(parts, run.learners, hparams, batches, key, {})
    (name, fresh), (draw_key, mask_key) = *batches.items(), jax.random.split(key_for(key, POOL))
    kept, median = replay.draw_update(ring, name, draw_key), jnp.nan_to_num(jnp.nanmedian(means))
    part = select(hparams, "replayed", recalibrated=kept, as_it_was=kept, fresh=fresh)
    was, now = part.batch.advantage, part.batch.value_target - median
    good = select(hparams, "replayed", recalibrated=(was > 0) & (now > 0), as_it_was=was > 0, fresh=True)
    advantage, mask = select(hparams, "replayed", recalibrated=now, as_it_was=was, fresh=was), part.batch.mask & good
    logp = score_policies(parts, learners.weights, name, part.rows, part.sampled)[0].logp
    drawn = jax.random.uniform(mask_key, logp.shape)
    out = advantages.high_covariance(drawn, logp, advantage, mask, share=hparams["share"], low=0.2, high=6.0)
    weight = hparams["replay"] * (1 - hparams["fading"])
    again = part.replace(batch=part.batch.replace(advantage=weight * jnp.where(out, 0, advantage), mask=mask))
    given = {**hparams, "entropy": weight * hparams["entropy"]}
    after, more = step.apply_update(parts, learners, given, {name: again}, key, {})
    learners = step.unless_skipped(after, learners, more, mask.any() & (weight > 0))
    by_group = fresh.batch.value_target[:, 0].reshape(parts.recipe.groups, -1).mean(1)
    new = replay.put(ring, batches, number), means.at[number % WINDOW].set(by_group)
    run = run.replace(learners=learners, state=step.unless_skipped(new, run.state, metrics))
    return run, metrics | games.metrics(parts) | {"replayed": mask.any(1).mean()}


NONE = Recipe(
    LockChain(LOCKS, turns=10, in_order=True, decoys=4),
    seats=(("learner",),),
    advantage=dr_grpo,
    arrange=partial(always, deal=LOCKS),
    step=spear,
    init_state=empty_memory,
    hparams={"learning_rate": 1e-3, "clip_high": 0.28, "replay": 1.0, "share": 0.0}
    | {"fading": optax.cosine_decay_schedule(1.0, 100)},
    choices={"replayed": ("recalibrated", "as_it_was", "fresh"), "bonus": ("none", "constant", "cosine")},
    budget=1,
    updates=150,
    groups=8,
    group_size=8,
    measure=partial(component_returns, solved=0),
    pretrained={"budget": 4},
)
COSINE = NONE.with_choice(bonus="cosine")
SPEAR = COSINE.with_hparams(share=0.02)
TABLE = "README of the release, first table: Dr.BoT (GRPO) with SPEAR 87.7 against 79.1 on ALFWorld"
STUDY = Study(
    paper=Paper("SPEAR (Qin et al.)", "https://arxiv.org/abs/2509.22601", 2025, checked="release"),
    question="Do a fading bonus for tool calls and recalibrated successes raise the success of self-imitation?",
    claim="With both, a policy opens more chains than without replay, and its entropy stays higher.",
    arms={"fresh": NONE.with_hparams(replay=0.0), "none": NONE, "constant": NONE.with_choice(bonus="constant")}
    | {"cosine": COSINE, "spear": SPEAR}
    | {"as_it_was": SPEAR.with_choice(replayed="as_it_was"), "repeated": SPEAR.with_choice(replayed="fresh")},
    method="spear",
    metrics=(SOLVED, ENTROPY, "replayed"),
    predictions=(
        Higher(SOLVED, "spear", than="fresh", source="paper", where=TABLE),
        Higher(SOLVED, "cosine", than="none", source="paper", where='abstract (v4): to "expedite exploration"'),
        Higher(SOLVED, "spear", than="as_it_was", source="paper", where='abstract (v1): "policy drift"'),
        Higher(ENTROPY, "spear", than="cosine", source="paper", where='abstract (v1): to "curb over-confidence"'),
        Higher(SOLVED, "cosine", than="constant", source="theory", where="A constant bonus pays for idle keys."),
        Higher(SOLVED, "spear", than="repeated", source="theory", where="Fresh failures hold no success to imitate."),
        AtLeast(
            SOLVED, "spear", 0.5, source="theory", where="Else the median is 0. The level is ours.", condition=True
        ),
    ),
)
