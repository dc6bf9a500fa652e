"""Dialogues of a file as rows: the tokens of play, what is learnt of them, pairs, and files that cannot be read.

The long cases compile play and imitation for each kind of policy, a slow one pairs in micro-batches; the short one
reads every kind of file.
"""

import json
import operator
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.social.commons import DonorGame
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.methods import dpo
from jaxmarl_llm.methods.dpo import preference, preference_step
from jaxmarl_llm.models.loading import Loaded
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.masked import mean_of
from jaxmarl_llm.rollout.policy import Scorer
from jaxmarl_llm.studies.pages.dialogues import to_last_answer
from jaxmarl_llm.training import setup, supervised, warm_start
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import TinySize
from jaxmarl_llm.training.setup import Model, for_pretrained
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.view.records import read
from tests.support.families import CONFIG as SMALL
from tests.support.families import weights
from tests.support.toys import ByteTokenizer

GAME = MatrixGame(rounds=2)
RECIPE = Recipe(
    GAME,
    seats=(("a", "b"),),
    advantage=estimator(advantages.rloo, per_agent=True),
    budget=1,
    groups=4,
    group_size=4,
    pretrained={"budget": 3, "groups": 4},
    size=TinySize(layers=1),
)
CONFIG = replace(SMALL, vocab_size=ByteTokenizer().vocab_size, max_position_embeddings=2048, num_hidden_layers=1)


def pretrained(recipe: Recipe, monkeypatch) -> Trainer:
    """A random transformer of bytes in place of a pretrained model, with an adapter for each policy."""
    monkeypatch.setattr(setup, "HFTokenizer", lambda *_, **__: ByteTokenizer())
    models = dict.fromkeys(recipe.learners, Model("random", lora=Lora(8, 16.0, ("*",))))
    load = lambda *_, **__: Loaded(CONFIG, weights(CONFIG), "")
    return Trainer(for_pretrained(recipe), [recipe.all_hparams], [0], models, load=load)


def played(trainer: Trainer, state=None) -> list[dict]:
    """The dialogues of a batch of games, as a run writes them; and the tokens of their rows, up to the last answer."""
    one = jax.tree.map(lambda x: x[0], jax.device_get(trainer.examine(state or trainer.init(), (0,), 0)))
    lines = []
    for name, rows in one.trajectory.rows.items():
        layout = trainer.rollout.layouts[name]
        for row in range(len(rows.tokens)):
            messages = to_last_answer(read(layout, one, name, row)["messages"])
            at, said = rows.prompt[row], np.flatnonzero(rows.loss_mask[row])
            first = rows.prompts.tokens[at, : rows.prompts.length[at]].tolist()
            about = {"policy": layout.policy_set.policies[rows.policy[row]], "set": name}
            tokens = rows.tokens[row, : rows.length[row]].tolist()
            lines.append({"messages": messages, **about, "tokens": (first, tokens), "said": said})
    return lines


def write(path: Path, lines: list[dict]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.long
@pytest.mark.parametrize("kind", ["tiny", "pretrained"])
def test_dialogues_of_play_have_the_tokens_of_play(kind, monkeypatch):
    trainer = Trainer(RECIPE, [RECIPE.all_hparams], [0]) if kind == "tiny" else pretrained(RECIPE, monkeypatch)
    for line in played(trainer):
        tokenizer = trainer.policy_sets[line["set"]].tokenizer
        first, cells = supervised.rows_of(tokenizer, line["messages"])
        tokens, spoken = [token for token, *_ in cells], [at for at, (_, said, _) in enumerate(cells) if said]
        assert first == line["tokens"][0] and tokens == line["tokens"][1][: len(tokens)]
        assert set(line["said"]) <= set(spoken) and [turn for *_, turn in cells][-1] == 1
        assert "".join(tokenizer.decode([tokens[at]]) for at in spoken if tokens[at] != tokenizer.end) == "".join(
            message["content"] for message in line["messages"] if message["role"] == "assistant"
        )


def answers(line: dict, word: str) -> dict:
    said = [{**m, "content": word if m["role"] == "assistant" else m["content"]} for m in line["messages"]]
    return {"messages": said, "policy": line["policy"]}


@pytest.mark.long
def test_forced_answers_are_words_too():
    """A donor without coins has one answer, which nobody samples."""
    game = DonorGame()
    recipe = replace(RECIPE, game=game, seats=(("me",) * game.agents,), groups=2, group_size=2)
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    forced = 0
    for line in played(trainer):
        first, cells = supervised.rows_of(trainer.policy_sets["me"].tokenizer, line["messages"])
        tokens = first + [token for token, *_ in cells]
        assert tokens == reduce(operator.iadd, line["tokens"], [])[: len(tokens)]
        forced += sum(said for _, said, _ in cells) - len(line["said"])
    assert forced


def share(trainer: Trainer, state, name: str, word: str) -> float:
    """Of a policy's answers, those that are this word."""
    own = [line["messages"] for line in played(trainer, state) if line["policy"] == name]
    said = [m["content"] for messages in own for m in messages if m["role"] == "assistant"]
    return np.mean([text == word for text in said])


@pytest.mark.long
def test_each_policy_imitates_its_dialogues(tmp_path):
    """In the file `a` says the first label and `b` the second."""
    lines = played(Trainer(RECIPE, [RECIPE.all_hparams], [0]))
    words = dict(zip("ab", GAME.labels, strict=True))
    file = write(tmp_path / "d.jsonl", [answers(line, words[line["policy"]]) for line in lines])
    taught = replace(RECIPE, warm_start=file, warm_start_updates=40)
    trainer = Trainer(taught, [taught.all_hparams], [0])
    for name, word in words.items():
        assert share(trainer, trainer.init(), name, word) > 0.9


@pytest.mark.long
def test_adapters_imitate_their_dialogues(tmp_path, monkeypatch):
    monkeypatch.setattr(warm_start, "ADAPTER_RATE", 5e-2)
    lines = played(pretrained(RECIPE, monkeypatch))
    words = dict(zip("ab", GAME.labels, strict=True))
    file = write(tmp_path / "d.jsonl", [answers(line, words[line["policy"]]) for line in lines])
    recipe = replace(RECIPE, pretrained={**RECIPE.pretrained, "warm_start": file, "warm_start_updates": 25})
    seen: list[dict] = []
    trainer = pretrained(recipe, monkeypatch)
    state = trainer.init(lambda number, metrics: seen.append({name: float(x[0]) for name, x in metrics.items()}))
    for name in "ab":
        assert seen[-1][f"cross_entropy/{name}"] < seen[0][f"cross_entropy/{name}"] - 0.5
    for name, word in words.items():
        assert share(trainer, state, name, word) > 0.6  # the logits of a random base are small


LOCKS = Recipe(
    LockChain(2, turns=3),
    seats=(("learner",),),
    advantage=None,
    loss=preference,
    reference=True,
    hparams={"beta": 0.5, "learning_rate": 3e-3},
    budget=1,
    groups=4,
    group_size=4,
    size=TinySize(layers=1),
)


@pytest.mark.long
def test_preferences_are_learnt_as_dpo_says(tmp_path):
    alone = replace(LOCKS, advantage=estimator(advantages.rloo), loss=RECIPE.loss)
    lines = played(Trainer(alone, [alone.all_hparams], [0]))
    pairs = []
    for line in lines:
        first = [m["role"] for m in line["messages"]].index("assistant")
        prompt, rest = line["messages"][:first], line["messages"][first:]
        chosen, rejected = (answers({**line, "messages": rest}, word)["messages"] for word in "AB")
        pairs.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    file = write(tmp_path / "p.jsonl", pairs)
    recipe = replace(LOCKS, step=partial(preference_step, path=file))
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    state = start = jax.device_get(trainer.init())
    seen = []
    for number in range(12):
        state, metrics = trainer.update(state, number)
        seen.append({name: float(x[0]) for name, x in metrics.items()})
    np.testing.assert_allclose(seen[0]["loss"], np.log(2), atol=1e-5)
    assert seen[0]["margin/learner"] == pytest.approx(0, abs=1e-5)
    assert seen[-1]["accuracy/learner"] == 1 and seen[-1]["loss"] < 0.3

    # the loss of all pairs by the definition, from log-probabilities over the whole vocabulary
    policy_set = trainer.policy_sets["learner"]
    data = supervised.pairs(file, policy_set, ("learner",))
    scorer = Scorer(policy_set.config, None, masked=False)
    of = jax.jit(lambda run: scorer(run.learners.weights["learner"]["policy"], data.rows, data.sampled).logp.sum(1))
    now, before = (np.asarray(of(jax.tree.map(lambda x: x[0], run))) for run in (jax.device_get(state), start))
    margin = 0.5 * ((now - before)[::2] - (now - before)[1::2])
    assert (margin > 0).all() and seen[-1]["margin/learner"] == pytest.approx(margin.mean(), rel=0.3)
    run = jax.tree.map(lambda x: x[0], jax.device_get(state))
    scores = scorer(run.learners.weights["learner"]["policy"], data.rows, data.sampled)
    reference = scorer(run.initial["learner"], data.rows, data.sampled).logp
    batch = dpo.batch_of(data.rows, data.sampled, reference)
    loss, _ = preference(scores, batch, {"beta": 0.5})
    np.testing.assert_allclose(loss.sum / loss.count, np.log1p(np.exp(-margin)).mean(), rtol=1e-4)
    action = np.asarray(trainer.play(state).episodes.action[0][:, 0, 0])
    assert (action == 0).mean() > 0.6


@pytest.mark.slow
def test_a_pair_is_never_torn_apart(tmp_path):
    """Whatever the micro-batches: two seats, so that there are more prompts in a game's batch than pairs in a part."""
    a, b = ({"role": "assistant", "content": word} for word in GAME.labels)
    told = played(Trainer(RECIPE, [RECIPE.all_hparams], [0]))[0]["messages"][:2]
    file = write(tmp_path / "p.jsonl", [{"prompt": told, "chosen": [x], "rejected": [y]} for x, y in ((a, b), (b, a))])

    def checked(scores, batch, hparams):
        first, second = batch.episode[0::2, None], batch.episode[1::2, None]
        apart = jnp.broadcast_to((first + 1 != second) | (first % 2 == 1), batch.mask[::2].shape)
        loss, metrics = preference(scores, batch, hparams)
        return loss, metrics | {"apart": mean_of(apart, batch.mask[::2])}

    for size, own in ((2, {"grad_accumulation": 2}), (6, {"minibatches": 2}), (4, {"minibatches": 2, "epochs": 2})):
        recipe = replace(
            RECIPE,
            seats=(("me", "me"),),
            advantage=None,
            loss=checked,
            reference=True,
            hparams={"beta": 0.1},
            group_size=size,
            step=partial(preference_step, path=file),
            **own,
        )
        trainer = Trainer(recipe, [recipe.all_hparams], [0])
        _, metrics = trainer.update(trainer.init(), 0)
        assert metrics["apart/me"][0] == 0 and metrics["skipped"][0] == 0


def test_a_file_that_cannot_be_learnt_from_is_one_sentence(tmp_path):
    policy_set = Trainer(RECIPE, [RECIPE.all_hparams], [0]).policy_sets["a"]
    user, said = {"role": "user", "content": "Choose."}, {"role": "assistant", "content": GAME.labels[0]}

    def refused(text: str, match: str) -> None:
        (tmp_path / "x.jsonl").write_text(text)
        with pytest.raises(ValueError, match=match):
            supervised.dialogues(tmp_path / "x.jsonl", policy_set, ("a",))

    good = json.dumps({"messages": [user, said]})
    refused("", "has no lines")
    refused(good + "\n{oops", "line 2 is no JSON")
    refused("[1]", "line 1 is no JSON object")
    refused(json.dumps({"text": 1}), "line 1: lacks 'messages'")
    refused(json.dumps({"messages": [said, user]}), "line 1: user and assistant take turns")
    refused(json.dumps({"messages": [user, said] * 600}), "line 1 has .* tokens: the context holds 512")
    refused(json.dumps({"messages": [user, said], "policy": "b"}), "no dialogue for 'a'")
    refused(json.dumps({"messages": [user, {**said, "content": ""}]}), "line 1: the assistant is told and says")
    refused(json.dumps({"messages": [{**user, "content": ""}, said]}), "line 1: the assistant is told and says")
    refused(json.dumps({"messages": [user, {**said, "content": None}]}), "line 1: the content of a message is a text")
    (tmp_path / "y.jsonl").write_bytes(b"\xef\xbb\xbf" + f"{good}\n\n{good}\r\n".encode())
    assert len(supervised.dialogues(tmp_path / "y.jsonl", policy_set, ("a",)).by_policy[0]) == 2
    with pytest.raises(ValueError, match="is a Path"):
        Trainer(replace(RECIPE, warm_start="x.jsonl"), [RECIPE.all_hparams], [0])
    with pytest.raises(ValueError, match="no file of dialogues"):
        supervised.dialogues(tmp_path / "nowhere.jsonl", policy_set, ("a",))
    with pytest.raises(ValueError, match="an even group_size"):
        odd = replace(LOCKS, group_size=3, step=partial(preference_step, path=tmp_path / "x.jsonl"))
        Trainer(odd, [odd.all_hparams], [0]).update(Trainer(odd, [odd.all_hparams], [0]).init(), 0)
