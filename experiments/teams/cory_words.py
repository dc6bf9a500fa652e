"""Does CORY resist the collapse of a policy that a flawed reward model pays? Reviews of eight words, by PPO.

Two policies start as copies of one policy, which imitates a reviewer (`Reviews`). The pioneer reviews a film. The
observer reads that review and writes one, too. A review is worth points for things that the film is known for, and
praise costs points. No policy is paid these points. It earns the standardised score of a frozen reward model
(`review_judge`). Four of ten pairs that taught this model preferred the review with more praise. Each word also costs
beta times its log-ratio to the start. Both policies learn by PPO with a value head and GAE, and advantages are whitened
by seat. Optimiser states move with the weights; the release restarts both at an exchange.

  cory         both earn the sum of their scores; weights and optimisers exchange roles every five updates
  no_exchange  both earn the sum, and each keeps its role
  no_transfer  sum and exchange; the observer reads what a pioneer reads
  alone        no sum, no exchange, no transfer: two policies that learn apart

The observer's baseline knows what the observer reads: with transfer the pioneer's score is subtracted exactly, and
without transfer it stays in the observer's reward as noise. Metrics are the pioneer's:

  points, score  true points, whose `fall` is from their peak to the end; standardised score, 0 at the start
  kl, objective  log-ratio to the start, summed over a review; score less beta KL
  pairs          different pairs of neighbouring words in the 64 reviews of an update; `kept pairs` is their number at
                 the end over that at the start
  ... at KL      points and score when the KL, averaged over five updates, first reaches 10; the last if it never does

  python -m experiments cory_words --seeds 20

Paper: Ma et al. 2024, CORY, https://arxiv.org/abs/2410.06101: GPT-2 continues film reviews with 4 to 16 tokens, paid by
a sentiment model; PPO alone ends in rows of praise (Table 3). Its weight of the KL adapts, by at most 0.5% an update;
here it is fixed.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.judged.reviews import FILMS, Commission, Reviews, distinct_pairs
from jaxmarl_llm.methods.cory import exchanging_step, log_ratios
from jaxmarl_llm.methods.reward_models import review_judge
from jaxmarl_llm.rl import returns
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.studies.curves import fall_from_peak, last_over_first, when_reached
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, Common, Experience

GAME, GROUPS, KEPT = Reviews(), 16, "kept pairs"


def arrange(hparams: Hparams, state: Any, key: jax.Array, number: jax.Array) -> Arranged:
    """A film for each group; the option of `transfer` decides whether the observer reads the first review."""
    shown = select(hparams, "transfer", shown=True, hidden=False)
    return Arranged(deal=Commission(jax.random.randint(key, (GROUPS,), 0, FILMS), shown))


def estimate_advantages(experience: Experience, hparams: Hparams, judge: Any) -> Advantages:
    """GAE (lambda 0.95) of each seat from word to word: log-ratios times -beta, at the last word the scores."""
    episodes, deal = experience.episodes, experience.arranged.deal
    words, film = GAME.both(episodes.action), jnp.stack([deal.film[episodes.group]] * 2, 1)
    score, points = review_judge.score(judge, film, words), GAME.points(film, words).mean(0)  # [B, 2], [2]
    known = jnp.stack([jnp.zeros(len(film), bool), deal.shown[episodes.group]], 1)  # the baseline has the partner's
    ratio = log_ratios(experience)
    last = jnp.array([GAME.length, GAME.turns]) - 1, jnp.arange(2)
    paid = score + hparams["share"] * jnp.where(known, 0, score[:, ::-1])
    reward = (-hparams["beta"] * ratio).at[:, *last].add(paid)
    targets = returns.gae(reward, experience.turn_value, episodes.acted, lam=0.95)
    whitened = jax.vmap(whiten, 2, 2)(targets.advantage, episodes.acted)
    score, kl = score.mean(0), ratio.sum(1).mean(0)
    metrics = {"points": points[0], "score": score[0], "kl": kl[0], "objective": (score - hparams["beta"] * kl)[0]}
    metrics |= {"observer points": points[1], "observer kl": kl[1], "pairs": distinct_pairs(words[:, 0])}
    return Advantages(whitened, targets.value_target, state=judge, metrics=metrics)


CORY = Recipe(
    GAME,
    seats=(("one", "other"),),
    advantage=estimate_advantages,
    arrange=arrange,
    init_state=partial(review_judge.pretrain, length=GAME.length),
    step=exchanging_step,
    critic=True,
    reference=True,
    hparams={"learning_rate": 1e-3, "entropy": 0.0, "value": 0.1, "share": 1.0, "exchange_every": 5.0, "beta": 0.005},
    choices={"transfer": ("shown", "hidden"), "optimisers": ("kept", "new")},
    warm_start=Common((("reviewer", "reviewer"),)),
    warm_start_updates=300,
    budget=1,
    updates=150,
    groups=GROUPS,
    group_size=4,
    epochs=2,
)
ARMS = {
    "cory": CORY,
    "no_exchange": CORY.with_hparams(exchange_every=0.0),
    "no_transfer": CORY.with_choice(transfer="hidden"),
    "alone": CORY.with_hparams(share=0.0, exchange_every=0.0).with_choice(transfer="hidden"),
}
PILOT = "Seeds 102 to 107: alone kept 29% to 62% of its pairs, and its points fell by 0.2 to 1.5 from their peak."
FRONTIER = "Section 3.2, Figure 2c: CORY's frontier 'consistently outperforms that of PPO'. Here the KL is"
PLACES = {  # (kind, metric, other arm): the place
    (Higher, "points at KL", "alone"): f"{FRONTIER} crossed on the way, and the reward is the true one.",
    (Higher, "score at KL", "alone"): f"{FRONTIER} crossed on the way.",
    (Higher, KEPT, "alone"): "Section 4.1, Table 3: PPO 'experiences distribution collapse', which CORY 'avoids'.",
    (Higher, "objective", "alone"): "Section 4.1, Figure 3c: CORY's combined reward 'consistently rises', PPO's falls.",
    (Lower, "kl", "alone"): "Section 4.1, Figure 3b: PPO's KL reaches 'more than twice the level of CORY'.",
    (Lower, "kl", "no_exchange"): "Section 4.3, Figure 6b: without exchange KLs 'are much higher than that of CORY'.",
    (Lower, "kl", "no_transfer"): "Section 4.3, Figure 6b: without transfer KLs 'are higher compared to CORY'.",
}
AT_KL = {f"{name} at KL": partial(when_reached, metric=name, other="kl", bound=10.0) for name in ("points", "score")}
STUDY = Study(
    paper=Paper("CORY (Ma et al.)", "https://arxiv.org/abs/2410.06101", 2024, checked="release"),
    question="Does CORY resist the collapse of a policy that a flawed reward model pays?",
    claim="At equal KL a pioneer of CORY has more true points than a policy that learns alone, and it collapses less.",
    arms=ARMS,
    method="cory",
    metrics=("points", "score", "kl", "objective", "pairs", KEPT, "fall", *AT_KL),
    predictions=(
        AtMost(KEPT, "alone", 0.75, source="pilot", where=PILOT, condition=True),
        AtLeast("fall", "alone", 0.2, source="pilot", where=PILOT, condition=True),
        *(kind(metric, "cory", than=arm, source="paper", where=at) for (kind, metric, arm), at in PLACES.items()),
    ),
    derived={
        **AT_KL,
        KEPT: partial(last_over_first, metric="pairs"),
        "fall": partial(fall_from_peak, metric="points"),
    },
)
