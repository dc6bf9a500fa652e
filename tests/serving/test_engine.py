"""Calls that share the slots of an engine are answered as each alone, and as the policy's distribution says."""

import jax
import numpy as np
import pytest

from jaxmarl_llm.models import decoder
from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.rollout.team import PolicySet
from jaxmarl_llm.serving import engine as engines
from jaxmarl_llm.serving.engine import Engine
from jaxmarl_llm.text.grammar import Choice
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training.setup import tiny
from tests.support.serving import Said, call_of, engine_of, policies, rescore, tokenizer_of

SETTINGS = (Sampling(), Sampling(0.6, top_k=9), Sampling(1.2, top_p=0.8), Sampling(min_p=0.05), Sampling(0))
CHOICES = (Choice(((0, "cooperate"), (1, "cooper"), (2, "defect"))),)


@pytest.fixture(scope="module")
def engine():
    return engine_of("toy", adapters=2)


def random_calls(count: int, seed: int = 0) -> list:
    generator = np.random.default_rng(seed)
    vocabulary = tokenizer_of("toy").vocab_size
    return [
        call_of(
            generator.integers(0, vocabulary, generator.integers(1, 60)).tolist(),
            seed=index,
            budget=int(generator.integers(8, 24)),
            policy=index % 3 - 1,
            sampling=SETTINGS[index % len(SETTINGS)],
            **({"grammar": CHOICES} if index % 4 == 3 else {}),
        )
        for index in range(count)
    ]


def scores_of(calls: list, answers: list, kind: str = "toy") -> list[np.ndarray]:
    facts = [(call.sampling, call.grammar, call.budget, call.policy) for call in calls]
    pairs = zip(calls, answers, facts, strict=True)
    return rescore(kind, 2, [Said(call.tokens, answer.tokens, *fact) for call, answer, fact in pairs])


def test_answers_are_the_same_alone_and_have_the_scorers_probabilities(engine):
    calls = random_calls(20)
    answers = engine.run(calls)
    apart = [np.abs(a.logp - b) for a, b in zip(answers, scores_of(calls, answers), strict=True)]
    assert max(x.max() for x in apart) < 2e-4 and np.median(np.concatenate(apart)) < 1e-5
    spelled = tokenizer_of("toy").token_bytes
    for index, (call, answer) in enumerate(zip(calls, answers, strict=True)):
        assert len(answer.tokens) <= call.budget
        if call.grammar is CHOICES:
            text = b"".join(spelled[token] or b"" for token in answer.tokens)
            assert answer.finish == "end" and text in (b"cooperate", b"cooper", b"defect")
        if index % 5 == 0:
            assert engine.run([call])[0].tokens == answer.tokens
    assert {answer.finish for answer in answers} == {"end", "length"}


@pytest.mark.long
def test_a_model_with_a_state_continues_only_what_a_slot_has_read_to_its_end():
    """Of a row that another begins with, of its middle, of one that a stop cut, and of slots that had other rows."""
    engine = engine_of("state", adapters=2)
    first = random_calls(9, seed=3)
    calls, answers = list(first), engine.run(first)
    rows = [[*call.tokens, *answer.tokens] for call, answer in zip(calls, answers, strict=True)]
    policies = [call.policy for call in calls]
    goes_on = [
        call_of([*row, 5, 6], seed=1, policy=policy) for row, policy in zip(rows[-4:], policies[-4:], strict=True)
    ]
    read = engine.tokens_read
    answers += engine.run(goes_on)
    assert engine.tokens_read - read <= 4 * 3
    last = zip(rows[-4:], policies[-4:], strict=True)  # the slots have these
    forked = [call_of([*row[: len(row) // 2], 7], seed=2, policy=p) for row, p in last]
    same = [call_of(rows[0], seed=number, policy=policies[0]) for number in (3, 4)]
    stopped = call_of(
        rows[1], seed=5, budget=20, policy=policies[1], stop=lambda tokens: 2 if len(tokens) > 4 else None
    )
    for more in (forked, same, [stopped]):
        answers += engine.run(more)
    shortened = [call_of([*rows[1], *answers[-1].tokens, 9], seed=6, policy=policies[1])]
    answers += engine.run(shortened)
    calls += [*goes_on, *forked, *same, stopped, *shortened]
    apart = [np.abs(a.logp - b).max() for a, b in zip(answers, scores_of(calls, answers, "state"), strict=True)]
    assert len(apart) == len(calls) and max(apart) < 2e-4
    assert engine.run([calls[4]])[0].tokens == answers[4].tokens


def test_a_row_that_goes_on_reads_only_what_is_new_wherever_its_slot_is(engine):
    prompt = list(range(30, 80))
    first = call_of(prompt, seed=1, policy=1)
    (answer,) = engine.run([first])
    row = [*prompt, *answer.tokens, 7, 8, 9]
    read = engine.tokens_read
    later = call_of(row, seed=2, policy=1)
    (after,) = engine.run([later])
    assert engine.tokens_read - read <= 4  # the last token said, and three more
    branches = [call_of([*row, token], seed=token, policy=1) for token in range(5)]
    read = engine.tokens_read
    forked = engine.run(branches)
    assert engine.tokens_read - read <= 5 * 4  # slots without the row copy it
    other = call_of(row, seed=2, policy=0)
    read = engine.tokens_read
    engine.run([other])
    assert engine.tokens_read - read == len(row)  # another policy has another cache
    for call, said in zip([first, later, *branches], [answer, after, *forked], strict=True):
        engine.use(policies("toy", 2)[1])  # forgets the caches
        (alone,) = engine.run([call])
        assert said.tokens == alone.tokens
        np.testing.assert_allclose(said.logp, alone.logp, atol=2e-4)


@pytest.mark.long
def test_a_model_with_shared_keys_and_windows_answers_in_any_slot_as_the_scorer_says():
    """Rows that go on, that copy another slot's keys and that begin anew, all longer than the windows."""
    engine = engine_of("sharing", adapters=2)
    calls = random_calls(9, seed=3)
    answers = engine.run(calls)
    rows = [[*call.tokens, *answer.tokens] for call, answer in zip(calls, answers, strict=True)]
    last = zip(rows[-4:], [call.policy for call in calls[-4:]], strict=True)  # the slots have these
    more = [call_of([*row[: len(row) - cut], 7], seed=cut, policy=p) for row, p in last for cut in (0, 9)]
    read = engine.tokens_read
    answers += engine.run(more)
    assert engine.tokens_read - read < sum(len(call.tokens) for call in more) / 2
    calls += more
    apart = [np.abs(a.logp - b).max() for a, b in zip(answers, scores_of(calls, answers, "sharing"), strict=True)]
    assert len(apart) == len(calls) and max(apart) < 2e-4
    assert engine.run([calls[4]])[0].tokens == answers[4].tokens


@pytest.mark.long
def test_rows_that_fill_the_context_are_exact_and_widen_no_further(engine):
    calls = [call_of(list(range(seed, 200)) * 3, seed=seed, budget=16) for seed in (35, 36, 40)]
    calls = [call_of(call.tokens[:496], seed=seed, budget=16) for seed, call in enumerate(calls)]
    answers = engine.run([*calls, *random_calls(6)])[:3]
    assert engine._arrays.capacity == engine.context + engines.CHUNK
    for said, scored in zip(answers, scores_of(calls, answers), strict=True):
        np.testing.assert_allclose(said.logp, scored, atol=2e-4)


def test_equal_beginnings_are_read_once(engine):
    read = engine.tokens_read
    prompt = [11] * 70
    answers = engine.run([call_of(prompt, seed=seed) for seed in range(3)])
    assert engine.tokens_read - read <= len(prompt) + 2
    assert len({tuple(answer.tokens) for answer in answers}) == 3


def test_a_stop_a_cancelled_call_and_the_budget_end_an_answer(engine):
    calls = [
        call_of([5, 6], seed=4, budget=40, stop=lambda tokens: 3 if len(tokens) >= 3 else None),
        call_of([5, 6], seed=5, budget=40, cancelled=lambda: True),
        call_of([5, 6], seed=6, budget=3),
    ]
    stopped, cancelled, cut = engine.run(calls)
    assert (stopped.finish, len(stopped.tokens), len(stopped.logp)) == ("stop", 3, 3)
    assert (cancelled.finish, cancelled.tokens) == ("cancelled", [])
    assert cut.finish in ("length", "end") and len(cut.tokens) <= 3
    assert not engine.busy


def test_a_call_that_is_cancelled_while_it_speaks_frees_its_slot(engine):
    said = []
    call = call_of([9], seed=1, budget=300, said=lambda call, answer: said.append(1), cancelled=lambda: bool(said))
    (answer,) = engine.run([call])
    assert answer.finish == "cancelled" and len(answer.tokens) == engines.AT_A_TIME and not engine.busy


def test_the_most_probable_tokens_of_a_place_contain_the_greedy_one(engine):
    (answer,) = engine.run([call_of([1, 2], seed=3, budget=5, top=True)])
    (greedy,) = engine.run([call_of([1, 2], seed=3, budget=1, sampling=Sampling(0))])
    assert answer.top[0].tokens[0] == greedy.tokens[0]
    for place, top in enumerate(answer.top):
        assert list(top.logp) == sorted(top.logp, reverse=True)
        known = dict(zip(top.tokens, top.logp, strict=True))
        token, logp = answer.tokens[place], answer.logp[place]
        assert known.get(token, logp) == logp and logp <= top.logp[0]


def test_a_failure_ends_its_calls_and_the_engine_goes_on():
    engine, ends = engine_of("toy", adapters=2), []

    def fail(tokens):
        raise RuntimeError("a stop that fails")

    keep = lambda call, answer: ends.append(answer)
    engine.submit(call_of([3], stop=fail, done=keep))
    engine.submit(call_of([4], done=keep))
    with pytest.raises(RuntimeError, match="a stop that fails"):
        engine.step()
    engine.abandon("It failed.")
    assert [answer.error for answer in ends] == ["It failed."] * 2 and not engine.busy
    assert engine.run([call_of([3])])[0].tokens


@pytest.mark.long
def test_a_policy_of_symbols_without_an_end_is_cut_off_by_the_budget():
    tokenizer = SymbolTokenizer(["left", "right", "You see a fork."], heard=["You see a fork."])
    assert tokenizer.end is None
    config = tiny(tokenizer.vocab_size)
    params = jax.jit(lambda key: decoder.init(config, key))(jax.random.key(0))
    engine = Engine(PolicySet(tokenizer, ("a",), config), {"params": params}, slots=1)
    (answer,) = engine.run([call_of(tokenizer.encode("You see a fork."), budget=2, top=True)])
    assert answer.finish == "length" and {tokenizer.decode([token]) for token in answer.tokens} <= {"left", "right"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"prompt": []}, "needs a token"),
        ({"prompt": [1] * 505}, "together they may have 512"),
        ({"prompt": [1], "budget": 0}, "the answer up to 0"),
        ({"prompt": [1], "budget": 1, "grammar": CHOICES}, "The shortest answer that is possible has"),
    ],
)
def test_a_call_that_cannot_be_answered_is_refused(engine, options, says):
    with pytest.raises(ValueError, match=says):
        engine.submit(call_of(**options))
    assert not engine.busy


def test_settings_of_an_engine_are_checked():
    with pytest.raises(ValueError, match="power of two"):
        engine_of("toy", slots=3)
    with pytest.raises(ValueError, match="context is from 2"):
        engine_of("toy", context=513)
    with pytest.raises(ValueError, match="scripted"):
        Engine(PolicySet(tokenizer_of("toy"), ("a",)), {})


@pytest.mark.long
def test_new_weights_are_used_from_the_next_call_on(engine):
    weights = policies("toy", 2)[1]
    call = call_of([20, 21, 22], seed=8)
    before = engine.run([call])[0]
    engine.use({**weights, "params": jax.tree.map(lambda x: 1.1 * x, weights["params"])})
    changed = engine.run([call])[0]
    engine.use(weights)
    assert engine.run([call])[0].tokens == before.tokens
    assert changed.logp[0] != before.logp[0]
