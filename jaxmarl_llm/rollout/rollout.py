"""Whole episodes in one jit: the only file that knows both a team of policies and an environment.

A turn is: feed what was heard and said to the caches, let the acting rows speak, play, tell. What was sampled is
written down once and trained on as it is; nothing is decoded to text. Shapes: B episodes, A seats, T turns; of one
family R rows, S tokens a row, O openings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.devices import scopes, sharding
from jaxmarl_llm.devices.lanes import any_lane
from jaxmarl_llm.environments.base import Environment, MessageFrom, View, phrases, seat_turns
from jaxmarl_llm.keys import CHANCE, DEAL, SAY, SCRIPT, batch_keys
from jaxmarl_llm.models import decoder, lora
from jaxmarl_llm.models.decoder import Cache, Prompts
from jaxmarl_llm.rollout.policy import PerRow, allowed, distribution, per_row, sample
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.trajectory import Episodes, Rows, Trajectory
from jaxmarl_llm.text.grammar import UNREACHABLE, TokenTables, lift, utterances
from jaxmarl_llm.text.tokenizers import Phrases, Relay, compile_phrases, widest

RULES_ONLY, LISTENING, SPOKE = range(3)  # where a row's dialogue stands: which chat marker must come next


class _Play(struct.PyTreeNode):
    """The rows of one family in the middle of a game; names as in Rows."""

    tokens: jax.Array
    length: jax.Array
    loss_mask: jax.Array
    turn: jax.Array
    logp: jax.Array
    grammar_state: jax.Array
    tokens_left: jax.Array
    stage: jax.Array  # int32 [R]: RULES_ONLY, LISTENING or SPOKE
    cache: Cache | None
    hidden: jax.Array | None  # [R, D] final hidden state of the last token fed
    used: jax.Array  # int32 [R]: calls of `append` that held something to add
    decoded: jax.Array  # int32: row slots of `append`
    message: jax.Array  # int32 [R, W]: what the row said freely in this turn, W the most it may
    words: jax.Array  # int32 [R]: tokens of it
    cut: jax.Array  # int32: tokens of messages that the rows were not told


Piece = tuple[jax.Array, jax.Array]  # ragged: tokens int32 [R, L], of which the first n [R] count


@dataclass(frozen=True, eq=False)
class RowLayout:
    """What is fixed about one family's rows when the rollout is built."""

    policy_set: PolicySet
    tables: TokenTables
    rules: Phrases
    observation: Phrases
    script: tuple[np.ndarray, np.ndarray]  # utterances for scripted players
    assignments: np.ndarray  # int [O, 3]: group, seat, policy
    group_size: int
    episode: Any  # int [R], of NumPy; traced while one seat acts
    seat: Any  # int [R]
    policy: Any  # int [R]
    sampling: PerRow
    prompt_width: int
    max_heard: int  # most tokens heard before a turn, markers and forced beginning included
    max_said: int  # most tokens said in a turn, forced beginning excluded
    max_sampled: int  # most tokens sampled in a turn
    slots: int  # S
    alternating_seats: int  # its seats in every group, if they take turns: only one's rows are decoded; 1: all rows are
    relays: dict[str, Relay | None]  # by family heard: what carries its messages here, None where tokens are the same


class Rollout:
    """Plays a batch of episodes: rollout(weights, key) -> Trajectory, pure, to be jitted and vmapped.

    `weights` is {family: {"params": tree, "adapters": (adapter of policy 0, ...)}}, {} for a scripted family.
    `budget` is the most tokens of one utterance, the end token included: of all grammars, or one for each. `message` is
    the most tokens of a message that a seat of another tokenizer is told (the speaker's budget if not given).
    Raises ValueError, before anything compiles, for a line-up that cannot play, a budget too small for some action, or
    a context too short for the longest episode.
    """

    def __init__(
        self,
        environment: Environment,
        policy_sets: dict[str, PolicySet],
        lineup: Lineup,
        budget: int | Sequence[int] = 8,
        message: int | None = None,
    ):
        lineup.check(environment, policy_sets)
        grammars = len(environment.grammars)
        self.budget = np.array([budget] * grammars if isinstance(budget, int) else budget, np.int32)
        if self.budget.shape != (grammars,) or self.budget.min() < 1:
            raise ValueError(f"budget must be at least 1, for all {grammars} grammars or each of them, got {budget}.")
        self.environment, self.policy_sets, self.lineup = environment, policy_sets, lineup
        self.heard = {
            k: field.seat for k, field in enumerate(environment.observation) if isinstance(field, MessageFrom)
        }
        talks = [any(hasattr(part, "without") for part in grammar) for grammar in environment.grammars]
        self.words = int(self.budget[talks].max()) if self.heard and any(talks) else 0  # W
        self.told = self.words if message is None else message
        self.layouts = {name: self._side(name, policy_set) for name, policy_set in policy_sets.items()}
        self.row_of = {}  # by family, int [B, A]: the row of a seat in an episode, -1: it has none
        for name, layout in self.layouts.items():
            self.row_of[name] = np.full((lineup.episodes, environment.agents), -1)
            self.row_of[name][layout.episode, layout.seat] = np.arange(len(layout.episode))
        written = [name for policy_set in policy_sets.values() for name in policy_set.policies]
        scripted = {name for row in lineup.seats for name in row if name not in written}
        self.scripted = {name: lineup.rows(lineup.assignments([name])) for name in sorted(scripted)}

    def max_sampled_tokens(self, policy_set: str) -> int:
        """The most trained tokens that a row of this family can hold."""
        return seat_turns(self.environment) * self.layouts[policy_set].max_sampled

    def _side(self, name: str, policy_set: PolicySet) -> RowLayout:
        environment, tokenizer = self.environment, policy_set.tokenizer
        tables = lift(environment.grammars, tokenizer.token_bytes, tokenizer.end)
        if not policy_set.masked:  # nothing must follow anything
            states = np.arange(len(tables.next))
            nothing = {
                "forced": np.zeros((len(states), 0), np.int32),
                "forced_length": np.zeros_like(tables.forced_length),
            }
            tables = tables._replace(**nothing, forced_state=states.astype(np.int16))
        shortest = tables.distance[tables.start]
        script = utterances(environment.grammars, tables, tokenizer.encode, tokenizer.end)
        needed = script[1] if policy_set.config is None else np.where(shortest < UNREACHABLE, shortest, 0)
        for budget, most in zip(self.budget, needed.max(1), strict=True):
            if most > budget:
                raise ValueError(f"A budget of {budget} tokens is too small: some action takes {most} ({name}).")
        said, sampled = _longest(tables, self.budget)
        if not policy_set.masked:
            sampled = int(self.budget.max()) if tokenizer.end is not None else 1
            said = sampled + (tokenizer.end is not None)  # an end that the budget forces is appended
        rules = compile_phrases(tokenizer, phrases(environment.rules))
        observation = compile_phrases(tokenizer, phrases(environment.observation))
        relays = {}
        for other, speaker in self.policy_sets.items():
            same = speaker.tokenizer is tokenizer or speaker.tokenizer.token_bytes == tokenizer.token_bytes
            relays[other] = None if same or not self.words else Relay(speaker.tokenizer, tokenizer, self.told)
        markers, assignments = tokenizer.markers, self.lineup.assignments(policy_set.policies)
        prefix = int(tables.forced_length[tables.start].max())
        text = int(widest(observation).sum()) + len(markers.speak) + prefix
        prompt = len(markers.before_rules) + int(widest(rules).sum()) + len(markers.hear_first) + text
        voices = max(
            sum(speaker != seat for speaker in self.heard.values()) for seat in set(assignments[:, 1].tolist())
        )
        heard = max(len(markers.hear), len(markers.hear_first)) + text + voices * max(self.words, self.told)
        nth = 1 + np.arange(seat_turns(environment))  # of a seat; what is told before the first turn is in the opening
        after = nth * said + (nth - (len(nth) == environment.turns)) * heard
        slots = int(after[-1])
        if policy_set.config is not None:
            limit = policy_set.config.max_position_embeddings
            after = prompt + after
            if after[-1] > limit:
                raise ValueError(
                    f"The context of {name} is too short by {after[-1] - limit} tokens: it holds {limit}, the longest "
                    f"episode has {after[-1]}; it would overflow in turn {int(np.argmax(after > limit)) + 1} of "
                    f"{len(nth)} of a seat (opening {prompt}, then up to {heard} heard and {said} said a turn)."
                )
        together = np.unique(np.bincount(assignments[:, 0], minlength=len(self.lineup.seats)))
        alternating = (
            getattr(environment, "alternating", False) and len(together) == 1 and policy_set.config is not None
        )
        episode, seat = self.lineup.rows(assignments)
        policy = np.repeat(assignments[:, 2], self.lineup.group_size)
        return RowLayout(
            policy_set=policy_set,
            tables=tables,
            rules=rules,
            observation=observation,
            script=script,
            assignments=assignments,
            group_size=self.lineup.group_size,
            episode=episode,
            seat=seat,
            policy=policy,
            sampling=per_row(policy_set.sampling, policy),
            prompt_width=prompt,
            max_heard=heard,
            max_said=said,
            max_sampled=sampled,
            slots=slots,
            alternating_seats=int(together[0]) if alternating else 1,
            relays=relays,
        )

    @jax.named_scope(scopes.ROLLOUT)
    def __call__(self, weights: dict[str, dict], key: jax.Array) -> Trajectory:
        environment, lineup = self.environment, self.lineup
        batch, turns = lineup.episodes, environment.turns
        group = jnp.repeat(jnp.arange(len(lineup.seats), dtype=jnp.int32), lineup.group_size)
        with jax.named_scope("environment"):
            state, view = jax.vmap(environment.reset)(batch_keys(key, DEAL, group), group)
            prompt = jax.vmap(environment.prompt)(state)
        prepared = {name: self._prepare(name, weights[name]) for name in self.layouts}
        plays, prompts = {}, {}
        for name, layout in self.layouts.items():
            plays[name], prompts[name] = self._open(layout, prepared[name], prompt, view)
        shape = (batch, turns, environment.agents)
        record = {
            "reward": jnp.zeros((*shape, len(environment.components))),
            "acted": jnp.zeros(shape, bool),
            "action": jnp.zeros(shape, jnp.int32),
            "legal": jnp.zeros((*shape, environment.actions), bool),
            "valid": jnp.zeros(shape, bool),
            "role": jnp.zeros(shape, jnp.int32),
        }

        def playing(carry):
            return any_lane(_alive(carry[2]))

        def play(carry):
            t, state, view, plays, record = carry
            alive = _alive(view)
            action = jnp.zeros((batch, environment.agents), jnp.int32)
            for name, (episode, seat) in self.scripted.items():
                action = action.at[episode, seat].set(self._script(name, state, episode, seat, t, key))
            for name, layout in self.layouts.items():
                plays[name], said = self._speak(layout, prepared[name], plays[name], state, view, t, key)
                action = action.at[layout.episode, layout.seat].set(said)
            with jax.named_scope("environment"):
                acted = view.acting & alive[:, None]
                now = {"acted": acted, "action": jnp.where(acted, action, 0), "valid": acted & (action >= 0)}
                now["role"] = jnp.where(alive[:, None], view.role, 0)
                now["legal"] = view.legal & acted[..., None]
                after, told, reward = jax.vmap(environment.step)(state, action, batch_keys(key, CHANCE, group, t))
                now["reward"] = jnp.where(alive[:, None, None], reward, 0)
                keep = lambda new, old: jnp.where(alive.reshape(-1, *(1,) * (new.ndim - 1)), new, old)  # noqa: E731
                state, view = jax.tree.map(keep, (after, told), (state, view))
                for name, layout in self.layouts.items():
                    plays[name] = self._tell(layout, plays, name, view, t + 1)
                record = {name: record[name].at[:, t].set(now[name]) for name in record}
            return t + 1, state, view, plays, record

        done = (jnp.int32(0), state, view, plays, record)
        done = jax.lax.while_loop(lambda carry: (carry[0] < turns) & playing(carry), play, done)
        _, _, view, plays, record = done
        episodes = Episodes(
            **record,
            group=group,
            game=jnp.zeros((batch,), jnp.int32),
            terminated=view.terminated,
            truncated=~view.terminated,
        )
        rows = {
            name: Rows(
                prompts=prompts[name],
                prompt=jnp.repeat(jnp.arange(len(layout.assignments), dtype=jnp.int32), layout.group_size),
                episode=jnp.asarray(layout.episode, jnp.int32),
                seat=jnp.asarray(layout.seat, jnp.int32),
                policy=jnp.asarray(layout.policy, jnp.int32),
                **{
                    k: getattr(plays[name], k)
                    for k in ("tokens", "length", "loss_mask", "turn", "logp", "grammar_state", "tokens_left")
                },
            )
            for name, layout in self.layouts.items()
        }
        used = {name: play.used.sum() / jnp.maximum(play.decoded, 1) for name, play in plays.items()}
        return Trajectory(episodes, rows, used, {name: play.cut for name, play in plays.items()})

    def _prepare(self, name: str, weights: dict) -> dict | None:
        policy_set = self.policy_sets[name]
        if policy_set.config is None:
            return None
        joined = lora.concatenate(weights["adapters"], policy_set.loras) if policy_set.lora else None
        return decoder.prepare(policy_set.config, weights["params"], joined, policy_set.merged)

    def _policy(self, layout: RowLayout, which: slice = slice(None)) -> jax.Array | None:
        """The adapter of every row, None where there is nothing to tell apart."""
        return (
            None
            if layout.policy_set.lora is None or layout.policy_set.merged
            else jnp.asarray(layout.policy[which], jnp.int32)
        )

    @jax.named_scope("prompt")
    def _open(self, layout: RowLayout, prepared: dict | None, prompt: jax.Array, view: View) -> tuple[_Play, Prompts]:
        """Writes the openings, one for each group and seat, and computes each once."""
        first, seat, rows = layout.assignments[:, 0] * layout.group_size, layout.assignments[:, 1], len(layout.policy)
        before = [_marker(layout.policy_set.tokenizer.markers.before_rules, jnp.ones(len(first), bool))]
        before += _phrases(layout.rules, prompt[first, seat])
        stage = jnp.full((len(first),), RULES_ONLY, jnp.int32)
        heard, stage = _hear(layout, view, first, seat, stage, {})
        tokens, length = _join([*before, *heard])
        tokens = tokens[:, : layout.prompt_width]
        spread = lambda x: sharding.rows(jnp.repeat(x, layout.group_size, 0))  # noqa: E731
        blank = lambda dtype: sharding.rows(jnp.zeros((rows, layout.slots), dtype))  # noqa: E731
        cache = hidden = None
        if layout.policy_set.config is not None:
            assert prepared is not None  # what has a config has weights
            config, slots = layout.policy_set.config, layout.slots + layout.max_heard + layout.max_said
            policy = self._policy(layout, slice(None, None, layout.group_size))
            cache = jax.tree.map(sharding.cached, decoder.empty_cache(config, len(first), tokens.shape[1]))
            cache, states = decoder.append(config, prepared, cache, tokens, length, policy)
            hidden = spread(jnp.take_along_axis(states, length[:, None, None] - 1, 1)[:, 0])
            cache = jax.tree.map(sharding.cached, decoder.empty_cache(config, rows, slots, cache))
        play = _Play(
            tokens=blank(jnp.int32),
            length=sharding.rows(jnp.zeros((rows,), jnp.int32)),
            loss_mask=blank(bool),
            turn=blank(jnp.int32),
            logp=blank(jnp.float32),
            grammar_state=blank(jnp.int16),
            tokens_left=blank(jnp.int16),
            stage=spread(stage),
            cache=cache,
            hidden=hidden,
            used=sharding.rows(jnp.zeros((rows,), jnp.int32)),
            decoded=jnp.int32(0),
            message=sharding.rows(jnp.zeros((rows, self.words), jnp.int32)),
            words=sharding.rows(jnp.zeros((rows,), jnp.int32)),
            cut=jnp.int32(0),
        )
        return play, Prompts(tokens, length)

    def _tell(self, layout: RowLayout, plays: dict[str, _Play], name: str, view: View, turn: jax.Array) -> _Play:
        """Writes down what the rows of a family hear before `turn`, in games that go on."""
        play, alive = plays[name], _alive(view)[layout.episode]
        messages, cut = self._messages(layout, plays, view, alive) if self.words else ({}, 0)
        heard, stage = _hear(layout, view, layout.episode, layout.seat, play.stage, messages)
        tokens, n = _join(heard)
        return _write(play.replace(stage=stage, cut=play.cut + cut), tokens, jnp.where(alive, n, 0), turn)

    def _messages(
        self, layout: RowLayout, plays: dict[str, _Play], view: View, alive: jax.Array
    ) -> tuple[dict[int, Piece], jax.Array]:
        """What the rows of a family are told of each other's words, by field of the observation; and tokens cut off."""
        if view.hears is None:
            raise ValueError("The game's observation has a field Heard, but its views do not say who hears.")
        width, rows = max(self.words, self.told), len(layout.episode)
        said = {}  # by family, all messages in the tokens of this one, and what did not fit
        for name, play in plays.items():
            relay, tokens, n, cut = layout.relays[name], play.message, play.words, jnp.zeros_like(play.words)
            if relay is not None:
                one = jax.ShapeDtypeStruct(n.shape, n.dtype)
                shapes = (jax.ShapeDtypeStruct((len(n), self.told), tokens.dtype), one, one)
                tokens, n, cut = jax.pure_callback(relay, shapes, tokens, n, vmap_method="sequential")
            said[name] = jnp.pad(tokens, ((0, 0), (0, width - tokens.shape[1]))), n, cut
        messages, lost = {}, jnp.int32(0)
        for field, speaker in self.heard.items():
            told = view.hears[layout.episode, speaker, layout.seat] & (layout.seat != speaker) & alive
            tokens, n = jnp.zeros((rows, width), jnp.int32), jnp.zeros((rows,), jnp.int32)
            for name, (spoken, length, cut) in said.items():
                row = self.row_of[name][layout.episode, speaker]
                tokens = jnp.where((row >= 0)[:, None], spoken[row], tokens)
                n = jnp.where((row >= 0) & told, length[row], n)
                lost += jnp.where((row >= 0) & told, cut[row], 0).sum()
            messages[field] = tokens, n
        return messages, lost

    def _speak(self, layout: RowLayout, prepared: dict | None, play: _Play, *rest: Any) -> tuple[_Play, jax.Array]:
        """A turn of the rows whose seat acts: all, or in alternating games those of one seat of every group."""
        if layout.alternating_seats == 1:
            return self._turn(layout, prepared, play, *rest)
        view, cache = rest[1], play.cache
        assert cache is not None  # such rows have weights
        acts = (view.acting & _alive(view)[:, None])[layout.episode, layout.seat]
        now = (
            acts.reshape(-1, layout.alternating_seats, layout.group_size).any(2).argmax(1)
        )  # of each group, which of its seats
        pick, put = partial(_pick, now, layout.alternating_seats), partial(_put, now, layout.alternating_seats)
        acting = dataclasses.replace(
            layout,
            episode=pick(layout.episode),
            seat=pick(layout.seat),
            policy=pick(layout.policy),
            sampling=jax.tree.map(pick, layout.sampling),
        )
        after, said = self._turn(acting, prepared, jax.tree.map(pick, play), *rest)
        assert after.cache is not None
        own, whole = (each.replace(prompt=None) for each in (after.cache, cache))  # openings are only read
        kept = jax.tree.map(put, own, whole).replace(prompt=cache.prompt)
        play = jax.tree.map(put, after.replace(cache=None), play.replace(cache=None)).replace(cache=kept)
        return play, put(said, jnp.zeros((len(layout.policy),), said.dtype))

    @jax.named_scope("decode")
    def _turn(
        self,
        layout: RowLayout,
        prepared: dict | None,
        play: _Play,
        state: Any,
        view: View,
        turn: jax.Array,
        key: jax.Array,
    ) -> tuple[_Play, jax.Array]:
        """Lets the acting rows speak; returns the action int32 [R] of each, 0 where it does not act."""
        tables = layout.tables
        alive = _alive(view)[layout.episode]
        acting = view.acting[layout.episode, layout.seat] & alive
        legal, grammar = view.legal[layout.episode, layout.seat], view.grammar[layout.episode, layout.seat]
        start, budget = jnp.asarray(tables.start)[grammar], jnp.asarray(self.budget)[grammar]
        play = play.replace(words=jnp.where(acting, 0, play.words))
        at = jnp.asarray(tables.forced_state)[start].astype(jnp.int32)
        left = budget - jnp.asarray(tables.forced_length)[start].astype(jnp.int32)
        script = None
        if prepared is None:
            chosen = jnp.zeros((len(layout.policy),), jnp.int32)
            for index, name in enumerate(layout.policy_set.policies):
                where = np.flatnonzero(layout.policy == index)
                episode, seat = layout.episode[where], layout.seat[where]
                chosen = chosen.at[where].set(self._script(name, state, episode, seat, turn, key))
            script = jnp.asarray(layout.script[0])[grammar, chosen]

        def feed(play: _Play, width: int, where: jax.Array, whole: bool = False) -> _Play:
            """Adds to the caches what stands in the rows but not in them: at most `width` tokens."""
            config, cache = layout.policy_set.config, play.cache
            assert config is not None and prepared is not None and cache is not None and play.hidden is not None
            n = jnp.where(where, jnp.minimum(play.length - cache.length, width), 0)
            index = jnp.minimum(cache.length[:, None] + jnp.arange(width)[None], layout.slots - 1)
            chunk = jnp.take_along_axis(play.tokens, index, 1)
            cache, states = decoder.append(config, prepared, cache, chunk, n, self._policy(layout), whole)
            last = jnp.take_along_axis(states, jnp.maximum(n - 1, 0)[:, None, None], 1)[:, 0]
            hidden = jnp.where((n > 0)[:, None], last, play.hidden)
            used, decoded = play.used + (n > 0), play.decoded + len(n)
            return play.replace(cache=cache, hidden=hidden, used=used, decoded=decoded)

        end = layout.policy_set.tokenizer.end
        dead = len(tables.next) - 1

        def speak(play: _Play, at, left, speaking, index):
            """One token of every speaking row, and those that must follow it."""
            mask = allowed(tables, at, legal, left) if layout.policy_set.masked else None
            if script is None:
                assert layout.policy_set.config is not None and prepared is not None and play.hidden is not None
                logits = sharding.in_place(partial(decoder.logits, layout.policy_set.config, prepared), "lm_head")(
                    play.hidden
                )
                logits = sharding.rows(logits)
                logp = distribution(logits, mask, layout.sampling)
                keys = batch_keys(key, SAY, layout.episode, turn, layout.seat, index)
                token = sample(logp, jax.vmap(jax.random.uniform)(keys))
                logp = jnp.take_along_axis(logp, token[:, None], 1)[:, 0]
            else:
                spoken = budget - left  # by now, the forced beginning included
                token = jnp.take_along_axis(script, jnp.minimum(spoken, script.shape[1] - 1)[:, None], 1)[:, 0]
                logp = jnp.zeros(token.shape)
            after = jnp.asarray(tables.next)[at, jnp.asarray(tables.token_class)[token]]
            tail, extra = jnp.asarray(tables.forced)[after], jnp.asarray(tables.forced_length)[after].astype(jnp.int32)
            free = speaking if mask is None else speaking & (mask.sum(-1) > 1)
            tokens = jnp.concatenate([token[:, None], tail], 1)
            play = _write(play, tokens, jnp.where(speaking, 1 + extra, 0), turn, (free, logp, at, left))
            if self.words:  # a token that stays in free text is part of the message
                part, inside = jnp.asarray(tables.part), jnp.asarray(tables.free)
                words = jnp.where(speaking & inside[at] & inside[after] & (part[at] == part[after]), 1, 0)
                message = _place(play.message, token[:, None], play.words, words)
                play = play.replace(message=message, words=play.words + words)
            at = jnp.where(speaking, jnp.asarray(tables.forced_state)[after].astype(jnp.int32), at)
            left = jnp.where(speaking, left - 1 - extra, left)
            over = jnp.asarray(tables.ended)[at]
            if mask is None:
                over |= (token == end) if end is not None else jnp.bool_(True)
                late = speaking & ~over & (left <= 0)
                if end is not None:
                    play = _write(play, jnp.full_like(token, end)[:, None], jnp.where(late, 1, 0), turn)
                at, over = jnp.where(late, dead, at), over | late
            return play, at, left, speaking & ~over, index + 1

        if prepared is not None:  # a loop that runs once or not at all: a `cond` would copy every cache

            def lag(play):
                return alive & (play.length > play.cache.length)

            width = layout.max_heard + layout.max_said
            with jax.named_scope("prompt"):
                play = jax.lax.while_loop(lambda p: any_lane(lag(p)), lambda p: feed(p, width, alive), play)
        carry = speak(play, at, left, acting, jnp.int32(0))
        if layout.max_sampled > 1:
            narrow = 1 + tables.forced.shape[1]

            def more(carry):
                play = carry[0] if prepared is None else feed(carry[0], narrow, carry[3], whole=True)
                return speak(play, *carry[1:])

            carry = jax.lax.while_loop(lambda carry: any_lane(carry[3]), more, carry)
        play, at = carry[:2]
        action = jnp.where(acting, jnp.asarray(tables.action)[at].astype(jnp.int32), 0)
        if not layout.policy_set.masked:
            known = jnp.clip(action, 0)
            fine = jnp.asarray(tables.ended)[at] & jnp.take_along_axis(legal, known[:, None], 1)[:, 0]
            action = jnp.where(acting & ~fine, -1, known)
            play = play.replace(words=jnp.where(action < 0, 0, play.words))
        return play, action

    @jax.named_scope("environment")
    def _script(
        self, name: str, state: Any, episode: np.ndarray, seat: np.ndarray, turn: jax.Array, key: jax.Array
    ) -> jax.Array:
        keys = batch_keys(key, SCRIPT, episode, turn, seat)
        here = jax.tree.map(lambda leaf: leaf[episode], state)
        return jax.vmap(self.environment.scripts[name])(here, jnp.asarray(seat, jnp.int32), keys).astype(jnp.int32)


def _alive(view: View) -> jax.Array:
    return ~(view.terminated | view.truncated)


def _pick(now: jax.Array, seats: int, x: Any) -> jax.Array:
    """Of x [groups * seats * members, ...] the rows of seat now[g] of each group, or its opening; a scalar as it is."""
    if not jnp.ndim(x):
        return x
    apart = jnp.reshape(x, (len(now), seats, len(x) // (len(now) * seats), *x.shape[1:]))
    own = jax.vmap(partial(jax.lax.dynamic_index_in_dim, keepdims=False))(apart, now)
    return own.reshape(len(x) // seats, *x.shape[1:])


def _put(now: jax.Array, seats: int, own: jax.Array, x: jax.Array) -> jax.Array:
    """The way back from `_pick`: x with these rows in their place; of a scalar, a counter, the new one."""
    if not jnp.ndim(x):
        return own
    apart = x.reshape(len(now), seats, len(x) // (len(now) * seats), *x.shape[1:])
    own = own.reshape(len(now), *apart.shape[2:])
    return jax.vmap(partial(jax.lax.dynamic_update_index_in_dim, axis=0))(apart, own, now).reshape(x.shape)


def _hear(
    layout: RowLayout, view: View, episode: np.ndarray, seat: np.ndarray, stage: jax.Array, messages: dict[int, Piece]
) -> tuple[list[Piece], jax.Array]:
    """What seats [R] are told now, as pieces for `_join`: marker, phrases, and where they act the call to speak.

    `messages` stand in the place of the fields that hold what was heard.
    """
    markers, tables = layout.policy_set.tokenizer.markers, layout.tables
    text, acting = view.phrases[episode, seat], view.acting[episode, seat]
    fields = [messages.get(k, piece) for k, piece in enumerate(_phrases(layout.observation, text))]
    told = acting | jnp.stack([n > 0 for _, n in fields], -1).any(-1)
    start = jnp.asarray(tables.start)[view.grammar[episode, seat]]
    forced = jnp.asarray(tables.forced_length)[start].astype(jnp.int32)
    pieces = [
        _marker(markers.hear_first, told & (stage == RULES_ONLY)),
        _marker(markers.hear, told & (stage == SPOKE)),
        *fields,
        _marker(markers.speak, acting),
        (jnp.asarray(tables.forced)[start], jnp.where(acting, forced, 0)),
    ]
    return pieces, jnp.where(acting, SPOKE, jnp.where(told, LISTENING, stage))


def _marker(tokens: tuple[int, ...], where: jax.Array) -> Piece:
    table = jnp.broadcast_to(jnp.asarray(tokens, jnp.int32)[None], (len(where), len(tokens)))
    return table, jnp.where(where, len(tokens), 0)


def _phrases(phrases: Phrases, ids: jax.Array) -> list[Piece]:
    """The tokens of phrase ids [R, K], a piece for each field, empty where the id is negative."""
    pieces = []
    for k, width in enumerate(widest(phrases).tolist()):
        at = int(phrases.offset[k]) + jnp.maximum(ids[:, k], 0)
        n = jnp.where(ids[:, k] >= 0, jnp.asarray(phrases.length)[at].astype(jnp.int32), 0)
        pieces.append((jnp.asarray(phrases.tokens)[:, :width][at], n))
    return pieces


def _join(pieces: list[Piece]) -> Piece:
    """Ragged pieces (tokens [R, L], n [R]) one after the other: tokens [R, sum of L], n [R]."""
    pieces = [(tokens, n) for tokens, n in pieces if tokens.shape[1]]
    rows, width = len(pieces[0][1]), sum(tokens.shape[1] for tokens, _ in pieces)
    joined, length = jnp.zeros((rows, width), jnp.int32), jnp.zeros((rows,), jnp.int32)
    for tokens, n in pieces:
        joined = _place(joined, tokens, length, n)
        length = length + n
    return joined, length


def _place(into: jax.Array, values: jax.Array, at: jax.Array, n: jax.Array) -> jax.Array:
    """`into` [R, S] with the first n[r] of `values` [R, L] at position at[r] of row r."""
    offset = jnp.arange(into.shape[1])[None] - at[:, None]
    moved = jnp.take_along_axis(values, jnp.clip(offset, 0, values.shape[1] - 1), 1)
    return jnp.where((offset >= 0) & (offset < n[:, None]), moved.astype(into.dtype), into)


def _write(play: _Play, tokens: jax.Array, n: jax.Array, turn: jax.Array, first: tuple | None = None) -> _Play:
    """Adds n[r] of tokens [R, L] to the rows; `first` = (loss_mask, logp, grammar_state, tokens_left) [R] of the first
    of them."""
    same = jnp.broadcast_to(turn, tokens.shape)
    play = play.replace(
        tokens=_place(play.tokens, tokens, play.length, n), turn=_place(play.turn, same, play.length, n)
    )
    if first is not None:
        loss_mask, *values = first
        one = jnp.where(loss_mask, 1, 0)
        names = ("loss_mask", "logp", "grammar_state", "tokens_left")
        marked = {
            name: _place(getattr(play, name), value[:, None], play.length, one)
            for name, value in zip(names, (loss_mask, *values), strict=True)
        }
        play = play.replace(**marked)
    return play.replace(length=play.length + n)


def _longest(tables: TokenTables, budgets: np.ndarray) -> tuple[int, int]:
    """The most tokens of an utterance after its forced beginning, and the most of them that are not forced."""
    known: dict[int, tuple[int, int]] = {}
    endless = int(budgets.max())

    def explore(state: int) -> tuple[int, int]:
        if tables.ended[state]:
            return 0, 0
        if state not in known:
            known[state] = endless, endless  # met again on the way: a loop, only the budget ends it
            best = 0, 0
            for after in {int(s) for s in np.unique(tables.next[state]) if (tables.distance[s] < UNREACHABLE).any()}:
                said, sampled = explore(int(tables.forced_state[after]))
                best = max(best[0], 1 + int(tables.forced_length[after]) + said), max(best[1], 1 + sampled)
            known[state] = best
        return known[state]

    results = [explore(int(tables.forced_state[s])) for s in tables.start]
    said, sampled = (max(min(r[i], int(b)) for r, b in zip(results, budgets, strict=True)) for i in range(2))
    return said, sampled
