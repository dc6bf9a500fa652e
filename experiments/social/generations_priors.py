"""Does the first generation decide if giving lasts? Cultural evolution in the donor game, from three priors.

In the paper the first strategies differ by language model. Here all networks of the first generation imitate one script
(200 steps of Adam). The rest is as in the study `generations`, but copies have noise 0.2, not 0.1.

  reciprocal  gives the recipient's image: everything to an image of 1, nothing to an image of 0
  generous    gives everything to everybody
  selfish     gives nothing

  PRIOR/trace_3   donors see three steps of the recipient's trace
  PRIOR/trace_0   donors see nothing; the reciprocal script then gives everything, as to a stranger
  PRIOR/fine      three steps, and fines are allowed; the reciprocal prior fines where it would give nothing

An image is the release's reputation (`donors.images`). With probability 0.1 a script does anything, fines included: a
sure network has no copies that differ.

  doublings  log2 of the mean resources after a game over those at its start; 0 without gifts, 10.6 if all is given
  wealth     mean resources after a game, 10 at its start
  given      mean share given; `... at first` is that of the first generation
  reads      expected gift to traces of image 1 less that to traces of image 0, mean over networks and traces

  python -m experiments generations_priors --seeds 20

Paper: Cultural Evolution of Cooperation among LLM Agents (Vallinder & Hughes) 2024, https://arxiv.org/abs/2412.10270.
There language models write strategies, in ten generations; no language model plays here.
"""

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.social.generations import GENERATIONS
from jaxmarl_llm.methods.generations import next_generation
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.studies.computed import side_by_side
from jaxmarl_llm.studies.curves import at_first
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, NotHigher, Paper, Study
from jaxmarl_llm.tabular import donors
from jaxmarl_llm.tabular.donors import AGENTS, FINES, SHARES, START, STEPS, UNKNOWN

TRACES = np.array([*product(range(UNKNOWN + 1), repeat=STEPS)])  # [216, steps], the newest gift first
ALL = len(SHARES) - 1


def logits(nets: dict, steps: Any, fine: Any) -> jax.Array:
    """Logits of all networks for all traces, [agents, traces, shares and FINES]."""
    of_net = jax.vmap(donors.logits_of, (None, 0, None, None))
    return jax.vmap(of_net, (0, None, None, None))(nets, jnp.asarray(TRACES), steps, fine)


def imitate(nets: dict, act: jax.Array, error: Any) -> dict:
    """Networks after 200 steps of Adam towards an act for each trace, int [traces], or any with probability `error`."""
    optimiser = optax.adam(0.03)
    target = (1 - error) * jax.nn.one_hot(act, FINES + 1) + error / (FINES + 1)
    loss = lambda nets: optax.softmax_cross_entropy(logits(nets, STEPS, 1), target[None]).mean(1).sum()

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        updates, state = optimiser.update(jax.grad(loss)(carry[0]), carry[1])
        return (optax.apply_updates(carry[0], updates), state), None

    return jax.lax.scan(step, (nets, optimiser.init(nets)), None, 200)[0][0]


def reads(nets: dict, steps: Any, fine: Any) -> jax.Array:
    """The expected gift to known traces of image 1 less that to known traces of image 0."""
    gift = jax.nn.softmax(logits(nets, steps, fine))[..., :FINES] @ SHARES
    image, known = donors.images(TRACES), (TRACES < UNKNOWN).all(1)
    return gift[:, known & (image == ALL)].mean() - gift[:, known & (image == 0)].mean()


def history(key: jax.Array, hparams: Mapping[str, Any]) -> dict:
    """Curves over the generations, {metric: [generations]}."""
    start_key, key = jax.random.split(key)
    steps, fine, image = hparams["steps"], hparams["fine"], donors.images(TRACES)
    reciprocal = jnp.where((image == 0) & (fine > 0), FINES, image)
    act = select(hparams, "prior", reciprocal=reciprocal, generous=np.full_like(image, ALL), selfish=0 * image)
    first = imitate(donors.random_networks(start_key), act, hparams["error"])
    pairs = jnp.asarray(donors.meetings())
    games = jnp.stack([pairs, pairs[:, :, ::-1]])

    def generation(nets: dict, key: jax.Array) -> tuple[dict, dict]:
        *keys, survival = jax.random.split(key, 3)
        owned, given = jax.vmap(donors.play_game, (None, 0, 0, None, None))(nets, games, jnp.stack(keys), steps, fine)
        new, _ = next_generation(nets, owned.sum(0), survival, survivors=AGENTS // 2, noise=hparams["noise"])
        curves = {"wealth": owned.mean(), "given": given.mean(), "reads": reads(nets, steps, fine)}
        return new, curves | {"doublings": jnp.log2(owned.mean() / START)}

    return jax.lax.scan(generation, first, jax.random.split(key, GENERATIONS))[1]


PRIORS = ("reciprocal", "generous", "selfish")
KINDS = {"trace_3": (3.0, 0.0), "trace_0": (0.0, 0.0), "fine": (3.0, 1.0)}  # steps seen, fines allowed
ARMS: dict[str, dict[str, float | str]] = {
    f"{prior}/{kind}": {"prior": prior, "noise": 0.2, "error": 0.1, "steps": steps, "fine": fine}
    for prior, (kind, (steps, fine)) in product(PRIORS, KINDS.items())
    if (prior, kind) != ("generous", "fine")
}
MODELS = 'abstract: "the evolution of cooperation differs markedly across base models", Claude 3.5 Sonnet above others'
FINED = 'abstract: Claude 3.5 Sonnet uses "costly punishment to achieve yet higher scores"'
OTHERS = 'abstract: "Gemini 1.5 Flash and GPT-4o fail to do so". The margin is ours.'
UNSEEN = "Where nobody sees a gift, selection must remove it; else nothing is selected. The level is ours."
READS = "The level is ours: a prior that does not read traces is no reciprocity."
RULE = "A gift costs its donor, and pays only if donors read traces."
TITLE = "Cultural Evolution of Cooperation (Vallinder & Hughes)"
STUDY = Study(
    paper=Paper(TITLE, "https://arxiv.org/abs/2412.10270", 2024, checked="release"),
    question="Does the first generation decide if giving lasts?",
    claim="From a reciprocal first generation agents end richer than from a selfish one, and richer still with fines; "
    "without traces, or from unconditional giving, they stop giving.",
    arms=side_by_side(history, ARMS, GENERATIONS, {"prior": PRIORS}),
    method="reciprocal/trace_3",
    metrics=("doublings", "wealth", "given", "given at first", "reads", "reads at first"),
    predictions=(
        Higher("doublings", "reciprocal/trace_3", than="selfish/trace_3", source="paper", where=MODELS),
        Higher("doublings", "reciprocal/fine", than="reciprocal/trace_3", source="paper", where=FINED),
        NotHigher("doublings", "selfish/fine", than="selfish/trace_3", by=0.5, source="paper", where=OTHERS),
        AtLeast("reads at first", "reciprocal/trace_3", 0.4, source="theory", where=READS, condition=True),
        AtMost("given", "generous/trace_0", 0.25, source="theory", where=UNSEEN, condition=True),
        Higher("doublings", "reciprocal/trace_3", than="reciprocal/trace_0", source="theory", where=RULE),
        Higher("doublings", "reciprocal/trace_3", than="generous/trace_3", source="theory", where=RULE),
    ),
    x="generation",
    derived={f"{name} at first": partial(at_first, metric=name) for name in ("reads", "given")},
)
