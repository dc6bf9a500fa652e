"""From reward components to one reward for each seat. Arrays in, arrays out."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.rl.masked import mean_of
from jaxmarl_llm.rl.shapes import check_shapes

Pays = Literal["hard", "intermediate"]


def weigh(reward: jax.Array, weights: jax.Array) -> jax.Array:
    """Sum of the components times their weights: reward [B,T,A,C], weights [C] -> [B,T,A].

    Raises ValueError if there is not one weight for each component.
    """
    check_shapes("reward [B,T,A,C]", reward)
    if weights.shape != reward.shape[-1:]:
        raise ValueError(f"weights has shape {weights.shape}, but there are {reward.shape[-1]} reward components.")
    return (reward * weights[None, None, None, :]).sum(axis=-1)  # not a matrix product: those are bfloat16 on a TPU


def team_sum(reward: jax.Array) -> jax.Array:
    """Every seat gets the sum over all seats, in every turn: reward [B,T,A] -> [B,T,A]."""
    check_shapes("reward [B,T,A]", reward)
    return jnp.broadcast_to(reward.sum(axis=-1, keepdims=True), reward.shape)


def kendall(score: jax.Array, order: jax.Array) -> jax.Array:
    """Kendall's tau-a, 2 / (n (n - 1)) sum_{i<j} sign(s_i - s_j) sign(y_i - y_j), of scores and a true order
    [..., n] -> float32 [...]: 1 if all pairs are in order, -1 if none is; a tie counts 0. For a pair it is +-1.

    Raises ValueError for fewer than two scores, which have no order, and for an order of another number of things.
    Kendall, A New Measure of Rank Correlation (1938), https://doi.org/10.1093/biomet/30.1-2.81.
    """
    n = score.shape[-1]
    if n < 2 or order.shape[-1] != n:
        raise ValueError(f"Two scores or more are compared with an order of as many, not {n} with {order.shape[-1]}.")
    sign = lambda x: jnp.sign(x[..., :, None] - x[..., None, :]).astype(jnp.float32)  # noqa: E731
    return (sign(score) * sign(order)).sum((-2, -1)) / (n * (n - 1))


def proxy_gap(proxy: jax.Array, true: jax.Array, where: jax.Array) -> dict[str, jax.Array]:
    """What a judge's reward says and what is true, arrays [...] within [0, 1], as means over ``where``: ``proxy``,
    ``true``, ``gap`` = proxy - true, and ``agreement``, the share in which both lie on the same side of 1/2.

    A gap that grows while the proxy does is overoptimisation: Gao et al., Scaling Laws for Reward Model
    Overoptimization (2022), https://arxiv.org/abs/2210.10760
    """
    check_shapes("where proxy true [...]", where, proxy, true)
    same = (proxy > 0.5) == (true > 0.5)
    found = {"proxy": proxy, "true": true, "gap": proxy - true, "agreement": same}
    return {name: mean_of(x, where).value for name, x in found.items()}


def conditioned(reward: jax.Array, *, on: int, least: float = 1.0) -> jax.Array:
    """Rewards [B,T,A,C] of which those of the other components count only if a seat's component ``on``, added up over
    the episode, is at least ``least``: [B,T,A,C].

    So priority is a condition rather than a weight. Liu et al., GDPO (2026), https://arxiv.org/abs/2601.05242; its form
    from a description. Raises ValueError for a component that is not there.
    """
    check_shapes("reward [B,T,A,C]", reward)
    if not 0 <= on < reward.shape[-1]:
        raise ValueError(f"There is no component {on}: there are {reward.shape[-1]}, counted from 0.")
    met = reward[..., on].sum(1, keepdims=True) >= least
    here = (jnp.arange(reward.shape[-1]) == on)[None, None, None]
    return jnp.where(met[..., None] | here, reward, 0)


def overlong(length: jax.Array, *, most: int, buffer: int) -> jax.Array:
    """The soft penalty of long answers: 0 up to most - buffer tokens, then falling on a line to -1 at ``most``, and -1
    beyond: length int [...] -> float32 [...]. Raises ValueError unless 0 < buffer <= most.

    Yu et al., DAPO: An Open-Source LLM Reinforcement Learning System at Scale (2025), https://arxiv.org/abs/2503.14476;
    the three cases of the paper, as the documentation of released trainers gives them.
    """
    if not 0 < buffer <= most:
        raise ValueError(f"The buffer lies within the {most} tokens allowed and is positive, got {buffer}.")
    return -jnp.clip((length - (most - buffer)) / buffer, 0.0, 1.0)


def challenge(success: jax.Array, pays: Pays = "hard") -> jax.Array:
    """What a question is worth to who poses it, [...], from the share of players that solve it, [...]: "hard", 1 - p,
    most where nobody does; "intermediate", 4 p (1 - p), most where half of them do and 0 where all or none do.

    Lu et al., Search Self-play (2025), https://arxiv.org/abs/2510.18821, has both, as "1-acc" and
    "intermediate_difficulty"; the second is the `learnability` of prime-rl's proposer-solver environment.
    Raises ValueError for another name.
    """
    if pays not in ("hard", "intermediate"):
        raise ValueError(f"A question pays 'hard' or 'intermediate', not {pays!r}.")
    return 1 - success if pays == "hard" else 4 * success * (1 - success)


def cosine(a: jax.Array, b: jax.Array) -> jax.Array:
    """a . b / (|a| |b|), the similarity in [-1, 1] of vectors [..., D]; 0 if one of them is 0.

    As reward of a text against a reference, both encoded: Pappone et al., Shaping Explanations (2025),
    https://arxiv.org/abs/2509.13081.
    """
    check_shapes("a b [...,D]", a, b)
    size = jnp.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return jnp.where(size > 0, (a * b).sum(-1) / jnp.where(size > 0, size, 1), 0)


def rouge_1(tokens: jax.Array, length: jax.Array, reference: jax.Array, reference_length: jax.Array) -> jax.Array:
    """ROUGE-1's F score of texts int32 [..., L] against references int32 [..., K], right-padded: 2 n / (l + k), where n
    tokens of the text stand in the reference, each as often as it stands there at most; 0 for empty texts.

    Lin, ROUGE (2004), https://aclanthology.org/W04-1013.
    """
    check_shapes(
        "tokens [...,L] length reference_length [...] reference [...,K]", tokens, length, reference_length, reference
    )
    place = lambda x: jnp.broadcast_to(jnp.arange(x.shape[-1]), x.shape)  # noqa: E731
    said, there = place(tokens) < length[..., None], place(reference) < reference_length[..., None]
    same = (tokens[..., :, None] == tokens[..., None, :]) & said[..., :, None] & said[..., None, :]
    before = jnp.tril(same).sum(-1)  # the how-manieth of its kind, from 1
    most = ((tokens[..., :, None] == reference[..., None, :]) & there[..., None, :]).sum(-1)
    n = ((before <= most) & said).sum(-1)
    return 2 * n / jnp.maximum(length + reference_length, 1)


def less_divergence(
    reward: jax.Array, logp: jax.Array, reference_logp: jax.Array, where: jax.Array, beta: float | jax.Array
) -> jax.Array:
    """The return of each utterance, with -beta (logp - reference_logp) paid for every sampled token: [...].

    reward [...], of the utterance, counts for its last token; logp, reference_logp and the bool `where` [..., M] are of
    its tokens. The sum over tokens of logp - reference_logp is the k1 estimate of KL(policy || reference), so that the
    expected return is E[reward] - beta KL. As TRL's PPO pays it, before any whitening.
    Ziegler et al., Fine-Tuning Language Models from Human Preferences (2019), https://arxiv.org/abs/1909.08593.
    """
    check_shapes("where logp reference_logp [...,M] reward [...]", where, logp, reference_logp, reward)
    return reward - beta * jnp.where(where, logp - reference_logp, 0).sum(-1)


def gated(outcome: jax.Array, steps: jax.Array, delta: float | jax.Array) -> jax.Array:
    """Step rewards that count only in episodes whose outcome exceeds delta: [B,T,...] and [B,T,...] -> [B,T,...].

    outcome + 1[R_long > delta] steps, with R_long = sum_t outcome: the return is R_long + 1[R_long > delta] sum_t r_t.
    With delta = -inf every step reward counts.
    Sun et al., Stabilizing Long-term Multi-turn Reinforcement Learning with Gated Rewards (2025, G-RA),
    https://arxiv.org/abs/2508.10548; the formula from its abstract and notes of others.
    """
    check_shapes("outcome steps [B,T,...]", outcome, steps)
    return outcome + jnp.where(outcome.sum(axis=1, keepdims=True) > delta, steps, 0)


def tiers(progress: jax.Array, bounds: tuple[float, ...], worth: tuple[float, ...]) -> jax.Array:
    """worth[k] where progress [...] reaches k of the ascending bounds: one worth more than bounds, -> float32 [...].

    The worths ascend, so that better progress is never paid less.
    Wu et al., SSL: Sweet Spot Learning (2026), https://arxiv.org/abs/2601.22491, from its abstract.
    Raises ValueError unless both ascend and fit.
    """
    if len(worth) != len(bounds) + 1 or (np.diff(bounds) <= 0).any() or (np.diff(worth) < 0).any():
        raise ValueError(f"Tiers need ascending bounds and one worth more, ascending too, got {bounds} and {worth}.")
    return jnp.array(worth, jnp.float32)[jnp.searchsorted(jnp.array(bounds), progress, side="right")]


def potential_difference(potential: jax.Array, played: jax.Array, gamma: float | jax.Array = 1.0) -> jax.Array:
    """F_t = gamma Phi(s_{t+1}) - Phi(s_t), with Phi = 0 after the last turn: [B,T,...] -> [B,T,...].

    ``potential`` is of the state before each turn, ``played`` (bool) of the turns before the end, a prefix of all; 0
    elsewhere. Discounted by gamma it adds up to -Phi(s_0) whatever is done: optimal policies stay optimal.
    Ng et al., Policy Invariance Under Reward Transformations (1999),
    https://people.eecs.berkeley.edu/~russell/papers/icml99-shaping.pdf
    """
    check_shapes("played potential [B,T,...]", played, potential)
    now = jnp.where(played, potential, 0)
    after = jnp.concatenate([now[:, 1:], jnp.zeros_like(now[:, :1])], axis=1)
    return jnp.where(played, gamma * after - now, 0)


def milestones(reached: jax.Array, worth: jax.Array) -> jax.Array:
    """Milestones are paid once, in the turn that first reaches them: bool [B,T,...,K], worth [K] -> [B,T,...].

    Raises ValueError if there is not one worth for each milestone.
    """
    _one_each("milestone", worth, reached)
    ever = jax.lax.associative_scan(jnp.logical_or, reached, axis=1)
    before = jnp.concatenate([jnp.zeros_like(ever[:, :1]), ever[:, :-1]], axis=1)
    return jnp.where(ever & ~before, jnp.broadcast_to(worth, ever.shape), 0).sum(-1)


def checklist(met: jax.Array, weights: jax.Array) -> jax.Array:
    """The weighted share of binary criteria that are met, sum_k w_k met_k / sum_k w_k: bool [...,K], [K] -> [...].

    Zhang et al., CM2: Reinforcement Learning with Checklist Rewards (2026), https://arxiv.org/abs/2602.12268. Paid
    turn by turn this is dense assignment; ``at_end`` of it is sparse.
    Raises ValueError if there is not one weight for each criterion.
    """
    _one_each("criterion", weights, met)
    return jnp.where(met, jnp.broadcast_to(weights, met.shape), 0).sum(-1) / weights.sum()


def at_end(reward: jax.Array, acted: jax.Array) -> jax.Array:
    """The sum over turns, paid for a seat's last act: [B,T,...], bool [B,T,...] -> [B,T,...]; 0 if it never acts."""
    check_shapes("acted reward [B,T,...]", acted, reward)
    later = jnp.flip(jax.lax.cummax(jnp.flip(acted, 1).astype(jnp.int8), axis=1), 1).astype(
        bool
    )  # this or a later turn
    last = acted & ~jnp.concatenate([later[:, 1:], jnp.zeros_like(later[:, :1])], axis=1)
    return jnp.where(last, reward.sum(axis=1, keepdims=True), 0)


def _one_each(what: str, numbers: jax.Array, of: jax.Array) -> None:
    if numbers.shape != of.shape[-1:]:
        raise ValueError(f"There is one number for each {what}: got {list(numbers.shape)} for {list(of.shape)}.")
