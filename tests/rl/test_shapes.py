"""A wrong shape is refused where it is given, by the argument's name, and nothing else changes."""

import inspect

import jax
import jax.numpy as jnp
import pytest

from jaxmarl_llm.rl import advantages, counts, losses, returns, segments, statistics, value_table
from jaxmarl_llm.rl.advantages.hierarchical import hierarchical
from jaxmarl_llm.rl.rewards import components, multipliers, rubrics, votes
from jaxmarl_llm.rl.shapes import LEGEND, check_shapes

SIZES = {"B": 5, "T": 3, "A": 2, "R": 5, "M": 4, "N": 6, "C": 7, "D": 8, "K": 3, "L": 9, "P": 4, "G": 3, "X": 3, "Y": 4}
SIZES |= {"pair": 2}
BOOLS = {"where", "acted", "known", "begins", "played", "met", "same"}
INTS = {"group", "key", "turn", "step", "observation", "action", "role", "game", "answer", "label", "member", "view"}
INTS |= {"tokens", "reference", "length", "reference_length", "names", "told"}
# what a function needs beside
REST = {"num_groups": 3, "num_keys": 3, "num_observations": 4, "num_roles": 2, "n": 2, "baseline": "mean", "answers": 3}
REST |= {
    "returns": "to_go",
    "weight": "episode",
    "gamma": 0.9,
    "beta": 1.0,
    "low": 0.5,
    "high": 2.0,
    "members": 2,
    "num_games": 2,
}
REST |= {"on": 1, "kept": 2, "delta": 0.0, "rate": 0.1, "decay": 0.9, "step_weight": 1.0}
REST |= {"state": advantages.init_role_baseline(2), "buffer": multipliers.pareto_buffer(4, 3)}
ARRAYS = {"weights": (7,), "reward": (5, 3), "total": (5,)}  # they have sentences of their own
FUNCTIONS = [
    (returns.credit_to_acts, "acted reward [B,T,...]"),
    (returns.return_to_go, "reward [B,T,...]"),
    (returns.episode_return, "reward [B,T,...]"),
    (returns.gae, "where reward value [B,T,...] last [B,...]"),
    (returns.n_step, "where reward value [B,T,...] last [B,...]"),
    (returns.v_trace, "where reward value log_ratio [B,T,...] last [B,...]"),
    (returns.gae_through_agents, "acted value [B,T,A] step [B,T] last [B]"),
    (returns.on_last_token, "where turn [R,M] reward [R,T]"),
    (returns.gae_by_token, "where turn value [R,M] reward [R,T] last [R]"),
    (returns.gae_bi_level, "where turn value [R,M] reward [R,T] last [R]"),
    (returns.fitted_critic, "acted reward observation action [B,T,A] probability [B,T,A,N]"),
    (returns.joint_value, "known value [B,T,A]"),
    (statistics.estimate, "where accumulated key weights [...]"),
    (statistics.whiten, "where advantage weights [...]"),
    (statistics.inliers, "where advantage [...]"),
    (statistics.weighted_mean, "where x key weights [...]"),
    (statistics.group_index, "group [B]"),
    (statistics.turn_index, "acted [B,T,A]"),
    (statistics.agent_index, "acted [B,T,A]"),
    (statistics.game_index, "game [B]"),
    (statistics.accumulate, "acted reward [B,T,...]"),
    (statistics.act_weights, "acted [B,T,A]"),
    (statistics.duration_weights, "where duration [...]"),
    (statistics.first_informative, "acted reward [B,T,A] group [B]"),
    (statistics.advantage_metrics, "acted advantage [B,T,A] group [B]"),
    (statistics.mismatch, "where scored sampled [...]"),
    (statistics.mutual_information, "joint [X,Y]"),
    (statistics.auc, "joint [X,L]"),
    (segments.gae_hierarchical, "where reward turn_value segment_value switch_value begins [B,T,...] last [B,...]"),
    (counts.within_episode, "where names [B,T,A]"),
    (counts.arrivals, "acted told [B,T,A]"),
    (value_table.to_go, "where reward [B,T,A]"),
    (value_table.unexplained_variance, "where value returns [...]"),
    (advantages.reinforce, "acted reward [B,T,A] group [B]"),
    (advantages.grpo, "acted reward [B,T,A] group [B]"),
    (advantages.lite, "acted reward [B,T,A] group [B]"),
    (advantages.rloo, "acted reward [B,T,A] group [B]"),
    (advantages.reinforce_plus_plus, "acted reward [B,T,A] group [B]"),
    (advantages.agent_wise, "acted reward [B,T,A] group [B]"),
    (advantages.turn_wise, "acted reward [B,T,A] group [B]"),
    (advantages.step_groups, "acted reward observation [B,T,A] group [B]"),
    (advantages.shared_steps, "acted reward observation action [B,T,A] group [B]"),
    (advantages.decoupled_grpo, "acted tokens [B,T,A] reward [B,T,A,C] group [B]"),
    (advantages.beta_normalised, "acted reward [B,T,A] group [B]"),
    (advantages.consistency, "acted reward [B,T,A] group answer [B]"),
    (advantages.consistency_parts, "acted reward [B,T,A] group answer [B]"),
    (advantages.round_leave_one_out, "acted reward [B,T,A] group [B]"),
    (advantages.advantage_alignment, "acted reward [B,T,A] group [B]"),
    (hierarchical, "acted reward [B,T,A] group [B]"),
    (advantages.role_baseline, "acted reward role [B,T,A] group game [B]"),
    (advantages.sequential_agents, "acted reward value [B,T,A] group [B]"),
    (advantages.turn_level, "acted reward role [B,T,A] group game [B]"),
    (losses.entropy_bonus, "where entropy [...]"),
    (losses.entropy_corridor, "where entropy turn [R,M] running [T]"),
    (losses.running_entropy, "where entropy turn [R,M] running [T]"),
    (losses.kl_penalty, "where logp reference_logp [...]"),
    (losses.kl_standard_normal, "mean log_variance [...,D]"),
    (losses.token_ratio, "where log_ratio [...]"),
    (losses.turn_ratio, "where log_ratio turn [R,M]"),
    (losses.sequence_ratio, "where log_ratio [...,M]"),
    (losses.bounded_ratio, "where log_ratio [...]"),
    (losses.ppo_clip, "where logp behaviour_logp advantage [...]"),
    (losses.blended_clip, "where logp behaviour_logp local between weight [...]"),
    (losses.truncated_policy_gradient, "where logp behaviour_logp advantage [...]"),
    (losses.alignment, "where logp behaviour_logp advantage entropy [...]"),
    (losses.dpo, "where logp reference_logp [P,pair,M]"),
    (losses.pairwise_logistic, "where better worse [...]"),
    (losses.pairwise_clip, "where logp behaviour_logp [P,G,M] reward [P,G]"),
    (losses.cross_entropy, "where logp [...]"),
    (losses.reward_weighted, "where logp reward [...]"),
    (losses.self_imitation, "where logp returns baseline [...]"),
    (losses.value_squared, "where value value_target [...]"),
    (losses.value_clip, "where value old_value value_target [...]"),
    (losses.value_huber, "where value value_target [...]"),
    (losses.sum_to_return, "where contribution [R,M]"),
    (components.team_sum, "reward [B,T,A]"),
    (components.proxy_gap, "where proxy true [...]"),
    (components.condition_on, "reward [B,T,A,C]"),
    (components.rouge_1, "tokens [...,L] length reference_length [...] reference [...,K]"),
    (components.less_divergence, "where logp reference_logp [...,M] reward [...]"),
    (components.gate_steps, "outcome steps [B,T,...]"),
    (components.potential_difference, "played potential [B,T,...]"),
    (components.at_end, "acted reward [B,T,...]"),
    (components.weigh, "reward [B,T,A,C]"),
    (multipliers.dual_ascent, "multiplier value target [K]"),
    (multipliers.hypervolume, "points [P,K] where [P] reference [K]"),
    (multipliers.hypervolume_gain, "point reference [K]"),
    (multipliers.influence_weights, "weights [K] gradients [K,D]"),
    (rubrics.grade, "met [...,C] rubric [C]"),
    (rubrics.concordance, "grades [...,N] truth [N]"),
    (votes.tally, "where answer key weight [...]"),
    (votes.plurality, "where answer key [...]"),
    (votes.self_consistency, "where answer key [...]"),
    (votes.by_consistency, "where answer key member [...]"),
    (votes.cross_view, "where answer key view [...]"),
    (votes.answer_entropy, "where answer key [...]"),
    (votes.reward, "answer label [...]"),
]


def array(name: str, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    kind = jnp.bool_ if name in BOOLS else jnp.int32 if name in INTS else jnp.float32
    return jax.ShapeDtypeStruct(shape, kind)


def arguments(legend: str) -> dict[str, tuple[int, ...]]:
    """The shape of each argument, its legend's letters in `SIZES`, with two axes for the dots."""
    found = {}
    for names, axes in LEGEND.findall(legend):
        shape = [size for axis in axes.split(",") for size in ((5, 3) if axis == "..." else (SIZES[axis],))]
        found |= {name: tuple(shape) for name in names.split()}
    return found


def call(function, shapes: dict[str, tuple[int, ...]]) -> None:
    parameters = inspect.signature(function).parameters
    needed = [n for n, p in parameters.items() if p.default is p.empty and n not in shapes and p.kind != p.VAR_KEYWORD]
    arrays = {name: array(name, shape) for name, shape in shapes.items()}
    arrays |= {name: array(name, ARRAYS[name]) for name in needed if name in ARRAYS and name not in REST}
    rest = {name: REST[name] for name in needed if name in REST}
    jax.eval_shape(lambda arrays: function(**arrays, **rest), arrays)


@pytest.mark.parametrize(("function", "legend"), FUNCTIONS, ids=[function.__name__ for function, _ in FUNCTIONS])
def test_a_wrong_shape_is_refused_by_name(function, legend):
    shapes = arguments(legend)
    for name, shape in shapes.items():
        wrong = [(11,) if len(shape) > 1 else (5, 3, 3)]  # another rank
        if len(shapes) > 1 and not (len(shape) == 1 and sum(1 for s in shapes.values() if shape[0] in s) == 1):
            last = "[...," in legend and min(map(len, shapes.values())) == 1
            wrong.append((*shape[:-1], shape[-1] + 1) if last else (shape[0] + 1, *shape[1:]))
        for other in wrong:
            with pytest.raises(ValueError, match=rf"\b{name} has shape "):
                call(function, shapes | {name: other})


def test_letters_bind_in_order_and_dots_are_alike():
    x = lambda *shape: jnp.zeros(shape)
    check_shapes("a [B,T,...] b [B,...] c [T]", x(2, 3, 4), x(2, 4), x(3))
    check_shapes("a [...,N] b [N] c [...]", x(2, 3, 4), x(4), None)
    for given in ((x(2, 3, 4), x(2, 5), x(3)), (x(2, 3), x(2, 4), x(3)), (x(2, 3), x(2), x(2))):
        with pytest.raises(ValueError, match=r"^[bc] has shape .* as a has shape \(2, 3"):
            check_shapes("a [B,T,...] b [B,...] c [T]", *given)
    with pytest.raises(ValueError, match=r"^a has shape \(2,\), but it must be \[B,T\]\.$"):
        check_shapes("a [B,T]", x(2))


def test_a_check_is_no_part_of_the_program():
    plain = lambda x, y: x + y

    def checked(x, y):
        check_shapes("x y [B]", x, y)
        return x + y

    given = jnp.zeros(3), jnp.ones(3)
    assert str(jax.make_jaxpr(plain)(*given)) == str(jax.make_jaxpr(checked)(*given))
