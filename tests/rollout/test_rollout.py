"""Rollouts: games, records and scores agree with the sampled tokens.

`tests.support.rollout_cases` plays four batches; `tests.support.dialogues` writes the dialogues that they must hold.

The long cases score again, or play the relay or with messages; the short ones read the same laws in the batch "silent".
"""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import losses
from jaxmarl_llm.rollout.trajectory import Trajectory
from jaxmarl_llm.text.grammar import pattern
from tests.support.dialogues import readings, rows_agree, speeches, spellers, texts_of
from tests.support.rollout_cases import (
    BYTES,
    FAST,
    OTHER,
    SEED,
    TALK,
    THEIRS,
    TRACES,
    case,
    compiled,
    played,
    rescored,
    seen,
)

CASES = [
    pytest.param("dilemma", marks=pytest.mark.slow),
    pytest.param("relay", marks=pytest.mark.long),
    "silent",
    pytest.param("talk", marks=pytest.mark.long),
]  # the dilemma is in "talk" too


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_rows_hold_the_dialogue_and_nothing_else(name):
    rows_agree(played(name), readings(name))


@pytest.mark.parametrize("name", CASES)
def test_the_action_is_what_the_bytes_say(name):
    trajectory, counted = played(name), 0
    for policy_set, r, turn, grammar, legal, said, _ in speeches(name):
        tokenizer, rows = case(name).policy_sets[policy_set].tokenizer, trajectory.rows[policy_set]
        if tokenizer.end is not None:
            assert said[-1] == tokenizer.end
            said = said[:-1]
        match = re.fullmatch(pattern(grammar), b"".join(tokenizer.token_bytes[t] for t in said), re.DOTALL)
        assert match is not None
        found = [int(group[1:]) for group, text in match.groupdict().items() if text is not None]
        (action,) = found or [0]  # a grammar without a Choice has one action
        where = (int(rows.episode[r]), turn, int(rows.seat[r]))
        assert trajectory.episodes.action[where] == action and legal[action]
        assert trajectory.episodes.valid[where] and trajectory.episodes.acted[where]
        counted += 1
    assert counted == sum(trajectory.episodes.acted[:, :, s][e].sum() for e, s in seats_with_rows(trajectory))


def seats_with_rows(trajectory: Trajectory) -> list[tuple[int, int]]:
    places = [
        (int(e), int(s)) for rows in trajectory.rows.values() for e, s in zip(rows.episode, rows.seat, strict=True)
    ]
    assert len(set(places)) == len(places)
    return places


@pytest.mark.parametrize("name", CASES)
def test_an_utterance_keeps_its_budget(name):
    lengths: dict[int, set[int]] = {}
    for _, _, _, grammar, _, said, _ in speeches(name):
        lengths.setdefault(case(name).environment.grammars.index(grammar), set()).add(len(said))
    for number, found in lengths.items():
        most = case(name).most(case(name).environment.grammars[number])
        assert max(found) <= most
        if name != "silent":
            assert max(found) > 3  # some are long enough for the bound to matter
        if name == "talk" and number == 2:
            assert max(found) == most < min(case(name).budget[:2])


@pytest.mark.parametrize("name", CASES)
def test_trained_tokens_are_those_with_an_alternative(name):
    trajectory, marks = played(name), {}
    for policy_set, r, _, grammar, legal, said, first in speeches(name):
        rows, speller = trajectory.rows[policy_set], spellers(name)[policy_set]
        before, marked = b"", marks.setdefault((policy_set, r), set())
        for i, token in enumerate(said):
            left = case(name).most(grammar) - i
            allowed = speller.continuations(grammar, before, legal, left)
            assert token in allowed
            if len(allowed) > 1:
                marked.add(first + i)
                assert rows.tokens_left[r, first + i] == left
            before += speller.texts[token] or b""
    for (policy_set, r), marked in marks.items():
        assert set(np.flatnonzero(trajectory.rows[policy_set].loss_mask[r]).tolist()) == marked
    assert sum(len(marked) for marked in marks.values()) == sum(
        int(rows.loss_mask.sum()) for rows in trajectory.rows.values()
    )
    said_tokens = sum(len(said) for *_, said, _ in speeches(name))
    assert (sum(map(len, marks.values())) < said_tokens) == (name != "silent")  # elsewhere some had none


@pytest.mark.parametrize("name", CASES)
def test_episodes_are_the_game_played_with_these_actions(name):
    trajectory, world = played(name), seen(name)
    episodes, turns = trajectory.episodes, case(name).environment.turns
    for t in range(turns):
        alive = ~world.over[t]
        np.testing.assert_array_equal(episodes.acted[:, t], world.views[t].acting & alive[:, None])
        np.testing.assert_array_equal(episodes.legal[:, t], world.views[t].legal & episodes.acted[:, t, :, None])
        np.testing.assert_array_equal(episodes.role[alive, t], world.views[t].role[alive])
        np.testing.assert_array_equal(episodes.reward[:, t], world.rewards[t] * alive[:, None, None])
    assert not episodes.action[~episodes.acted].any() and not episodes.valid[~episodes.acted].any()
    assert (episodes.terminated ^ episodes.truncated).all()
    assert world.over[-1].all()


@pytest.mark.long
def test_games_of_one_batch_end_at_different_turns():
    world = seen("relay")
    length = (~world.over).sum(0)
    assert len(set(length.tolist())) > 2
    assert played("relay").episodes.terminated.any() and played("relay").episodes.truncated.any()
    assert any(len(set(length[i : i + 3].tolist())) > 1 for i in range(0, len(length), 3))  # also within a group


@pytest.mark.parametrize(("name", "turns"), [pytest.param("dilemma", 1, marks=pytest.mark.slow), ("talk", 2)])
def test_scripted_seats_play_their_script(name, turns):
    """The move is in the last of the turns of a round."""
    moves, lineup = played(name).episodes.action[:, turns - 1 :: turns], case(name).lineup
    for q, row in enumerate(lineup.seats):
        for seat, who in enumerate(row):
            for e in range(q * lineup.group_size, (q + 1) * lineup.group_size):
                other = moves[e, :, 1 - seat].tolist()
                if who == "tit_for_tat":
                    assert moves[e, :, seat].tolist() == [0, *other[:-1]]
                if who == "grim":
                    assert moves[e, :, seat].tolist() == [int(1 in other[:t]) for t in range(len(other))]


@pytest.mark.parametrize(
    ("name", "tokenizer"), [pytest.param("dilemma", BYTES, marks=pytest.mark.slow), ("talk", THEIRS)]
)
def test_a_teacher_writes_each_move_as_the_tokenizer_does(name, tokenizer):
    for policy_set, r, turn, grammar, _, said, _ in speeches(name):
        if policy_set == "teacher":
            rows = played(name).rows[policy_set]
            action = int(played(name).episodes.action[rows.episode[r], turn, rows.seat[r]])
            assert said == [*tokenizer.encode(texts_of(grammar)[action].decode()), tokenizer.end]


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_scored_again_a_rollout_has_the_same_probabilities(name):
    trajectory = jax.tree.map(jnp.asarray, played(name))
    for policy_set, sampled, scores in rescored(case(name), case(name).weights(SEED), trajectory):
        assert sampled.mask.sum() == trajectory.rows[policy_set].loss_mask.sum() >= 15
        assert jnp.abs(jnp.where(sampled.mask, scores.logp - sampled.behaviour_logp, 0)).max() < 1e-4
        assert jnp.where(sampled.mask, scores.logp, 0).std() > 0.05  # the policy is not indifferent
        advantage = jnp.where(sampled.mask, 1.0, 0)
        _, metrics = losses.ppo_clip(scores.logp, sampled.behaviour_logp, advantage, sampled.mask)
        np.testing.assert_allclose(metrics["ratio"].value, 1, atol=1e-4)
        np.testing.assert_allclose(metrics["clipped"].value, 0)
        np.testing.assert_allclose(metrics["approximate_kl"].value, 0, atol=1e-6)


def test_scoring_with_the_wrong_adapter_shows():
    setting, trajectory = case("talk"), jax.tree.map(jnp.asarray, played("talk"))
    weights = setting.weights(SEED)
    weights["lora"]["adapters"] = setting.weights(OTHER)["lora"]["adapters"]
    for policy_set, sampled, scores in rescored(setting, weights, trajectory):
        if policy_set == "lora":
            assert jnp.abs(jnp.where(sampled.mask, scores.logp - sampled.behaviour_logp, 0)).max() > 1e-2


@pytest.mark.parametrize("name", CASES)
def test_a_group_shares_its_beginning_and_not_its_samples(name):
    trajectory, world, lineup = played(name), seen(name), case(name).lineup
    groups = np.arange(lineup.episodes).reshape(-1, lineup.group_size)
    np.testing.assert_array_equal(trajectory.episodes.group, np.repeat(np.arange(len(groups)), lineup.group_size))
    for group in groups:
        for shared in (world.prompt, world.views[0].phrases, world.views[0].acting, world.views[0].grammar):
            assert (shared[group] == shared[group[:1]]).all()
    for policy_set, rows in trajectory.rows.items():
        places = lineup.assignments(case(name).policy_sets[policy_set].policies)
        np.testing.assert_array_equal(rows.prompt, np.repeat(np.arange(len(places)), lineup.group_size))
        assert len(rows.prompts.tokens) == len(places)
        for r, (q, seat, index) in enumerate(np.repeat(places, lineup.group_size, 0)):
            assert (rows.episode[r], rows.seat[r], rows.policy[r]) == (groups[q][r % lineup.group_size], seat, index)
        if case(name).policy_sets[policy_set].config is not None and policy_set != "full":
            alike = [len({rows.tokens[o * lineup.group_size + i].tobytes() for i in range(lineup.group_size)})
                     for o in range(len(places))]  # fmt: skip
            assert max(alike) == lineup.group_size


@pytest.mark.parametrize("name", CASES)
def test_a_key_is_a_trajectory_and_nothing_is_compiled_twice(name):
    run, setting = compiled(name), case(name)
    played(name)
    again = run(setting.weights(SEED), jax.random.key(SEED))
    chex.assert_trees_all_equal(jax.device_get(again), played(name))
    other_key, other_weights = run(setting.weights(SEED), jax.random.key(OTHER)), played(name, OTHER)
    policy_set = next(iter(setting.policy_sets))
    assert not np.array_equal(again.rows[policy_set].tokens, other_key.rows[policy_set].tokens)
    assert not np.array_equal(other_key.rows[policy_set].tokens, other_weights.rows[policy_set].tokens)
    assert TRACES[name] == 1


def fed(name: str, policy_set: str) -> tuple[int, int]:
    """(tokens to add, tokens computed) in all calls of `append` after the prompt, counted from the dialogues."""
    trajectory, world, speller = played(name), seen(name), spellers(name)[policy_set]
    rows, environment = trajectory.rows[policy_set], case(name).environment
    layout = case(name).rollout.layouts[policy_set]
    unlimited = np.ones(environment.actions, bool)
    sampled = np.zeros((environment.turns, len(rows.length)), int)
    waiting = np.zeros_like(sampled)  # tokens from the last that was sampled on: they wait for what follows
    for f, r, turn, grammar, _, said, _ in speeches(name):
        before = b""
        for i, token in enumerate(said if f == policy_set else []):
            if len(speller.continuations(grammar, before, unlimited, 1000)) > 1:
                sampled[turn, r] += 1
                waiting[turn, r] = len(said) - i
            before += speller.texts[token] or b""
    used = computed = 0
    for t in range(environment.turns):
        alive = ~world.over[t][rows.episode]
        if t > 0:
            acted = world.views[t - 1].acting[rows.episode, rows.seat]
            called = bool(case(name).policy_sets[policy_set].tokenizer.markers.speak)
            now = world.views[t].acting[rows.episode, rows.seat] & called
            told = (world.views[t].phrases[rows.episode, rows.seat] >= 0).any(-1)
            computed += len(alive) * layout.chunk * bool((alive & (acted | now | told)).any())
        computed += np.maximum(sampled[t] - 1, 0).max() * len(alive) * (1 + layout.tables.forced.shape[1])
    for r, episode in enumerate(rows.episode):
        last = max(t for t in range(environment.turns) if not world.over[t][episode])
        used += (rows.turn[r, : rows.length[r]] <= last).sum() - waiting[last, r]
    return int(used), int(computed)


@pytest.mark.parametrize("name", CASES)
def test_utilisation_counts_the_tokens_in_use(name):
    for policy_set, setting in case(name).policy_sets.items():
        share = float(played(name).utilisation[policy_set])
        if setting.config is None:
            assert share == 0
            continue
        used, computed = fed(name, policy_set)
        assert share == pytest.approx(used / computed)
        assert 0 < share <= 1
        if name == "relay":
            assert 0 < share < 1


CONTROL = "\N{SNOWMAN}"  # stands for any control token; bytes are Latin letters here


def letters(tokenizer, tokens) -> str:
    return "".join(CONTROL if (b := tokenizer.token_bytes[t]) is None else b.decode("latin-1") for t in tokens)


def test_a_listener_is_told_exactly_the_speakers_free_text():
    """Found in the rows by what stands around messages: no grammar, no views."""
    trajectory, said, heard = played("talk"), {}, {}
    for policy_set, rows in trajectory.rows.items():
        tokenizer = case("talk").policy_sets[policy_set].tokenizer
        for r in range(len(rows.length)):
            o, place = rows.prompt[r], (int(rows.episode[r]), int(rows.seat[r]))
            row = [*rows.prompts.tokens[o, : rows.prompts.length[o]], *rows.tokens[r, : rows.length[r]]]
            text = letters(tokenizer, row)
            ask = f"one line to them.{CONTROL}\n{CONTROL}a\n([^{CONTROL}]*){CONTROL}\n{CONTROL}u\nThey say:\n"
            said[place] = tokenizer, re.findall(ask, text)
            heard[place] = tokenizer, re.findall(f"They say:\n([^\n{CONTROL}]*)\nChoose", text)
            assert len(said[place][1]) == len(heard[place][1]) == TALK.rounds
    same, cut, empty = 0, dict.fromkeys(trajectory.rows, 0), 0
    for (episode, seat), (listener, messages) in heard.items():
        speaker, words = said.get(
            (episode, 1 - seat), (listener, [""] * TALK.rounds)
        )  # a script without rows is silent
        (policy_set,) = (n for n, r in trajectory.rows.items() if ((r.episode == episode) & (r.seat == seat)).any())
        for message, told in zip(words, messages, strict=True):
            empty += message == ""
            if speaker is listener:
                assert told == message
                same += len(told) > 3
                continue
            text = message.encode("latin-1").decode(errors="replace")
            unknown = [c for c in text if not all(bytes([b]) in listener.token_bytes for b in c.encode())]
            for c in unknown:
                text = text.replace(c, "?")
            whole = listener.encode(text)
            assert told == letters(listener, whole[:7])
            cut[policy_set] += max(len(whole) - 7, 0)
    assert same > 5 and empty > 5
    assert {name: int(count) for name, count in trajectory.truncated_message_tokens.items()} == cut and min(
        cut.values()
    ) > 0


@pytest.mark.long
def test_the_text_after_a_hint_is_told_to_the_next_seat_alone():
    told = 0
    for policy_set, rows in played("relay").rows.items():
        for r, reading in enumerate(readings("relay")[policy_set]):
            for turn, speaker, first, end in reading.heard:
                assert seen("relay").views[turn].acting[rows.episode[r], rows.seat[r]] and rows.seat[r] != speaker == 0
                told += end > first
    assert told > 0


def test_each_policy_draws_in_its_own_way():
    rows = played("talk").rows["lora"]
    logp = [rows.logp[(rows.policy == index)[:, None] & rows.loss_mask] for index in range(3)]
    assert (logp[1] == 0).all() and len(logp[1]) > 20  # greedy
    assert min(abs(logp[0]).max(), abs(logp[2]).max()) > 0.5


@pytest.mark.slow
def test_seeds_in_one_program_equal_the_same_seeds_alone():
    name, setting = "relay", case("relay")
    stack = lambda *x: jnp.stack(x)
    together = FAST(jax.vmap(setting.rollout))(
        jax.tree.map(stack, setting.weights(SEED), setting.weights(OTHER)),
        stack(jax.random.key(SEED), jax.random.key(OTHER)),
    )
    for index, seed in enumerate((SEED, OTHER)):
        lane, alone = jax.tree.map(lambda x, i=index: np.asarray(x[i]), together), played(name, seed)
        chex.assert_trees_all_equal(lane.episodes, alone.episodes)
        for policy_set, rows in alone.rows.items():
            np.testing.assert_allclose(lane.rows[policy_set].logp, rows.logp, atol=1e-4)
            chex.assert_trees_all_equal(lane.rows[policy_set].replace(logp=0), rows.replace(logp=0))


@pytest.mark.parametrize("name", CASES)
def test_the_longest_row_fits_and_no_row_is_longer(name):
    for policy_set, rows in played(name).rows.items():
        layout = case(name).rollout.layouts[policy_set]
        assert rows.length.max() <= layout.slots == rows.tokens.shape[1]
        assert rows.prompts.length.max() <= layout.prompt_width
        assert rows.loss_mask.sum(1).max() <= case(name).rollout.max_sampled_tokens(policy_set)
