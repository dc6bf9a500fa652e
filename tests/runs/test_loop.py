"""A run that was stopped and goes on equals one that was not; metrics come one step late; signals end a run cleanly."""

import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxmarl_llm.runs.checkpoint import LAST_TWO, Checkpoints, Keep
from jaxmarl_llm.runs.log import RunLog
from jaxmarl_llm.runs.loop import stop_on_signals, train
from jaxmarl_llm.training.watch import NonFiniteError

ROOT = Path(__file__).parents[2]
SEEDS = 2
ADAM = optax.adam(0.1)


def make_state():
    params = {"w": jnp.ones((SEEDS, 3))}
    return {"params": params, "optimiser": ADAM.init(params), "key": jax.random.split(jax.random.key(0), SEEDS)}


@jax.jit
def update(state, step):
    noise = jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, step), (3,)))(state["key"])

    def loss(params):
        each = ((params["w"] - noise) ** 2).sum(-1)
        return each.sum(), each

    (_, each), grads = jax.value_and_grad(loss, has_aux=True)(state["params"])
    changes, optimiser = ADAM.update(grads, state["optimiser"])
    keys = jax.vmap(lambda key: jax.random.fold_in(key, 1))(state["key"])
    new = {"params": optax.apply_updates(state["params"], changes), "optimiser": optimiser, "key": keys}
    return new, {"loss": each, "step_squared": step * step}


def step_fn(step, state):
    return update(state, jnp.int32(step))


def run(directory, steps, step_fn=step_fn, keep=LAST_TWO, **settings):
    checkpoints = Checkpoints(directory, {}, keep, resume=True)
    start, state = checkpoints.restore(make_state()) or (0, make_state())
    with RunLog(directory, range(SEEDS), {}) as log:
        log.truncate(start)
        return train(step_fn, state, start=start, steps=steps, log=log, checkpoints=checkpoints, **settings)


def assert_same_run(a, b, a_state, b_state):
    assert (a / "metrics.jsonl").read_bytes() == (b / "metrics.jsonl").read_bytes()
    assert jax.tree.structure(a_state) == jax.tree.structure(b_state)
    for x, y in zip(jax.tree.leaves(a_state), jax.tree.leaves(b_state), strict=True):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert x.dtype == y.dtype and np.array_equal(x, y)


def test_a_resumed_run_equals_an_unbroken_one(tmp_path):
    whole, finished = run(tmp_path / "whole", 9)
    assert finished
    run(tmp_path / "broken", 4)
    resumed, finished = run(tmp_path / "broken", 9)
    assert finished
    assert_same_run(tmp_path / "whole", tmp_path / "broken", whole, resumed)
    assert len((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()) == 9 * SEEDS


class Crash(Exception):
    pass


@pytest.mark.parametrize("crash", range(2, 9))
def test_a_crash_costs_the_steps_since_the_last_checkpoint_and_no_more(tmp_path, crash):
    def failing(step, state):
        if step == crash:
            raise Crash
        return step_fn(step, state)

    whole, _ = run(tmp_path / "whole", 9, every=2)
    with pytest.raises(Crash):
        run(tmp_path / "broken", 9, failing, every=2)
    assert Checkpoints(tmp_path / "broken", {}, resume=True).steps()[-1] == crash // 2 * 2
    resumed, _ = run(tmp_path / "broken", 9, every=2)
    assert_same_run(tmp_path / "whole", tmp_path / "broken", whole, resumed)


def test_metrics_are_fetched_after_the_next_step_was_dispatched():
    order = []

    def dispatch(step, state):
        order.append(("dispatch", step))
        return step_fn(step, state)

    def on_step(step, metrics):
        assert all(isinstance(value, np.ndarray) for value in metrics.values())
        order.append(("report", step, int(metrics["step_squared"])))

    train(dispatch, make_state(), start=2, steps=5, on_step=on_step)
    assert order == [
        ("dispatch", 2),
        ("dispatch", 3),
        ("report", 2, 4),
        ("dispatch", 4),
        ("report", 3, 9),
        ("report", 4, 16),
    ]


def test_a_finished_run_does_nothing_more(tmp_path):
    run(tmp_path, 3)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    _, finished = run(tmp_path, 3, step_fn=None)
    assert finished and (tmp_path / "metrics.jsonl").read_bytes() == before


def test_stop_from_elsewhere_saves_the_step_in_flight(tmp_path):
    stop = threading.Event()

    def stopping(step, state):
        if step == 3:
            stop.set()
        return step_fn(step, state)

    _, finished = run(tmp_path, 9, stopping, stop=stop)
    assert not finished
    assert Checkpoints(tmp_path, {}, resume=True).steps() == [4]
    _, finished = run(tmp_path, 9, step_fn=None, stop=stop)
    assert not finished


def test_it_runs_in_another_thread(tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(run(tmp_path / "thread", 3)))
    thread.start()
    thread.join()
    main, _ = run(tmp_path / "main", 3)
    assert results[0][1]
    assert_same_run(tmp_path / "thread", tmp_path / "main", results[0][0], main)


def test_handlers_return_and_a_second_interrupt_is_heard():
    former = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with stop_on_signals() as stop:
        assert not stop.is_set()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == former


@pytest.mark.parametrize("every", [1, 4, 100])
def test_faults_one_after_the_other_end_a_run_and_others_do_not(tmp_path, every):
    """Lane 1 fails in steps 2 and 3 and then from 6 on: three in a row are 6 to 8, and one more may have begun."""
    checkpoints = Checkpoints(tmp_path, {}, Keep(last=99))

    def failing(step, state):
        state, metrics = step_fn(step, state)
        return state, metrics | {"skipped": jnp.array([step % 2 == 0, step in (2, 3) or step >= 6])}

    with RunLog(tmp_path, range(SEEDS), {}, print) as log, pytest.raises(NonFiniteError) as raised:
        train(failing, make_state(), start=0, steps=99, log=log, checkpoints=checkpoints, every=every, patience=3)
    step = raised.value.step
    assert step in (8, 9) and raised.value.lanes == [1]
    assert checkpoints.steps() == [done for done in range(1, step + 1) if done % every == 0]
    state, _ = train(step_fn, make_state(), start=0, steps=step + 1)
    np.testing.assert_array_equal(raised.value.state["params"]["w"], state["params"]["w"])
    _, finished = train(failing, make_state(), start=0, steps=20)
    assert finished


def test_faults_before_a_resumption_count(tmp_path):
    """Stopped after two of three: one more ends the run, as if it had not been stopped."""

    def failing(step, state):
        state, metrics = step_fn(step, state)
        return state, metrics | {"skipped": jnp.array([0, step >= 2])}

    for start, steps in ((0, 4), (4, 99)):
        with RunLog(tmp_path, range(SEEDS), {}, print) as log:
            log.truncate(start)
            assert log.streak.tolist() == [0, 2 * (start == 4)]
            again = partial(train, failing, make_state(), start=start, steps=steps, log=log, patience=3)
            if start == 0:
                assert again(streak=log.streak)[1]
                continue
            with pytest.raises(NonFiniteError) as raised:
                again(streak=log.streak)
    assert raised.value.step in (4, 5) and raised.value.lanes == [1]


def test_faults_that_end_before_they_are_known_are_forgiven():
    def failing(step, state):
        state, metrics = step_fn(step, state)
        return state, metrics | {"skipped": jnp.int32(step in (1, 2))}

    assert train(failing, make_state(), start=0, steps=6, patience=2)[1]
    with pytest.raises(NonFiniteError):  # nothing comes after it
        train(failing, make_state(), start=0, steps=3, patience=2)


def test_every_below_one_is_refused():
    with pytest.raises(ValueError, match="every=0"):
        train(step_fn, make_state(), start=0, steps=1, every=0)


WAITING = """
import pathlib, sys
sys.path.insert(0, "tests")
from tests.runs.test_loop import run, step_fn

def waiting(step, state):
    print(step, flush=True)
    if step == 3:
        sys.stdin.readline()
    return step_fn(step, state)

_, finished = run(pathlib.Path(sys.argv[1]), 9, waiting)
print("finished" if finished else "stopped")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_step_in_flight_and_the_run_can_go_on(tmp_path, number):
    command = [sys.executable, "-c", WAITING, str(tmp_path / "broken")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert [process.stdout.readline().strip() for _ in range(4)] == ["0", "1", "2", "3"]
        process.send_signal(number)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.read().split() == ["stopped"]
    assert process.returncode == 0
    assert Checkpoints(tmp_path / "broken", {}, resume=True).steps() == [4]
    resumed, _ = run(tmp_path / "broken", 9)
    whole, _ = run(tmp_path / "whole", 9)
    assert_same_run(tmp_path / "whole", tmp_path / "broken", whole, resumed)
