"""Advantage estimators: returns of acts less a baseline, over a scale. Arrays in, arrays out.

Every method is advantage = (accumulated reward - baseline[key]) / scale[key], and some whiten the result. Methods
differ in the accumulation (``returns.py``), the key (question, turn, agent, role), the baseline and the scale.
``statistics.estimate`` is that kernel; a preset names a combination. A preset takes

    reward [B,T,A] float   the weighted sum of components; 0 after the end of an episode
    acted  [B,T,A] bool    True where a seat acts in that turn
    group  [B] int         0..num_groups-1; episodes of a group start in the same state; num_groups is static

and returns the advantage [B,T,A], float32, exactly 0 where a seat did not act. B episodes, T turns, A seats. A reward
counts for the seat's latest act before it (``returns.credit_to_acts``). Discounts and weights may be traced. Rewards
may be as large as 1e30: deviations are scaled before they are squared.

Exceptions: ``role_baseline`` also returns its state, ``sequential_agents`` its critic's target. ``decoupled_grpo``
takes components; ``cross_joint`` and ``counterfactual`` (`joint.py`) take tables of rewards. ``beta_normalised`` and
``consistency`` (`binary.py`) take answers that are right or wrong.

    preset                accumulated             key                       baseline       scale  after
    reinforce             episode or to go        -                         none           none
    grpo                  episode                 group                     mean           std    (none: Dr. GRPO)
    lite                  episode                 group                     mean           std    std of the batch
    rloo                  episode                 group                     leave one out  none
    reinforce_plus_plus   to go (gamma<1: ReBN)   whole batch               mean           std
    role_baseline         episode                 game, role                running mean   none
    turn_level            centred turns, to go    role                      mean           none   whitened
    agent_wise            episode                 group, agent              mean           std
    turn_wise             the turn's reward       group, turn, agent        mean           std
    step_groups           episode; to go          group; and observation    mean           std    weighted sum
    shared_steps          episode               group                     mean           std    mean by step
    decoupled_grpo        episode, by component   group                     mean           std    sum, whitened
    round_leave_one_out   to go                   group, turn, agent        leave one out  none
    advantage_alignment   to go                   group, turn, agent        leave one out  none   both seats' product
    sequential_agents     GAE through agents      -                         critic         none   whitened

If a seat acts several times, ``weight`` chooses the unit of a statistic. With "turn" each act weighs 1; with "episode"
all acts of an episode under one key have the total weight 1.
"""

from jaxmarl_llm.rl.advantages.alignment import advantage_alignment, round_leave_one_out
from jaxmarl_llm.rl.advantages.binary import beta_normalised, consistency, consistency_parts
from jaxmarl_llm.rl.advantages.group_relative import (
    agent_wise,
    decoupled_grpo,
    grpo,
    lite,
    reinforce,
    reinforce_plus_plus,
    rloo,
    shared_steps,
    step_groups,
    turn_wise,
)
from jaxmarl_llm.rl.advantages.joint import counterfactual, cross_joint
from jaxmarl_llm.rl.advantages.role_conditioned import RoleBaselineState, init_role_baseline, role_baseline
from jaxmarl_llm.rl.advantages.sequential import sequential_agents
from jaxmarl_llm.rl.advantages.turns import turn_level
from jaxmarl_llm.rl.statistics import advantage_metrics, estimate, high_covariance, inliers, key_of, whiten

_OF_EPISODES = reinforce, grpo, lite, rloo, agent_wise, role_baseline, decoupled_grpo
_OF_TURNS = (
    reinforce_plus_plus,
    turn_level,
    turn_wise,
    step_groups,
    shared_steps,
    round_leave_one_out,
    advantage_alignment,
)
PRESETS = {preset.__name__: preset for preset in (*_OF_EPISODES, *_OF_TURNS, sequential_agents)}

OF_GROUPS = (
    *(grpo, lite, rloo, agent_wise, turn_wise, step_groups, shared_steps, decoupled_grpo),
    *(round_leave_one_out, advantage_alignment),
)
"""Presets that compare the episodes of a group: groups of one episode give them almost no gradient."""

__all__ = [
    "OF_GROUPS",
    "PRESETS",
    "RoleBaselineState",
    "advantage_alignment",
    "advantage_metrics",
    "agent_wise",
    "beta_normalised",
    "consistency",
    "consistency_parts",
    "counterfactual",
    "cross_joint",
    "decoupled_grpo",
    "estimate",
    "grpo",
    "high_covariance",
    "init_role_baseline",
    "inliers",
    "key_of",
    "lite",
    "reinforce",
    "reinforce_plus_plus",
    "rloo",
    "role_baseline",
    "round_leave_one_out",
    "sequential_agents",
    "shared_steps",
    "step_groups",
    "turn_level",
    "turn_wise",
    "whiten",
]
