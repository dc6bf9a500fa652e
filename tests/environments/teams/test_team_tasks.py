"""Solver and verifier, pioneer and observer: against plain Python that reads what the seats are told."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.tasks import Arithmetic, Boxes, Questions
from jaxmarl_llm.environments.teams.team_tasks import APPROVE, REJECT, PioneerObserver, SolverVerifier
from jaxmarl_llm.text.grammar import automaton
from tests.support.team_plays import acted, close, deals_are_what_reset_draws, played, row, totals

SOLVER, VERIFIER = 0, 1
CAPITALS = Questions((("Capital of France?", "Paris"), ("Capital of Italy?", "Rome"), ("Paris is in?", "France")))
LOOPS = (SolverVerifier(), SolverVerifier(CAPITALS, loops=2))


def solved(text: str) -> str:
    """The right answer to the question that a seat was told."""
    for prompt, answer in CAPITALS.pairs:
        if text.endswith(prompt):
            return answer
    if text.endswith("Which is full?"):
        return ({*"1234"} - {*re.findall(r"Box (\d) is empty", text)}).pop()
    a, operation, b, modulus = re.fullmatch(r".*What is \((\d+) (.) (\d+)\) mod (\d+)\?", text).groups()
    a, b = int(a), int(b)
    return f"{({'+': a + b, '-': a - b, '*': a * b}[operation]) % int(modulus):0{len(str(int(modulus) - 1))}d}"


@pytest.mark.parametrize(
    "tasks", (Arithmetic(), Arithmetic(13, "-*"), CAPITALS, Boxes(4)), ids=("plain", "thirteen", "file", "boxes")
)
def test_every_task_has_the_right_answer(tasks):
    phrases, answers = jax.jit(jax.vmap(tasks.task))(jnp.arange(tasks.size))
    texts = ["".join(field[i] for field, i in zip(tasks.fields, row, strict=True)) for row in np.asarray(phrases)]
    assert len(set(texts)) == tasks.size
    assert [tasks.answers[i] for i in answers] == [solved(text) for text in texts]


@pytest.mark.parametrize("boxes", (3, 4, 5))
def test_halves_of_the_orders_are_apart_and_have_each_box_everywhere(boxes):
    orders, half = Boxes(boxes).orders, Boxes(boxes).size // 2
    signs = [round(np.linalg.det(np.eye(boxes)[order])) for order in orders]
    assert signs == [1] * half + [-1] * half and len({*map(tuple, orders)}) == 2 * half
    for part in (orders[:half], orders[half:]):
        assert all((np.bincount(part[:, place]) == half // boxes).all() for place in range(boxes))


@pytest.mark.parametrize("game", LOOPS, ids=("arithmetic", "questions"))
@pytest.mark.parametrize("players", (("random",), ("correct", "random"), ("random", "correct"), ("correct",)))
def test_solver_and_verifier_against_python(game, players):
    record = played(game, *players)
    for g in range(120):
        (rules, *asked), (other, *verify) = (row(game, record, g, seat) for seat in (SOLVER, VERIFIER))
        said, truth = acted(game, record, g), solved(rules)
        assert solved(other) == truth
        told: tuple[list[str], list[str]] = ([], [])
        rewards, answer = [], ""
        for t, (seat, word) in enumerate(said):
            assert seat == t % 2
            told[SOLVER].append(("Rejected. Answer again." if t else "Answer.") if seat == SOLVER else "")
            told[VERIFIER].append(f"They answer {answer}. Approve or reject?" if seat == VERIFIER else "")
            if seat == SOLVER:
                answer = word
                rewards.append([[0, 0], [0, 0]])
                continue
            last = word == "approve" or t == 2 * game.loops - 1
            correct = float(last and answer == truth)
            rewards.append([[correct, 0], [correct, (word == "approve") == (answer == truth)]])
            assert last == (t == len(said) - 1)
        assert (asked, verify) == told
        assert record["reward"][: len(said), g].tolist() == rewards
        assert not record["reward"][len(said) :, g].any()
        assert record["after"].terminated[len(said) - 1, g] and not record["after"].acting[-1, g].any()


@pytest.mark.parametrize("game", LOOPS, ids=("arithmetic", "questions"))
def test_a_perfect_team_earns_all_and_a_random_one_by_chance(game):
    perfect = totals(played(game, "correct"))
    assert (perfect[:, :, 0] == 1).all() and (perfect[:, VERIFIER, 1] == 1).all()
    chance = totals(played(game, "random"))
    assert close(chance[:, 0, 0], 1 / len(game.tasks.answers)) and (chance[:, 0, 0] == chance[:, 1, 0]).all()
    verdicts = sum(0.5**loop for loop in range(game.loops))  # expected loops, of which half are judged rightly
    assert close(chance[:, VERIFIER, 1], verdicts / 2)


def test_a_verifier_who_is_right_finds_the_answer_if_any_of_the_loops_has_it():
    wins = totals(played(LOOPS[0], "random", "correct"))
    assert close(wins[:, 0, 0], 1 - 0.9**3) and close(wins[:, VERIFIER, 1], 1 + 0.9 + 0.81)
    gullible = totals(played(LOOPS[0], "correct", "random"))
    assert (gullible[:, 0, 0] == 1).all()


def test_a_malformed_verdict_is_never_an_approval():
    """Dr. MAS reads whatever is not a rejection as approval."""
    game = SolverVerifier()
    verdict = automaton(game.grammars[VERIFIER])
    for said in ("", "approv", "approved", "Approve", " approve", "<verify>approve", "not approve", "rejec", "yes"):
        state = 0
        for byte in said.encode():
            state = verdict.next[state, byte] if state >= 0 else -1
        assert state < 0 or verdict.accepts[state] < 0
    step, states = jax.jit(game.step), played(game, "correct")["state"]  # the solver has found the answer in turn 1
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf[1, 0]), states)
    view = game.view(state)
    assert np.flatnonzero(view.legal[VERIFIER]).tolist() == [APPROVE, REJECT]
    for verdict, over in ((-1, False), (2, False), (9, False), (REJECT, False), (APPROVE, True)):
        _, after, reward = step(state, jnp.array([0, verdict], jnp.int32), jax.random.key(0))
        assert bool(after.terminated) == over and bool(reward.any()) == over


def test_a_verifier_is_not_told_the_answer_but_by_the_solver():
    """Two questions with one text but for the operands: what is told to the verifier is the question and the word."""
    game, record = LOOPS[0], played(LOOPS[0], "random")
    for g in range(100):
        rules, *told = row(game, record, g, VERIFIER)
        numbers = re.findall(r"\d+", rules.rpartition("What is")[2])
        assert len(numbers) == 3  # two operands and the modulus
        said = [word for seat, word in acted(game, record, g) if seat == SOLVER]
        assert [n for text in told for n in re.findall(r"\d+", text)] == said


@pytest.mark.parametrize("game", (*LOOPS, PioneerObserver(CAPITALS, "deal"), PioneerObserver(CAPITALS, "never")))
def test_deals_are_all_starts_and_reset_draws_them_evenly(game):
    assert deals_are_what_reset_draws(game)


@pytest.mark.parametrize("exchange", ("group", "deal", "never"))
def test_pioneer_and_observer_against_python(exchange):
    game = PioneerObserver(exchange=exchange)
    record = played(game, "random")
    pioneers = [acted(game, record, g)[0][0] for g in range(400)]
    if exchange == "deal":
        assert close(np.array(pioneers), 0.5)
    else:
        assert pioneers == [g % 2 if exchange == "group" else 0 for g in range(400)]
    for g, pioneer in enumerate(pioneers[:120]):
        rows = [row(game, record, g, seat) for seat in range(2)]
        (first, answer), (second, reply) = acted(game, record, g)
        assert {first, second} == {0, 1}
        assert rows[pioneer][0].startswith("You answer a question first")
        assert rows[second][0].startswith("A partner answers a question")
        assert rows[pioneer][1:] == ["Answer.", ""]
        assert rows[second][1:] == ["", f"They answer {answer}. And you?"]
        truth = solved(rows[0][0])
        assert solved(rows[1][0]) == truth
        expected = np.zeros((2, 2, 1))
        expected[0, first], expected[1, second] = answer == truth, reply == truth
        assert np.array_equal(record["reward"][:, g], expected)
        assert record["view"].role[0, g].tolist() == [int(seat != pioneer) for seat in range(2)]


def test_each_of_the_pair_is_paid_for_its_own_answer():
    game = PioneerObserver()
    assert (totals(played(game, "correct")) == 1).all()
    assert close(totals(played(game, "random")), 0.1)
    pioneers = played(game, "follower")["view"].acting[0].argmax(1)
    alike = totals(played(game, "follower"))[..., 0]
    assert (alike[:, 0] == alike[:, 1]).all() and set(pioneers) == {0, 1}


def test_questions_are_read_from_a_file(tmp_path):
    path = tmp_path / "questions.jsonl"
    lines = ['{"prompt": "2+2?", "answer": 4}', "", '{"answer": "é\\u2028", "prompt": "x\\ny", "more": 1}']
    path.write_text("\n".join(lines) + "\r\n", "utf-8")
    assert Questions.read(path) == Questions((("2+2?", "4"), ("x\ny", "é\u2028")))


@pytest.mark.parametrize(
    ("line", "says"),
    (
        ('{"prompt": "b", "answer": "c"', "is not JSON"),
        ("\udcff", "is not JSON"),
        ('["b", "c"]', "must be"),
        ('{"prompt": "b"}', "must be"),
        ('{"prompt": "b", "answer": true}', "must be"),
        ('{"prompt": "", "answer": "c"}', "must be"),
        ('{"prompt": "a", "answer": "c"}', "an earlier line with 'x'"),
    ),
)
def test_a_bad_line_is_named(tmp_path, line, says):
    path = tmp_path / "questions.jsonl"
    path.write_bytes(f"{json.dumps({'prompt': 'a', 'answer': 'x'})}\n\n{line}\n".encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=f"line 3 .*{says}") as error:
        Questions.read(path)
    assert "\n" not in str(error.value)


def test_settings_that_cannot_be_are_named():
    for make, says in (
        (lambda: Arithmetic(1), "modulus must be at least 2, got 1"),
        (lambda: Arithmetic(operations="+/"), "operations must be"),
        (lambda: Arithmetic(operations="++"), "operations must be"),
        (lambda: Boxes(2), "boxes must be at least 3, got 2"),
        (lambda: Boxes(7), "720 questions already, got 7"),
        (lambda: Questions(()), "two different answers"),
        (lambda: Questions((("a", ""),)), "needs a prompt and an answer"),
        (lambda: SolverVerifier(loops=0), "loops must be at least 1, got 0"),
        (lambda: PioneerObserver(exchange="x"), "exchange must be"),
    ):
        with pytest.raises(ValueError, match=says):
            make()
