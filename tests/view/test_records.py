"""The records of games, against plain forward passes, the rules, and the rewards of siblings.

All cases are long, as they compile two recorders; `test_runner` reads the games and the page of a run.
"""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.teams.team_signals import Halves
from jaxmarl_llm.keys import DEAL, SHOW, key_for
from jaxmarl_llm.models import decoder
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.text.grammar import lift
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.view import page, records, rows
from tests.support.toys import ByteTokenizer, Relay

pytestmark = pytest.mark.long

KUHN = Recipe(
    KuhnPoker(),
    seats=(("learner", "learner"), ("learner", "random")),
    advantage=estimator(advantages.rloo, per_agent=True),
    budget=1,
    groups=4,
    group_size=4,
)
TALK = Recipe(
    Relay(turns=3),
    seats=(("one", "one", "fixed"),),
    advantage=None,
    step=lambda *of: of,  # never called: it makes the recipe one without advantages
    tokenizer=lambda game: ByteTokenizer(),
    budget=(12, 8),
    groups=2,
    group_size=4,
)


def test_a_script_writes_the_page_of_its_games(tmp_path):
    trainer = Trainer(KUHN, [KUHN.all_hparams], [7])
    state = trainer.init()
    records.save_games(trainer, state, tmp_path / "mine", count=4)
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(ValueError, match="holds the run of a study"):
        records.save_games(trainer, state, tmp_path)
    page = records.save_games(trainer, state, tmp_path / "mine", update=3, count=4)
    records.save_games(trainer, state, tmp_path / "mine", update=3, count=4)  # in place of those of this update
    games = [json.loads(line) for line in (tmp_path / "mine/games.jsonl").read_text().splitlines()]
    assert [game["update"] for game in games] == [0] * 4 + [3] * 4 and {game["seed"] for game in games} == {7}
    assert [game["seats"] for game in games[:4]] == [game["seats"] for game in games[4:]]  # the same state and deals
    assert page == tmp_path / "mine/games.html" and "KuhnPoker" in page.read_text()


ABOUT = {"study": "poker", "arm": "rloo", "seed": 5, "update": 0}


@pytest.fixture(scope="module")
def kuhn():
    """A trainer of two runs, the state, and the games of the second run."""
    trainer = Trainer(KUHN, [KUHN.all_hparams] * 2, [3, 5], "tiny")
    state = trainer.init()
    (games,) = records.recorder(trainer)(state, {1: ABOUT}, 16)
    return trainer, state, games


@pytest.fixture(scope="module")
def talk():
    trainer = Trainer(TALK, [TALK.all_hparams], [5], "tiny")
    state = trainer.init()
    (games,) = records.recorder(trainer)(state, {0: ABOUT}, 7)
    return trainer, trainer.weights(state, 0)["one"]["params"], games


def answers(games):
    """(game, seat, its record, the answer, the messages before it) of all answers."""
    for game in games:
        for seat, own in enumerate(game["seats"]):
            places = [i for i, message in enumerate(own["messages"]) if message["role"] == "assistant"]
            for place, answer in zip(places, own["answers"], strict=True):
                yield game, seat, own, answer, own["messages"][:place]


def test_probabilities_are_those_of_a_plain_forward_pass(kuhn):
    """The softmax over the legal answers after the symbols that the seat has read and said."""
    trainer, state, games = kuhn
    sets = trainer.policy_sets["learner"]
    params, seen = trainer.weights(state, 1)["learner"]["params"], 0
    for *_, answer, before in answers(games):
        tokens = [token for message in before for token in sets.tokenizer.encode(message["content"])]
        hidden, _ = decoder.forward(sets.config, params, jnp.array([tokens]))
        logits = np.asarray(decoder.logits(sets.config, params, hidden[0, -1:]), np.float64)[0]
        (token,) = answer["tokens"]
        legal = ["fold", "call"] if "bet. Fold or call" in before[-1]["content"] else ["check", "bet"]
        odds = np.exp([logits[sets.tokenizer.encode(text)[0]] for text in legal])
        p = dict(zip(legal, odds / odds.sum(), strict=True))
        np.testing.assert_allclose(np.exp(token["logp"]), p[token["text"]], rtol=1e-5)
        np.testing.assert_allclose(token["entropy"], -sum(x * np.log(x) for x in p.values()), rtol=1e-5)
        assert [text for text, _ in token["top"]] == sorted(p, key=p.get, reverse=True)
        np.testing.assert_allclose([x for _, x in token["top"]], sorted(p.values(), reverse=True), rtol=1e-4)
        seen += 1
    assert seen > 20


def test_a_log_probability_is_the_float_of_the_rollout(kuhn):
    trainer, state, games = kuhn
    rows = jax.device_get(trainer.examine(state, [1])).trajectory.rows["learner"]
    recorded = {
        (game["game"], seat, np.float32(token["logp"]))
        for game, seat, _, answer, _ in answers(json.loads(json.dumps(games)))
        for token in answer["tokens"]
    }
    at = np.argwhere(rows.loss_mask[0])
    assert recorded == {(rows.episode[0, r], rows.seat[0, r], rows.logp[0, r, s]) for r, s in at}


def test_an_advantage_is_the_reward_less_that_of_the_siblings(kuhn):
    _, _, games = kuhn
    for game, seat, own, answer, _ in answers(games):
        others = [g for g in games if g["group"] == game["group"] and g["member"] != game["member"]]
        assert len(others) == 3
        mean = np.mean([g["seats"][seat]["reward"] for g in others])
        for token in answer["tokens"]:
            np.testing.assert_allclose(token["advantage"], own["reward"] - mean, rtol=1e-5, atol=1e-6)


def test_messages_are_what_the_game_tells_and_what_was_answered(kuhn):
    """The game is played again with the answers, on the host."""
    _, _, games = kuhn
    game, key = KUHN.game, key_for(jax.random.key(5), SHOW)
    text = lambda fields, row: "".join(f[i] for f, i in zip(fields, row.tolist(), strict=True) if i >= 0)
    for one in games:
        assert (one["group"], one["member"]) == divmod(one["game"], 4)
        if "random" in (seat["policy"] for seat in one["seats"]):
            continue
        state, view = game.reset(key_for(key, DEAL, one["group"]), jnp.int32(one["group"]))
        told = [[("system", text(game.rules, row))] for row in game.prompt(state)]
        left, total = [list(seat["answers"]) for seat in one["seats"]], np.zeros(2)
        while True:
            for seat in range(2):
                if heard := text(game.observation, view.phrases[seat]):
                    same = told[seat][-1][0] == "user"
                    said = ("user", told[seat].pop()[1] + heard if same else heard)
                    told[seat].append(said)
            if view.terminated:
                break
            mover = int(view.acting.argmax())
            answer = left[mover].pop(0)
            told[mover].append(("assistant", "".join(token["text"] for token in answer["tokens"])))
            action = jnp.zeros(2, jnp.int32).at[mover].set(answer["action"])
            state, view, reward = game.step(state, action, key)
            total += reward[:, 0]
            assert answer["reward"] == reward[mover, 0]
        assert left == [[], []] and [seat["reward"] for seat in one["seats"]] == total.tolist()
        for seat, own in enumerate(one["seats"]):
            found = [(m["role"], m["content"]) for m in own["messages"]]
            # what is told after the last turn is written nowhere: nobody answers it
            assert found == told[seat][: len(found)] and len(found) >= len(told[seat]) - 1


def test_the_exact_value_of_the_last_answers_is_their_payoff(kuhn):
    """Who folds loses a point, and with the lowest or highest card a call loses or wins two."""
    _, _, games = kuhn
    calls = []
    for game, _, own, answer, before in answers(games):
        alone = "random" in (seat["policy"] for seat in game["seats"])
        assert ("values" in answer) != alone, "the play of a script is no table"
        values = dict(answer.get("values", []))
        if "fold" in values:
            assert values["fold"] == -1 and -2 <= values["call"] <= 2
            card = before[0]["content"][-2]
            calls.append((card, values["call"]))
        if own["messages"][0]["content"].endswith("J."):
            assert all(value <= 1 for value in values.values())
    assert calls and all(value == {"J": -2, "K": 2}.get(card, value) for card, value in calls)


def test_an_answer_names_its_message_and_a_seat_its_role(kuhn):
    _, _, games = kuhn
    for game in games:
        assert [seat["role"] for seat in game["seats"]] == ["first", "second"] and "note" not in game
        for seat in game["seats"]:
            said = [i for i, message in enumerate(seat["messages"]) if message["role"] == "assistant"]
            assert said == [answer["message"] for answer in seat["answers"]]
            assert not any("role" in answer or "means" in answer or "cut" in answer for answer in seat["answers"])


def test_a_scripted_player_has_a_reward_its_actions_and_no_messages(kuhn):
    _, _, games = kuhn
    scripted = [seat for game in games for seat in game["seats"] if seat["policy"] == "random"]
    assert len(scripted) == 8
    assert all(not seat["messages"] and set(seat["components"]) == {"points"} for seat in scripted)
    assert {act["action"] for seat in scripted for act in seat["acts"]} == {0, 1}


def test_a_dialogue_with_chat_markers_is_cut_where_they_stand(talk):
    """The messages in ChatML are the row, forced and free tokens together are the answer."""
    trainer, _, games = talk
    rows = jax.device_get(trainer.examine(trainer.init(), [0])).trajectory.rows["one"]
    tokenizer, names = trainer.policy_sets["one"].tokenizer, {"system": "s", "user": "u", "assistant": "a"}
    for row in np.flatnonzero(rows.episode[0] < len(games)):
        prompt = rows.prompts.tokens[0, rows.prompt[0, row]][: rows.prompts.length[0, rows.prompt[0, row]]]
        whole = tokenizer.decode([*prompt.tolist(), *rows.tokens[0, row, : rows.length[0, row]].tolist()])
        own = games[rows.episode[0, row]]["seats"][rows.seat[0, row]]
        chat = [f"<|im_start|>{names[m['role']]}\n{m['content']}<|im_end|>" for m in own["messages"]]
        assert "\n".join(chat) in (whole, whole + "<|im_end|>")
    kinds = set()
    for *_, own, answer, before in answers(games):
        said = own["messages"][len(before)]["content"]
        assert "".join(token["text"] for token in answer["tokens"]) == said + "<|im_end|>"
        kinds |= {"logp" in token for token in answer["tokens"]}
        if said.startswith("<"):
            assert answer["tokens"][0] == {"text": "<"}, "forced"
        assert "values" not in answer and not any("advantage" in token for token in answer["tokens"])
    assert kinds == {True, False}
    for *_, answer, _ in answers(games):
        *said, last = answer["tokens"]
        assert last["end"] and not any("end" in token for token in said)
        if "cut" in answer:
            assert "logp" not in last and answer["cut"] == len(answer["tokens"]) and answer["cut"] in TALK.budget
    assert {"cut" in answer for *_, answer, _ in answers(games)} == {True, False}
    assert [game["game"] for game in games] == [0, 1, 2, 3], "whole groups, where one fits"


def test_alternatives_sum_to_one_over_the_legal_tokens(talk):
    """In choices of a few tokens all are listed; in free text the most probable ones."""
    trainer, _, games = talk
    tables, whole = lift(TALK.game.grammars, trainer.policy_sets["one"].tokenizer.token_bytes, None), 0
    assert tables.free.any()
    for *_, answer, _ in answers(games):
        for token in answer["tokens"]:
            if "top" in token:
                p = [x for _, x in token["top"]]
                assert p == sorted(p, reverse=True) and sum(p) < 1 + 1e-4
                if len(p) < 8:
                    assert abs(sum(p) - 1) < 1e-4
                    whole += 1
    assert whole


def test_split_characters_and_control_tokens_have_a_text():
    tokenizer = ByteTokenizer()
    ids = [*tokenizer.encode("é"), tokenizer.end, *tokenizer.encode("é")[:1], tokenizer.end, *tokenizer.encode("\x00")]
    assert list(rows.texts(tokenizer, ids)) == ["", "é", "<|im_end|>", "", "\ufffd<|im_end|>", "\x00"]
    assert rows.plain(np.float32(0.1)) == 0.1 and rows.plain(np.float32(np.nan)) is None


def test_values_of_tokens_are_gathered_by_policy(kuhn):
    games = kuhn[2]
    values = records.token_values(games)
    tokens = [
        token for game in games for seat in game["seats"] for answer in seat["answers"] for token in answer["tokens"]
    ]
    names = {name.split("/")[0] for name in values}
    assert names >= {"entropy", "logp"} and {name.split("/")[1] for name in values} <= {
        seat["policy"] for game in games for seat in game["seats"]
    }
    for name in names:
        gathered = [x for key, listed in values.items() if key.split("/")[0] == name for x in listed]
        assert sorted(gathered) == sorted(token[name] for token in tokens if token.get(name) is not None)


def test_a_transcript_shows_the_games_in_words(kuhn):
    text = records.transcript(kuhn[2][:1])
    assert "# Update 0, group 0, game 0" in text and "Seat 1 (learner), reward" in text and "\nassistant: " in text


def test_the_same_weights_play_the_same_games_again(kuhn):
    """Nothing of the state is used up: the update after it is as without the viewer."""
    trainer, state, games = kuhn
    again = records.recorder(trainer)(state, {1: ABOUT}, 6)[0]
    assert json.dumps(again) == json.dumps(games[:4])


def test_a_page_of_few_games_has_some_of_every_arm_and_update(tmp_path):
    for arm in ("a", "b"):
        (tmp_path / arm).mkdir()
        numbers = [(update, i) for update in (0, 9) for i in range(5)]
        games = [{"arm": arm, "seed": 0, "update": update, "game": i, "seats": []} for update, i in numbers]
        (tmp_path / arm / page.GAMES).write_bytes(page.lines_of(games))
    file, shown, total = page.write(tmp_path, tmp_path, 6)
    kept = re.findall(r'"arm":"(\w)","seed":0,"update":(\d),"game":(\d)', file.read_text())
    assert (shown, total) == (6, 20)
    assert kept == [
        ("a", "0", "0"),
        ("a", "0", "1"),
        ("a", "9", "0"),
        ("a", "9", "1"),
        ("b", "0", "0"),
        ("b", "9", "0"),
    ]


def test_an_answer_that_is_forced_whole_is_shown_as_it_was_said():
    recipe = replace(TALK, game=Halves(modulus=3, symbols=1), seats=(("one", "one"),), budget=2, groups=1, group_size=2)
    trainer = Trainer(recipe, [recipe.all_hparams], [5], "tiny")
    (games,) = records.recorder(trainer)(trainer.init(), {0: ABOUT}, 2)
    for game in games:
        for seat in game["seats"]:
            said = [message["content"] for message in seat["messages"] if message["role"] == "assistant"]
            assert said == ["a", str(seat["answers"][1]["action"])] and seat["answers"][0]["action"] == 0
            chosen = [["logp" in token for token in answer["tokens"]] for answer in seat["answers"]]
            assert chosen == [[False, False], [True, False]]  # the end token is forced


def test_fewer_games_than_a_group_are_of_several_deals():
    """Members of a group share a deal: 4 of 3 groups of 8 are the first two of one, and the first of the others."""
    recipe = SimpleNamespace(groups=3, group_size=8)
    assert records.select_games(recipe, 4) == [0, 1, 8, 16] and records.select_games(recipe, 1) == [0]
    assert records.select_games(recipe, 8) == records.select_games(recipe, 15) == [*range(8)]
    assert records.select_games(recipe, 0) == records.select_games(recipe, 99) == [*range(24)]
    assert records.select_games(SimpleNamespace(groups=1, group_size=8), 5) == [*range(5)]
