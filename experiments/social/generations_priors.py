"""Does the first generation decide if giving lasts? Cultural evolution in the donor game, from three priors.

In the paper the first strategies differ by language model. Here all networks of the first generation imitate one script
(200 steps of Adam), and noisy copies of the richer half replace the poorer half. Game, traces, fines and copies are
those of the study `generations`, whose networks begin at random and stop giving.

  reciprocal  gives the recipient's image: all to an image of 1, nothing to an image of 0
  generous    gives everything to everybody
  selfish     gives nothing

  PRIOR/trace_3   donors see three steps of the recipient's trace
  PRIOR/trace_0   donors see nothing; the reciprocal prior then gives everything, as to a stranger
  PRIOR/fine      three steps and fines; the reciprocal prior fines an image of 0, where it would give nothing

An image is a reputation of the paper's release, read along a trace from its oldest gift to its newest:
image = 1 - |gift - image of who received it|. The oldest known gift is an image itself, and a stranger's image is 1.

  wealth     mean resources after a game, 10 at its start, over the last tenth of the generations
  doublings  log2(wealth / 10) of a generation, the mean over the last tenth; 0 without gifts, 11.6 if all is given
  given      mean share given
  reads      the networks' gift to traces of image 1 less that to traces of image 0, each a mean over the traces
  reads at first, given at first   the same of the first generation

  python -m experiments generations_priors --seeds 20

Paper: Cultural Evolution of Cooperation among LLM Agents (Vallinder & Hughes) 2024, https://arxiv.org/abs/2412.10270.
There agents are language models that write strategies, in ten generations; no language model plays here. The release
selects by twice the score of the second game; here both games count.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.social import generations
from experiments.social.generations import AGENTS, FINES, GENERATIONS, SHARES, START, STEPS, UNKNOWN
from jaxmarl_llm.methods.generations import next_generation
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.studies.computed import side_by_side
from jaxmarl_llm.studies.curves import at_first
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Paper, Study

TRACES = np.array([*product(range(UNKNOWN + 1), repeat=STEPS)])  # [216, steps], the newest gift first
KNOWN = (TRACES < UNKNOWN).all(1)


def images(traces: np.ndarray) -> np.ndarray:
    """The image of each trace as the index of a share, int [traces]."""
    full = len(SHARES) - 1
    image = np.full(len(traces), UNKNOWN)
    for gift in traces.T[::-1]:
        judged = np.where(image == UNKNOWN, gift, full - np.abs(gift - image))
        image = np.where(gift == UNKNOWN, image, judged)
    return np.where(image == UNKNOWN, full, image)


def imitate(nets: dict, action: jax.Array, error: jax.Array) -> dict:
    """Networks after 200 steps of Adam towards an action for each trace, int [traces]; with probability `error` a
    uniform one of all shares and the fine."""
    optimiser, traces = optax.adam(0.03), jnp.asarray(TRACES)
    target = (1 - error) * jax.nn.one_hot(action, FINES + 1) + error / (FINES + 1)
    say = jax.vmap(jax.vmap(generations.logits_of, (None, 0, None, None)), (0, None, None, None))

    def loss(nets: dict) -> jax.Array:
        logits = say(nets, traces, STEPS, 1)
        return optax.softmax_cross_entropy(logits, target[None]).mean(1).sum()

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        nets, state = carry
        updates, state = optimiser.update(jax.grad(loss)(nets), state)
        return (optax.apply_updates(nets, updates), state), None

    return jax.lax.scan(step, (nets, optimiser.init(nets)), None, 200)[0][0]


def reads(nets: dict, steps: jax.Array, fine: jax.Array) -> jax.Array:
    """The expected gift to traces of image 1 less that to traces of image 0, mean over networks."""
    say = jax.vmap(jax.vmap(generations.logits_of, (None, 0, None, None)), (0, None, None, None))
    gift = jax.nn.softmax(say(nets, jnp.asarray(TRACES), steps, fine))[..., :FINES] @ SHARES
    of_image = lambda index: gift[:, KNOWN & (images(TRACES) == index)].mean()
    return of_image(len(SHARES) - 1) - of_image(0)


def history(key: jax.Array, hparams: Mapping[str, Any]) -> dict:
    """Curves over the generations, {metric: [generations]}."""
    start_key, key = jax.random.split(key)
    steps, fine, image = hparams["steps"], hparams["fine"], images(TRACES)
    everything, nothing = np.full_like(image, len(SHARES) - 1), np.zeros_like(image)
    reciprocal = jnp.where((image == 0) & (fine > 0), FINES, image)
    first = imitate(
        generations.first_generation(start_key),
        select(hparams, "prior", reciprocal=reciprocal, generous=everything, selfish=nothing),
        hparams["error"],
    )
    pairs = jnp.asarray(generations.meetings())
    games = jnp.stack([pairs, pairs[:, :, ::-1]])

    def generation(nets: dict, key: jax.Array) -> tuple[dict, dict]:
        *keys, survival = jax.random.split(key, 3)
        owned, given = jax.vmap(generations.game, (None, 0, 0, None, None))(nets, games, jnp.stack(keys), steps, fine)
        new, _ = next_generation(nets, owned.sum(0), survival, survivors=AGENTS // 2, noise=hparams["noise"])
        wealth = owned.mean()
        doublings = jnp.log2(jnp.maximum(wealth, 0.01) / START)
        return new, {"wealth": wealth, "doublings": doublings, "given": given.mean(), "reads": reads(nets, steps, fine)}

    return jax.lax.scan(generation, first, jax.random.split(key, GENERATIONS))[1]


PRIORS = ("reciprocal", "generous", "selfish")
SEEN = {"trace_3": {"steps": 3.0, "fine": 0.0}, "trace_0": {"steps": 0.0, "fine": 0.0}}
FINED = {"fine": {"steps": 3.0, "fine": 1.0}}
ARMS = {
    f"{prior}/{name}": {"noise": 0.1, "error": 0.1, "prior": prior, **numbers}
    for prior in PRIORS
    for name, numbers in (SEEN | (FINED if prior != "generous" else {})).items()
}
RULE = "A donor loses what it gives; only donors that read the trace make giving pay."
STUDY = Study(
    paper=Paper(
        "Cultural Evolution of Cooperation (Vallinder & Hughes)",
        "https://arxiv.org/abs/2412.10270",
        2024,
        checked="release",
    ),
    question="Does the first generation decide if giving lasts?",
    claim="x",
    arms=side_by_side(history, ARMS, GENERATIONS, {"prior": PRIORS}),
    method="reciprocal/trace_3",
    metrics=("wealth", "doublings", "given", "reads", "reads at first", "given at first"),
    predictions=(
        Higher("wealth", "reciprocal/trace_3", than="selfish/trace_3", source="paper", where="abstract"),
        AtLeast("reads at first", "reciprocal/trace_3", 0.5, source="theory", where=RULE, condition=True),
    ),
    x="generation",
    derived={f"{name} at first": partial(at_first, metric=name) for name in ("reads", "given")},
)
