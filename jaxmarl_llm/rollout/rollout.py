"""Whole episodes in one jit: the only file that knows both policies and compiled environments.

A turn has four steps: the caches read new tokens, the acting rows speak, the game steps, the rows get observations.
Sampled tokens are recorded once and trained on unchanged; nothing is decoded to text.
Shapes: B episodes, A seats, T turns; of one policy set R rows, S tokens a row, O prompts, W tokens of a message.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.devices import scopes, sharding
from jaxmarl_llm.devices.lanes import any_lane
from jaxmarl_llm.environments.base import Environment, View, check_reward, phrases
from jaxmarl_llm.environments.check import check_object
from jaxmarl_llm.environments.extras import Extras, check_measured
from jaxmarl_llm.keys import CHANCE, DEAL, SCRIPT, batch_keys
from jaxmarl_llm.models import decoder
from jaxmarl_llm.models.decoder import Prompts
from jaxmarl_llm.rollout import names
from jaxmarl_llm.rollout.branching import Branch, apply_branch, empty_branches
from jaxmarl_llm.rollout.decode import RECORDED, LiveRows, adapter_of, blank_rows, prepare, speak, write
from jaxmarl_llm.rollout.dialogue import RULES_ONLY, Piece, heard_pieces, in_progress, join, prompt_pieces
from jaxmarl_llm.rollout.layout import Messages, RowLayout, row_layout, rows_of_seats
from jaxmarl_llm.rollout.policy import Shaping
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.trajectory import Episodes, Rows, Trajectory


class Rollout:
    """Plays a batch of episodes: rollout(weights, key, deal, max_turns, branch, shaping) -> Trajectory. Pure: jit and
    vmap it.

        weights    {policy set: {"params": tree, "adapters": (adapter of policy 0, ...)}}, {} for a scripted set
        deal       a tree of leaves [groups, ...]; the entries of a group are the third argument of the game's `reset`
        max_turns  int32 [groups]: games are cut off after as many turns
        branch     a function that copies episodes during play, see `branching`
        shaping    a hook on the distribution of all policies, see `policy.Shaping`

    `budget` is the largest number of tokens of an utterance, end token included: one for all grammars, or one for each.
    `message` is the largest number of tokens of a message to a seat with another tokenizer; the default is the
    speaker's budget. `layouts` holds the `RowLayout` of every policy set.
    Raises ValueError before anything compiles for a line-up that cannot play, or a budget too small for some action. A
    context too short for the longest episode also raises ValueError.
    """

    def __init__(
        self,
        environment: Environment,
        policy_sets: dict[str, PolicySet],
        lineup: Lineup,
        budget: int | Sequence[int] = 8,
        message: int | None = None,
    ):
        check_object(environment)
        lineup.check(environment, policy_sets)
        grammars = len(environment.grammars)
        given = np.array([budget] * grammars if isinstance(budget, int) else budget)
        if given.shape != (grammars,) or given.dtype.kind not in "iu" or given.min() < 1:
            raise ValueError(
                f"budget is a whole number of tokens from 1 on, for all {grammars} grammars or each of them, "
                f"got {budget!r}."
            )
        self.budget = given.astype(np.int32)
        self.environment, self.policy_sets, self.lineup = environment, policy_sets, lineup
        self.messages = Messages.from_environment(environment, self.budget, message)
        self.rules, self.phrases = (names.first_equal(phrases(x)) for x in (environment.rules, environment.observation))
        self.layouts = {
            name: row_layout(name, policy_sets, environment, lineup, self.budget, self.messages) for name in policy_sets
        }
        episodes, seats = lineup.episodes, environment.agents
        self.row_of = {name: rows_of_seats(layout, episodes, seats) for name, layout in self.layouts.items()}
        written = [name for policy_set in policy_sets.values() for name in policy_set.policies]
        scripted = {name for row in lineup.seats for name in row if name not in written}
        self.scripted = {name: lineup.rows(lineup.assignments([name])) for name in sorted(scripted)}

    def max_sampled_tokens(self, policy_set: str) -> int:
        """The most trained tokens that a row of this policy set can hold."""
        return Extras(self.environment).seat_turns * self.layouts[policy_set].max_sampled

    @jax.named_scope(scopes.ROLLOUT)
    def __call__(
        self,
        weights: dict[str, dict],
        key: jax.Array,
        deal: Any = None,
        max_turns: jax.Array | None = None,
        branch: Branch | None = None,
        shaping: Shaping | None = None,
    ) -> Trajectory:
        """A batch of whole games; arguments as in the class. Long because all turns are one loop with one carry."""
        if shaping is not None:
            return self._with_shaping(shaping)(weights, key, deal, max_turns, branch)
        environment, lineup = self.environment, self.lineup
        batch, turns = lineup.episodes, environment.turns
        group = jnp.repeat(jnp.arange(len(lineup.seats), dtype=jnp.int32), lineup.group_size)
        with jax.named_scope(scopes.ENVIRONMENT):
            given = () if deal is None else (jax.tree.map(lambda x: x[group], deal),)
            state, view = jax.vmap(environment.reset)(batch_keys(key, DEAL, group), group, *given)
            prompt = jax.vmap(environment.prompt)(state)
        prepared = {name: prepare(policy_set, weights[name]) for name, policy_set in self.policy_sets.items()}
        live, prompts = {}, {}
        for name, layout in self.layouts.items():
            live[name], prompts[name] = self._open(layout, prepared[name], prompt, view)
        shape = (batch, turns, environment.agents)
        record = {
            "reward": jnp.zeros((*shape, len(environment.components))),
            "acted": jnp.zeros(shape, bool),
            "action": jnp.zeros(shape, jnp.int32),
            "legal": jnp.zeros((*shape, environment.actions), bool),
            "valid": jnp.zeros(shape, bool),
            "role": jnp.zeros(shape, jnp.int32),
            "told": jnp.zeros(shape, jnp.int32),
        }
        if measures := Extras(environment).measures:
            record["measured"] = jnp.zeros((*shape, len(measures)))

        def play(carry):
            *carry, branches = carry
            if branch is not None:
                carry, branches = apply_branch(self, branch, prepared, key, carry, branches)
            t, state, view, told, live, record = carry
            alive = in_progress(view)
            action = jnp.zeros((batch, environment.agents), jnp.int32)
            for name, (episode, seat) in self.scripted.items():
                action = action.at[episode, seat].set(self._run_script(name, state, episode, seat, t, key))
            for name, layout in self.layouts.items():
                live[name], chosen = self._speak(name, prepared[name], live[name], state, view, t, key)
                action = action.at[layout.episode, layout.seat].set(chosen)
            with jax.named_scope(scopes.ENVIRONMENT):
                acted = view.acting & alive[:, None]
                now = {"acted": acted, "action": jnp.where(acted, action, 0), "valid": acted & (action >= 0)}
                now["role"] = jnp.where(alive[:, None], view.role, 0)
                now["told"] = jnp.where(alive[:, None], told, 0).astype(jnp.int32)
                now["legal"] = view.legal & acted[..., None]
                after, seen, reward = jax.vmap(environment.step)(state, action, batch_keys(key, CHANCE, group, t))
                if max_turns is not None:
                    seen = seen.replace(truncated=seen.truncated | (t + 1 >= max_turns[group]))
                check_reward(environment, reward, batch=1)
                check_measured(environment, seen, batch=1)
                now["reward"] = jnp.where(alive[:, None, None], reward, 0)
                if seen.measured is not None:
                    now["measured"] = jnp.where(alive[:, None, None], seen.measured, 0)
                keep = lambda new, old: jnp.where(alive.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
                state, view = jax.tree.map(keep, (after, seen), (state, view))
                told = self._observation_names(live, view)
                for name in self.layouts:
                    live[name] = self._tell(name, live, view, t + 1)
                record = {name: record[name].at[:, t].set(now[name]) for name in record}
            return t + 1, state, view, told, live, record, branches

        more = lambda carry: (carry[0] < turns) & any_lane(in_progress(carry[2]))
        told = names.name_phrases(self.rules, prompt, self._observation_names(live, view))
        begun = jnp.int32(0), state, view, told, live, record, None if branch is None else empty_branches(*shape)
        _, _, view, _, live, record, branches = jax.lax.while_loop(more, play, begun)
        episodes = Episodes(
            **record,
            group=group,
            game=jnp.zeros((batch,), jnp.int32),
            terminated=view.terminated,
            truncated=~view.terminated,
            branches=branches,
        )
        rows = {
            name: Rows(
                prompts=prompts[name],
                prompt=jnp.repeat(jnp.arange(len(layout.assignments), dtype=jnp.int32), layout.group_size),
                episode=jnp.asarray(layout.episode, jnp.int32),
                seat=jnp.asarray(layout.seat, jnp.int32),
                policy=jnp.asarray(layout.policy, jnp.int32),
                **{field: getattr(live[name], field) for field in RECORDED},
            )
            for name, layout in self.layouts.items()
        }
        used = {name: x.used.sum() / jnp.maximum(x.slots, 1) for name, x in live.items()}
        return Trajectory(episodes, rows, used, {name: x.truncated_message_tokens for name, x in live.items()})

    def _with_shaping(self, shaping: Shaping) -> Rollout:
        """The same rollout, whose policies draw from distributions with this hook."""
        shaped = copy.copy(self)
        shaped.layouts = {name: dataclasses.replace(layout, shaping=shaping) for name, layout in self.layouts.items()}
        return shaped

    @jax.named_scope(scopes.PROMPT)
    def _open(
        self, layout: RowLayout, prepared: dict | None, prompt: jax.Array, view: View
    ) -> tuple[LiveRows, Prompts]:
        """(rows after their prompts, the prompts); each prompt, one for each group and seat, is computed once."""
        first, seat, rows = layout.assignments[:, 0] * layout.group_size, layout.assignments[:, 1], len(layout.policy)
        before = prompt_pieces(layout, prompt[first, seat])
        stage = jnp.full((len(first),), RULES_ONLY, jnp.int32)
        heard, stage = heard_pieces(layout, view, first, seat, stage, {})
        tokens, length = join([*before, *heard])
        tokens = tokens[:, : layout.prompt_width]
        spread = lambda x: sharding.rows(jnp.repeat(x, layout.group_size, 0))
        cache = hidden = None
        if layout.policy_set.config is not None:
            assert prepared is not None  # a set with a config has weights
            config, slots = layout.policy_set.config, layout.slots + layout.chunk
            adapter = adapter_of(layout.policy_set, layout.policy[:: layout.group_size])
            cache = jax.tree.map(sharding.split_cache, decoder.empty_cache(config, len(first), tokens.shape[1]))
            cache, states = decoder.append(config, prepared, cache, tokens, length, adapter)
            hidden = spread(jnp.take_along_axis(states, length[:, None, None] - 1, 1)[:, 0])
            cache = jax.tree.map(sharding.split_cache, decoder.empty_cache(config, rows, slots, cache))
        return blank_rows(layout, spread(stage), cache, hidden), Prompts(tokens, length)

    def _observation_names(self, live: dict[str, LiveRows], view: View) -> jax.Array:
        """Names uint32 [B, A] of the next observation of every seat, including the tokens of messages."""
        told = names.name_phrases(self.phrases, view.phrases, names.mix(names.START, view.role))
        if not self.messages.max_said or view.hears is None:
            return told
        said = jnp.zeros_like(told)
        for name, rows_of_set in live.items():
            layout, message = self.layouts[name], names.name_messages(rows_of_set.message, rows_of_set.message_length)
            said = said.at[layout.episode, layout.seat].set(message)
        return names.add_messages(told, said, view.hears)

    def _tell(self, name: str, live: dict[str, LiveRows], view: View, turn: jax.Array) -> LiveRows:
        """Writes the observations before `turn` to the rows of a policy set, in games in progress."""
        layout, rows = self.layouts[name], live[name]
        alive = in_progress(view)[layout.episode]
        messages, lost = self._messages(layout, live, view, alive) if self.messages.max_said else ({}, 0)
        heard, stage = heard_pieces(layout, view, layout.episode, layout.seat, rows.stage, messages)
        tokens, n = join(heard)
        rows = rows.replace(stage=stage, truncated_message_tokens=rows.truncated_message_tokens + lost)
        return write(rows, tokens, jnp.where(alive, n, 0), turn)

    def _messages(
        self, layout: RowLayout, live: dict[str, LiveRows], view: View, alive: jax.Array
    ) -> tuple[dict[int, Piece], jax.Array]:
        """({field of the observation: its messages to the rows of a policy set}, the number of tokens cut off)."""
        if view.hears is None:
            raise ValueError("The game's observation has a field MessageFrom, but its views do not say who hears.")
        _, max_said, max_told = self.messages
        width, rows = max(max_said, max_told), len(layout.episode)
        said = {}  # by speaking set: its messages in this set's tokens, their lengths, the tokens cut off
        for name, rows_of_set in live.items():
            tokens, n, cut = rows_of_set.message, rows_of_set.message_length, jnp.zeros_like(rows_of_set.message_length)
            if (relay := layout.relays[name]) is not None:
                count = jax.ShapeDtypeStruct(n.shape, n.dtype)
                shapes = (jax.ShapeDtypeStruct((len(n), max_told), tokens.dtype), count, count)
                tokens, n, cut = jax.pure_callback(relay, shapes, tokens, n, vmap_method="sequential")
            said[name] = jnp.pad(tokens, ((0, 0), (0, width - tokens.shape[1]))), n, cut
        messages, lost = {}, jnp.int32(0)
        for field, speaker in self.messages.speakers.items():
            told = view.hears[layout.episode, speaker, layout.seat] & (layout.seat != speaker) & alive
            tokens, n = jnp.zeros((rows, width), jnp.int32), jnp.zeros((rows,), jnp.int32)
            for name, (message, length, cut) in said.items():
                row = self.row_of[name][layout.episode, speaker]
                tokens = jnp.where((row >= 0)[:, None], message[row], tokens)
                n = jnp.where((row >= 0) & told, length[row], n)
                lost += jnp.where((row >= 0) & told, cut[row], 0).sum()
            messages[field] = tokens, n
        return messages, lost

    def _speak(
        self, name: str, prepared: dict | None, rows: LiveRows, state: Any, view: View, turn: jax.Array, key: jax.Array
    ) -> tuple[LiveRows, jax.Array]:
        """(rows after a turn, actions int32 [R]). In alternating games only the rows of the acting seats decode."""
        layout, cache = self.layouts[name], rows.cache
        chosen = self._scripted_actions(layout, state, turn, key) if prepared is None else None
        if layout.alternating_seats == 1:
            return speak(layout, prepared, rows, view, turn, key, chosen)
        assert cache is not None  # such rows have weights
        acts = (view.acting & in_progress(view)[:, None])[layout.episode, layout.seat]
        now = acts.reshape(-1, layout.alternating_seats, layout.group_size).any(2).argmax(1)  # seat of each group
        pick, put = partial(_pick, now, layout.alternating_seats), partial(_put, now, layout.alternating_seats)
        of_row = {name: jax.tree.map(pick, getattr(layout, name)) for name in ("episode", "seat", "policy", "sampling")}
        acting = dataclasses.replace(layout, **of_row)
        after, action = speak(acting, prepared, jax.tree.map(pick, rows), view, turn, key, None)
        assert after.cache is not None
        acting_cache, whole = (x.replace(prompt=None) for x in (after.cache, cache))  # prompts are only read
        kept = jax.tree.map(put, acting_cache, whole).replace(prompt=cache.prompt)
        rows = jax.tree.map(put, after.replace(cache=None), rows.replace(cache=None)).replace(cache=kept)
        return rows, put(action, jnp.zeros((len(layout.policy),), action.dtype))

    def _scripted_actions(self, layout: RowLayout, state: Any, turn: jax.Array, key: jax.Array) -> jax.Array:
        """The actions int32 [R] of a scripted policy set."""
        chosen = jnp.zeros((len(layout.policy),), jnp.int32)
        for index, name in enumerate(layout.policy_set.policies):
            where = np.flatnonzero(layout.policy == index)
            episode, seat = layout.episode[where], layout.seat[where]
            chosen = chosen.at[where].set(self._run_script(name, state, episode, seat, turn, key))
        return chosen

    @jax.named_scope(scopes.ENVIRONMENT)
    def _run_script(
        self, name: str, state: Any, episode: np.ndarray, seat: np.ndarray, turn: jax.Array, key: jax.Array
    ) -> jax.Array:
        keys = batch_keys(key, SCRIPT, episode, turn, seat)
        here = jax.tree.map(lambda leaf: leaf[episode], state)
        return jax.vmap(self.environment.scripts[name])(here, jnp.asarray(seat, jnp.int32), keys).astype(jnp.int32)


def _pick(now: jax.Array, seats: int, x: Any) -> jax.Array:
    """The rows (or prompts) of seat now[g] of each group in x [groups * seats * group_size, ...]; scalars unchanged."""
    if not jnp.ndim(x):
        return x
    apart = jnp.reshape(x, (len(now), seats, len(x) // (len(now) * seats), *x.shape[1:]))
    picked = jax.vmap(partial(jax.lax.dynamic_index_in_dim, keepdims=False))(apart, now)
    return picked.reshape(len(x) // seats, *x.shape[1:])


def _put(now: jax.Array, seats: int, picked: jax.Array, x: jax.Array) -> jax.Array:
    """The inverse of `_pick`: x with the rows `picked` in their place; for a scalar, a counter, the new value."""
    if not jnp.ndim(x):
        return picked
    apart = x.reshape(len(now), seats, len(x) // (len(now) * seats), *x.shape[1:])
    picked = picked.reshape(len(now), *apart.shape[2:])
    return jax.vmap(partial(jax.lax.dynamic_update_index_in_dim, axis=0))(apart, picked, now).reshape(x.shape)
