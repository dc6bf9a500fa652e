"""Reading games before playing any: a language model's loss over all that is heard and said.

The long cases compile play and reading; `test_contract` traces the studies that read, and the short ones check their
words. The slow case repeats the law of weights with micro-batches.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxmarl_llm.environments.classic.board_games import TicTacToe
from jaxmarl_llm.environments.classic.card_games import KuhnPoker, LeducPoker
from jaxmarl_llm.keys import GAME, START, UPDATE, key_for
from jaxmarl_llm.methods.pretraining import reading
from jaxmarl_llm.methods.several_games import one_vocabulary, together
from jaxmarl_llm.models import decoder
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.training.warm_start import scripted_games, teacher_of

MOST, RLOO = 20, estimator(advantages.rloo, per_agent=True)
BOOK = Recipe(KuhnPoker(), (("me", "me"),), RLOO, groups=2, group_size=2, warm_start=(("random", "honest"),))
BOARDS = replace(BOOK, game=TicTacToe(), warm_start=(("random", "random"),))
GAMES = {"kuhn": BOOK, "tic_tac_toe": BOARDS}
PRIOR = reading(GAMES, MOST, updates=2, hparams={"learning_rate": optax.linear_schedule(1e-2, 0.0, 4)})
PLAY = together({"kuhn": replace(BOOK, warm_start=())}, also=(TicTacToe(),), warm_start=PRIOR)


def trainer_of(recipe):
    return Trainer(recipe, [recipe.all_hparams], [0])


@pytest.mark.long
def test_each_game_weighs_alike_and_each_of_its_tokens_is_predicted_from_all_before():
    recipe = replace(PRIOR, tokenizer=PLAY.tokenizer)
    trainer = trainer_of(recipe)
    state = trainer.init()
    weights = jax.tree.map(lambda x: np.asarray(x[0]), state.learners.weights["me"]["policy"])
    student, event = trainer.policy_sets["me"], key_for(trainer.keys[0], UPDATE, 0)
    means = []
    for i, own in enumerate(GAMES.values()):
        teacher = teacher_of(own, student.tokenizer, ("me",), own.groups, own.group_size)
        rows, _ = jax.jit(partial(scripted_games, teacher))(key_for(event, GAME, i))
        found = []
        for r in range(len(rows.tokens)):
            o = int(rows.prompt[r])
            prompt = np.asarray(rows.prompts.tokens[o, : int(rows.prompts.length[o])])
            own_tokens = np.asarray(rows.tokens[r, : min(MOST, int(rows.length[r]))])
            text = np.concatenate([prompt, own_tokens])
            hidden, _ = decoder.forward(student.config, weights, jnp.asarray(text[None]))
            logits = np.asarray(decoder.logits(student.config, weights, hidden), np.float64)[0]
            for at in range(len(prompt), len(text)):
                row = logits[at - 1]
                found.append(np.log(np.exp(row - row.max()).sum()) + row.max() - row[text[at]])
        means.append(np.mean(found))
    _, metrics = trainer.update(state, 0)
    for name, mean in zip(GAMES, means, strict=True):
        np.testing.assert_allclose(metrics[f"{name}/cross_entropy"][0], mean, rtol=1e-4)
    np.testing.assert_allclose(metrics["loss"][0], np.mean(means), rtol=1e-4)
    assert abs(metrics["kuhn/cross_entropy"][0] / metrics["tic_tac_toe/cross_entropy"][0] - 1) > 1e-3


@pytest.mark.slow
def test_games_weigh_alike_in_micro_batches_too():
    """A game's tokens are counted in the whole batch: hands of poker differ in length between micro-batches."""
    hands = replace(BOOK, warm_start=(("random", "random"),), groups=4, group_size=1)
    book, found = reading({"kuhn": hands, "boards": replace(hands, game=TicTacToe())}, MOST), {}
    for parts in (1, 4):
        trainer = trainer_of(replace(book, tokenizer=PLAY.tokenizer, grad_accumulation=parts))
        found[parts] = trainer.update(trainer.init(), 0)[1]
    for metric in ("loss", "gradient_norm/me"):
        np.testing.assert_allclose(found[4][metric], found[1][metric], rtol=1e-5)


@pytest.mark.long
def test_who_read_begins_to_play_with_what_it_read():
    play = trainer_of(PLAY)
    reader = trainer_of(replace(PRIOR, tokenizer=PLAY.tokenizer))
    read = reader.init()
    reader.keys = jax.vmap(lambda key: key_for(key, START))(reader.keys)  # a warm start draws games of its own
    for number in range(PRIOR.updates):  # with a schedule
        read, _ = reader.update(read, number)
    begun = play.init()
    for a, b in zip(jax.tree.leaves(begun.learners.weights), jax.tree.leaves(read.learners.weights), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_games_in_words_share_them():
    kuhn, leduc = KuhnPoker(), LeducPoker()
    words = one_vocabulary(None, games=(), in_words=(kuhn, leduc))
    pieces = lambda text: [words.strings[i] for i in words.encode(text)]
    assert pieces(" Your card is K.") == [" Your", " card", " is", " K", "."]
    assert pieces(" Your card is K of hearts.")[:4] == pieces(" Your card is K.")[:4]
    assert len(words.encode(leduc.rules[0][0])) == 1
    alone = one_vocabulary(None, games=(kuhn, leduc))
    assert len(alone.encode(" Your card is K of hearts.")) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"seats": (("me", "other"),)}, "One policy reads all games"), ({"warm_start": ()}, "needs a warm_start")],
)
def test_games_that_cannot_be_read_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        reading({"kuhn": BOOK, "other": replace(BOARDS, **changes)}, MOST)
    with pytest.raises(ValueError, match="most must be at least 1"):
        reading(GAMES, 0)
