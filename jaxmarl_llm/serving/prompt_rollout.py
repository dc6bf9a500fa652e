"""Rollouts of questions: each prompt is read once for its group, and an engine computes all answers of a batch.

Shapes: B episodes, one seat, one turn, C rewards; of one policy set R rows, S tokens, O prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.bridges.prompts import Prompts, Question
from jaxmarl_llm.keys import DEAL, SAY, key_for
from jaxmarl_llm.models import decoder
from jaxmarl_llm.rollout.names import name_text
from jaxmarl_llm.rollout.policy import sampling_of
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.text_rows import TextRowLayout, pad, power_of_two
from jaxmarl_llm.rollout.trajectory import Episodes, Rows, Trajectory
from jaxmarl_llm.serving.dialogues import Dialogues, Message, text_of
from jaxmarl_llm.serving.engine import Answer, Call
from jaxmarl_llm.serving.host_rollout import Failures, HostRollout
from jaxmarl_llm.serving.scores import probe, score


class PromptRollout(HostRollout):
    """Answers a batch of questions: rollout(weights, key) -> Trajectory, as `Rollout`, but without jit.

    A token of an answer depends on the key, its episode and its place. Every batch begins with empty caches, so that a
    run that was stopped goes on with the same bits.
    Raises ValueError before anything compiles for a line-up that cannot play, and for a budget below 2. Questions
    without room for an answer in the context, and rewards that cannot be used, also raise ValueError.
    """

    def __init__(self, game: Prompts, policy_sets: dict[str, PolicySet], lineup: Lineup, budget: int):
        super().__init__(policy_sets, lineup, game.agents, 1, budget, game.context, game.slots)
        self.game, self.wrong_rewards = game, Failures()
        probe(game)
        self._prompts = {name: self._write(layout) for name, layout in self.layouts.items()}

    def __call__(self, weights: dict[str, dict], key: jax.Array) -> Trajectory:
        size, asked = self.lineup.group_size, self._draw(key)
        texts, rows, said, kinds = [""] * self.lineup.episodes, {}, {}, {}
        with self.with_weights(weights):
            for name, layout in self.layouts.items():
                which = zip(layout.episode.tolist(), layout.policy.tolist(), strict=True)
                calls = [(asked[episode // size], policy, episode) for episode, policy in which]
                said[name] = self._answer(name, key, calls)
        for name, layout in self.layouts.items():
            for episode, answer in zip(layout.episode, said[name], strict=True):
                texts[episode] = text_of(layout.policy_set.tokenizer, answer.tokens)
            prompts = [self._prompts[name][asked[group]] for group in layout.assignments[:, 0].tolist()]
            rows[name] = self._record(layout, [tokens for tokens, _ in prompts], said[name])
            kinds[name] = pad([prompts[row // size][1] for row in range(len(said[name]))])[0].astype(np.int8)
        questions = [self.game.training[number] for number in asked for _ in range(size)]
        reward, problems = score(self.game, questions, texts)
        self._report(problems, len(texts))
        episodes = self._episodes(questions, reward)
        cut = {name: jnp.int32(0) for name in rows}
        return jax.tree.map(jnp.asarray, Trajectory(episodes, rows, self.utilisation(), cut, kinds))

    def held_out(self, weights: dict[str, dict], key: jax.Array) -> dict[str, np.ndarray]:
        """The mean reward of each held-out question over its answers, {metric: float64 [questions]}.

        The metrics are `held_out/return`, the sum of the rewards, and with several rewards `held_out/NAME`. With
        several policies the policy's name follows. An answer whose reward failed does not count; NaN if none is left.
        Raises ValueError for a game without held-out questions.
        """
        game, count, metrics = self.game, self.game.answers, dict[str, np.ndarray]()
        self.check_held_out()
        first, several = len(game.training), sum(len(x.policies) for x in self.policy_sets.values()) > 1
        questions = [question for question in game.testing for _ in range(count)]
        texts: dict[str, list[str]] = {}  # by policy
        with self.with_weights(weights):
            for name, policy_set in self.policy_sets.items():
                for policy, label in enumerate(policy_set.policies):
                    calls = [(first + number // count, policy, number) for number in range(len(questions))]
                    said = self._answer(name, key, calls)
                    texts[label] = [text_of(policy_set.tokenizer, answer.tokens) for answer in said]
        for label, answers in texts.items():
            table, problems = score(game, questions, answers)
            self._report(problems, len(answers))
            table = table.astype(np.float64).reshape(len(game.testing), count, -1)
            columns = {component: table[..., i] for i, component in enumerate(game.components)}
            parts = {"return": table.sum(-1), **(columns if len(columns) > 1 else {})}
            for part, values in parts.items():
                metrics[f"held_out/{part}" + f"/{label}" * several] = _mean_of_rows(values)
        return metrics

    def prompt_width(self, policy_set: str) -> int:
        """The width of a batch with the longest training question, in tokens of a policy set."""
        return power_of_two(max(len(tokens) for tokens, _ in self._prompts[policy_set][: len(self.game.training)]))

    def check_held_out(self) -> None:
        """Raises ValueError if no question is held out."""
        if not self.game.testing:
            raise ValueError("No question is held out: give Prompts held_out, a share of the questions or a file.")

    def _draw(self, key: jax.Array) -> list[int]:
        """The question of every group: without repetition, as far as there are enough."""
        groups, count = len(self.lineup.seats), len(self.game.training)
        rounds = -(-groups // count)
        order = [jax.random.permutation(key_for(key, DEAL, number), count) for number in range(rounds)]
        return np.concatenate(jax.device_get(order))[:groups].tolist()

    def _write(self, layout: TextRowLayout) -> list[tuple[list[int], list[int]]]:
        """(tokens, their kinds) of every question, the held-out ones last. Raises ValueError for one without room."""
        dialogues, prompts = Dialogues(layout.policy_set.tokenizer), []
        for question in (*self.game.training, *self.game.testing):
            place = question.place.rstrip(",")
            try:
                opened = dialogues.open(0, [Message(role, text) for role, text in question.messages])
            except ValueError as error:
                raise ValueError(f"{place} cannot be asked: {error}") from None
            tokens, room = opened.tokens, layout.context - self.budget
            if not 1 <= len(tokens) <= room:
                raise ValueError(
                    f"{place} has {len(tokens)} tokens; with an answer of {self.budget} the context of "
                    f"{layout.context} has room for {f'1 to {room}' if room > 0 else 'none'}."
                )
            prompts.append((tokens, opened.kinds))
        return prompts

    def _answer(self, name: str, key: jax.Array, calls: Sequence[tuple[int, int, int]]) -> list[Answer]:
        """The answers of a policy set to (question, policy, episode)."""
        policy_set, data = self.policy_sets[name], jax.random.key_data(key).tolist()
        return self.engines[name].run(
            [
                Call(
                    tokens=self._prompts[name][question][0],
                    key=data,
                    event=(SAY, episode, 0, 0),
                    budget=self.budget - 1,  # the last place holds only the end
                    policy=policy if policy_set.lora else 0,
                    sampling=sampling_of(policy_set.sampling, policy),
                )
                for question, policy, episode in calls
            ]
        )

    def _report(self, problems: dict[int, str], episodes: int) -> None:
        for index, why in problems.items():
            self.wrong_rewards.add(index, why)
        self.wrong_rewards.report(episodes)

    def _episodes(self, questions: Sequence[Question], reward: np.ndarray) -> Episodes:
        """The events of the episodes; an answer without a reward is truncated."""
        size, shape = self.lineup.group_size, (len(questions), 1, 1)
        told = [name_text(str(question.messages)) for question in questions]
        failed = np.isnan(reward).any(1)
        record: dict[str, Any] = {name: np.zeros(shape, np.int32) for name in ("action", "role")}
        record |= {"acted": np.ones(shape, bool), "valid": np.ones(shape, bool), "legal": np.ones((*shape, 1), bool)}
        record |= {"reward": reward.reshape(*shape, -1), "told": np.array(told, np.int32).reshape(shape)}
        record |= {"group": np.repeat(np.arange(len(self.lineup.seats), dtype=np.int32), size)}
        record |= {"game": np.zeros(len(questions), np.int32), "terminated": ~failed, "truncated": failed}
        return Episodes(**record)

    def _record(self, layout: TextRowLayout, prompts: Sequence[list[int]], answers: Sequence[Answer]) -> Rows:
        """The record of a policy set's rows, given the prompt of each group and all answers."""
        tokens, length = pad([answer.tokens for answer in answers])
        mask = np.arange(tokens.shape[1]) < length[:, None]
        logp = np.zeros(tokens.shape, np.float32)
        for row, answer in zip(logp, answers, strict=True):
            row[: len(answer.logp)] = answer.logp
        left = np.where(mask, self.budget - np.arange(tokens.shape[1]), 0)
        filled, before = pad(prompts)
        columns: dict[str, Any] = {
            "tokens": tokens,
            "length": length,
            "loss_mask": mask,
            "logp": logp,
            "turn": np.zeros(tokens.shape, np.int32),
            "tokens_left": left.astype(np.int16),
            "grammar_state": np.where(mask, layout.tables.start[0], 0).astype(np.int16),
            "prompt": np.repeat(np.arange(len(prompts), dtype=np.int32), layout.group_size),
        }
        columns |= {field: getattr(layout, field).astype(np.int32) for field in ("episode", "seat", "policy")}
        return Rows(prompts=decoder.Prompts(jnp.asarray(filled), jnp.asarray(before)), **columns)


def _mean_of_rows(values: np.ndarray) -> np.ndarray:
    """The mean of each row of [questions, answers] without NaN entries; NaN if all are."""
    known = ~np.isnan(values)
    return np.where(known.any(1), np.nansum(values, 1) / np.maximum(known.sum(1), 1), np.nan)
