"""Turn-level advantages: the estimator of MARS and its ablations."""

from jax import Array

from jaxmarl_llm.rl.returns import Number, credit_to_acts
from jaxmarl_llm.rl.shapes import check_shapes
from jaxmarl_llm.rl.statistics import (
    Index,
    Returns,
    Weight,
    accumulate,
    act_weights,
    agent_index,
    check_option,
    estimate,
    game_index,
    group_index,
    key_of,
    turn_index,
    whiten,
)


def turn_level(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    *,
    role: Array,
    num_roles: int,
    game: Array | None = None,
    num_games: int = 1,
    returns: Returns = "to_go",
    gamma: Number = 1.0,
    centre: tuple[str, ...] | None = ("game", "role"),
    by: tuple[str, ...] = ("role",),
    whitened: bool = True,
    weight: Weight = "turn",
) -> Array:
    """Centres turn rewards, sums them to a return-to-go, subtracts its mean by role and whitens over the batch.

    ``centre`` and ``by`` are the keys of the two means: any of group, game, role, agent and turn, () for one mean of
    all. ``centre=None`` does not centre rewards. role [B,T,A], game [B]. Six arms are settings of this function:

        episode, pooled                 returns="episode", centre=None, by=()
        episode, per role               returns="episode", centre=None
        return-to-go, pooled            centre=None, by=()
        return-to-go, per role          centre=None
        centred turns, return-to-go     (the defaults)
        return-to-go, per role and turn centre=None, by=("role", "turn")

    Raises ValueError for an unknown key.

    Yuan et al., MARS: Reinforcing Multi-Agent Reasoning of LLMs through Self-Play in Strategic Games (2025),
    https://arxiv.org/abs/2510.15414. Formula read in the release, which takes the mean of the distinct values. This
    takes the mean of all values.
    """
    check_shapes("acted reward role [B,T,A] group game [B]", acted, reward, role, group, game)
    indices: dict[str, Index] = {
        "group": group_index(group, num_groups),
        "game": game_index(game, num_games),
        "role": (role, num_roles),
        "agent": agent_index(acted),
        "turn": turn_index(acted),
    }
    for name in (*(centre or ()), *by):
        check_option("key", name, tuple(indices))

    def subtract_mean(x: Array, names: tuple[str, ...]) -> Array:
        used = {name: indices[name] for name in names}
        within_episode = {name: index for name, index in used.items() if name in ("role", "turn")}
        weights = act_weights(acted, weight, **within_episode)
        return estimate(x, acted, *key_of(acted.shape, **used), baseline="mean", weights=weights)

    reward = credit_to_acts(reward, acted)
    if centre is not None:
        reward = subtract_mean(reward, centre)
    advantage = subtract_mean(accumulate(reward, acted, returns, gamma), by)
    return whiten(advantage, acted, weights=act_weights(acted, weight)) if whitened else advantage
