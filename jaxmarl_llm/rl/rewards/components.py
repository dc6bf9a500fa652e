"""Reward components: weighted sums, shaping, and scores of answers. Arrays in, arrays out."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.rl.masked import mean_of
from jaxmarl_llm.rl.shapes import check_shapes

Pays = Literal["hard", "intermediate"]


def weigh(reward: jax.Array, weights: jax.Array) -> jax.Array:
    """The weighted sum of reward components: reward [B,T,A,C], weights [C] -> [B,T,A].

    Raises ValueError if there is not one weight for each component.
    """
    check_shapes("reward [B,T,A,C]", reward)
    if weights.shape != reward.shape[-1:]:
        raise ValueError(f"weights has shape {weights.shape}, but there are {reward.shape[-1]} reward components.")
    return (reward * weights[None, None, None, :]).sum(axis=-1)  # not a matrix product: those are bfloat16 on a TPU


def team_sum(reward: jax.Array) -> jax.Array:
    """The sum over all seats as reward of every seat, in every turn: reward [B,T,A] -> [B,T,A]."""
    check_shapes("reward [B,T,A]", reward)
    return jnp.broadcast_to(reward.sum(axis=-1, keepdims=True), reward.shape)


def kendall(score: jax.Array, order: jax.Array) -> jax.Array:
    """Kendall's tau-a of scores and a true order, [..., n] each -> float32 [...]: 1 in order, -1 reversed.

    2 / (n (n - 1)) sum_{i<j} sign(s_i - s_j) sign(y_i - y_j)

    A tie counts 0. For a pair the result is +-1.
    Raises ValueError for fewer than two scores, and for an order of another length.
    Kendall, A New Measure of Rank Correlation (1938), https://doi.org/10.1093/biomet/30.1-2.81.
    """
    n = score.shape[-1]
    if n < 2 or order.shape[-1] != n:
        raise ValueError(f"Two scores or more are compared with an order of as many, not {n} with {order.shape[-1]}.")
    sign = lambda x: jnp.sign(x[..., :, None] - x[..., None, :]).astype(jnp.float32)
    return (sign(score) * sign(order)).sum((-2, -1)) / (n * (n - 1))


def proxy_gap(proxy: jax.Array, true: jax.Array, where: jax.Array) -> dict[str, jax.Array]:
    """Metrics of a judge's reward against the truth, arrays [...] in [0, 1]: {name: scalar}, means over ``where``.

    The names are ``proxy``, ``true``, ``gap`` = proxy - true, and ``agreement``, the share on the same side of 1/2. A
    gap that grows together with the proxy is overoptimisation.

    Gao et al., Scaling Laws for Reward Model Overoptimization (2022), https://arxiv.org/abs/2210.10760
    """
    check_shapes("where proxy true [...]", where, proxy, true)
    same = (proxy > 0.5) == (true > 0.5)
    metrics = {"proxy": proxy, "true": true, "gap": proxy - true, "agreement": same}
    return {name: mean_of(x, where).value for name, x in metrics.items()}


def condition_on(reward: jax.Array, *, on: int, least: float = 1.0) -> jax.Array:
    """Rewards whose other components count only if component ``on`` is large enough: [B,T,A,C] -> [B,T,A,C].

    The condition is per seat: its component ``on``, summed over the episode, is at least ``least``. Priority is thus a
    condition instead of a weight. Liu et al., GDPO (2026), https://arxiv.org/abs/2601.05242; its form from a
    description.
    Raises ValueError for an unknown component.
    """
    check_shapes("reward [B,T,A,C]", reward)
    if not 0 <= on < reward.shape[-1]:
        raise ValueError(f"There is no component {on}: there are {reward.shape[-1]}, counted from 0.")
    met = reward[..., on].sum(1, keepdims=True) >= least
    here = (jnp.arange(reward.shape[-1]) == on)[None, None, None]
    return jnp.where(met[..., None] | here, reward, 0)


def overlong(length: jax.Array, *, max_length: int, buffer: int) -> jax.Array:
    """The soft length penalty of DAPO: length int [...] -> float32 [...] in [-1, 0].

    The penalty is 0 up to max_length - buffer tokens, falls linearly to -1 at ``max_length`` and is -1 above.
    Raises ValueError unless 0 < buffer <= max_length.

    Yu et al., DAPO: An Open-Source LLM Reinforcement Learning System at Scale (2025), https://arxiv.org/abs/2503.14476.
    The three cases of the paper, as the documentation of released trainers gives them.
    """
    if not 0 < buffer <= max_length:
        raise ValueError(f"The buffer lies within the {max_length} tokens allowed and is positive, got {buffer}.")
    return -jnp.clip((length - (max_length - buffer)) / buffer, 0.0, 1.0)


def challenge(success: jax.Array, pays: Pays = "hard") -> jax.Array:
    """The reward of a question's proposer from the solve rate p of the question: success [...] -> [...].

    "hard" pays 1 - p, largest if nobody solves it. "intermediate" pays 4 p (1 - p), largest at p = 1/2.

    Lu et al., Search Self-play (2025), https://arxiv.org/abs/2510.18821, has both, as "1-acc" and
    "intermediate_difficulty"; the second is the `learnability` of prime-rl's proposer-solver environment.
    Raises ValueError for another name.
    """
    if pays not in ("hard", "intermediate"):
        raise ValueError(f"A question pays 'hard' or 'intermediate', not {pays!r}.")
    return 1 - success if pays == "hard" else 4 * success * (1 - success)


def cosine(a: jax.Array, b: jax.Array) -> jax.Array:
    """Cosine similarity a . b / (|a| |b|) in [-1, 1] of vectors [..., D] -> [...]; 0 if a vector is 0. Leading axes
    broadcast.

    As a reward it compares the encodings of a text and a reference: Pappone et al., Shaping Explanations (2025),
    https://arxiv.org/abs/2509.13081.
    """
    size = jnp.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return jnp.where(size > 0, (a * b).sum(-1) / jnp.where(size > 0, size, 1), 0)


def rouge_1(tokens: jax.Array, length: jax.Array, reference: jax.Array, reference_length: jax.Array) -> jax.Array:
    """ROUGE-1's F score of texts int32 [..., L] against references int32 [..., K], right-padded -> float32 [...].

    2 n / (length + reference_length), with n the number of unigrams in common, counted with multiplicity. Two empty
    texts score 0.

    Lin, ROUGE (2004), https://aclanthology.org/W04-1013.
    """
    check_shapes(
        "tokens [...,L] length reference_length [...] reference [...,K]", tokens, length, reference_length, reference
    )
    place = lambda x: jnp.broadcast_to(jnp.arange(x.shape[-1]), x.shape)
    in_text, inside = place(tokens) < length[..., None], place(reference) < reference_length[..., None]
    same = (tokens[..., :, None] == tokens[..., None, :]) & in_text[..., :, None] & in_text[..., None, :]
    before = jnp.tril(same).sum(-1)  # the count of equal tokens up to this one
    in_reference = ((tokens[..., :, None] == reference[..., None, :]) & inside[..., None, :]).sum(-1)
    n = ((before <= in_reference) & in_text).sum(-1)
    return 2 * n / jnp.maximum(length + reference_length, 1)


def less_divergence(
    reward: jax.Array, logp: jax.Array, reference_logp: jax.Array, where: jax.Array, beta: float | jax.Array
) -> jax.Array:
    """The return of each utterance with a KL penalty of -beta (logp - reference_logp) for every sampled token: [...].

    reward [...] is of the utterance, at its last token; logp, reference_logp and the bool `where` [..., M] are of its
    tokens. The sum over tokens of logp - reference_logp is the k1 estimate of KL(policy || reference), so the expected
    return is E[reward] - beta KL. The same penalty as in TRL's PPO, before any whitening.
    Ziegler et al., Fine-Tuning Language Models from Human Preferences (2019), https://arxiv.org/abs/1909.08593.
    """
    check_shapes("where logp reference_logp [...,M] reward [...]", where, logp, reference_logp, reward)
    return reward - beta * jnp.where(where, logp - reference_logp, 0).sum(-1)


def gate_steps(outcome: jax.Array, steps: jax.Array, delta: float | jax.Array) -> jax.Array:
    """Step rewards count only if the outcome of the episode exceeds delta: [B,T,...], [B,T,...] -> [B,T,...].

    outcome + 1[R_long > delta] steps, with R_long = sum_t outcome: the return is R_long + 1[R_long > delta] sum_t r_t.
    With delta = -inf every step reward counts.
    Sun et al., Stabilizing Long-term Multi-turn Reinforcement Learning with Gated Rewards (2025, G-RA),
    https://arxiv.org/abs/2508.10548; the formula from its abstract and notes of others.
    """
    check_shapes("outcome steps [B,T,...]", outcome, steps)
    return outcome + jnp.where(outcome.sum(axis=1, keepdims=True) > delta, steps, 0)


def tiers(progress: jax.Array, bounds: tuple[float, ...], worth: tuple[float, ...]) -> jax.Array:
    """A reward in steps: worth[k] for progress [...] that reaches k of the ascending bounds -> float32 [...].

    There is one worth more than bounds. Worths ascend, so more progress never gets a smaller reward.
    Wu et al., SSL: Sweet Spot Learning (2026), https://arxiv.org/abs/2601.22491, from its abstract.
    Raises ValueError for bounds or worths that do not ascend, or for another number of worths.
    """
    if len(worth) != len(bounds) + 1 or (np.diff(bounds) <= 0).any() or (np.diff(worth) < 0).any():
        raise ValueError(f"Tiers need ascending bounds and one worth more, ascending too, got {bounds} and {worth}.")
    return jnp.array(worth, jnp.float32)[jnp.searchsorted(jnp.array(bounds), progress, side="right")]


def potential_difference(potential: jax.Array, played: jax.Array, gamma: float | jax.Array = 1.0) -> jax.Array:
    """Potential-based shaping, F_t = gamma Phi(s_{t+1}) - Phi(s_t) with Phi = 0 after the end: [B,T,...] -> [B,T,...].

    ``potential`` is Phi of the state before each turn; ``played`` (bool) marks the turns before the end, a prefix of
    all. F is 0 in other turns. Its discounted sum is -Phi(s_0) for every policy, so optimal policies stay optimal.
    Ng et al., Policy Invariance Under Reward Transformations (1999),
    https://people.eecs.berkeley.edu/~russell/papers/icml99-shaping.pdf
    """
    check_shapes("played potential [B,T,...]", played, potential)
    now = jnp.where(played, potential, 0)
    after = jnp.concatenate([now[:, 1:], jnp.zeros_like(now[:, :1])], axis=1)
    return jnp.where(played, gamma * after - now, 0)


def milestones(reached: jax.Array, worth: jax.Array) -> jax.Array:
    """The worth of each milestone, in the turn that first reaches it: bool [B,T,...,K], worth [K] -> [B,T,...].

    Raises ValueError if there is not one worth for each milestone.
    """
    _check_count("milestone", worth, reached)
    ever = jax.lax.associative_scan(jnp.logical_or, reached, axis=1)
    before = jnp.concatenate([jnp.zeros_like(ever[:, :1]), ever[:, :-1]], axis=1)
    return jnp.where(ever & ~before, jnp.broadcast_to(worth, ever.shape), 0).sum(-1)


def checklist(met: jax.Array, weights: jax.Array) -> jax.Array:
    """The weighted share of criteria that are met, sum_k w_k met_k / sum_k w_k: bool [...,K], [K] -> [...].

    Zhang et al., CM2: Reinforcement Learning with Checklist Rewards (2026), https://arxiv.org/abs/2602.12268. As a
    reward of every turn this is dense assignment; ``at_end`` of it is sparse.
    Raises ValueError if there is not one weight for each criterion.
    """
    _check_count("criterion", weights, met)
    return jnp.where(met, jnp.broadcast_to(weights, met.shape), 0).sum(-1) / weights.sum()


def at_end(reward: jax.Array, acted: jax.Array) -> jax.Array:
    """The sum over turns, paid at the seat's last act: [B,T,...], bool [B,T,...] -> [B,T,...]; 0 without acts."""
    check_shapes("acted reward [B,T,...]", acted, reward)
    later = jnp.flip(jax.lax.cummax(jnp.flip(acted, 1).astype(jnp.int8), axis=1), 1).astype(
        bool
    )  # this or a later turn
    last = acted & ~jnp.concatenate([later[:, 1:], jnp.zeros_like(later[:, :1])], axis=1)
    return jnp.where(last, reward.sum(axis=1, keepdims=True), 0)


def _check_count(name: str, numbers: jax.Array, values: jax.Array) -> None:
    if numbers.shape != values.shape[-1:]:
        raise ValueError(f"There is one number for each {name}: got {list(numbers.shape)} for {list(values.shape)}.")
