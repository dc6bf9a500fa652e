"""Time by scope: every instant counted once, for what ran innermost, and all of a step's wall time somewhere."""

import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.runs.profile import IDLE, LOGGING, OTHER, ROWS, STEP, breakdown, exclusive, scopes

TEXT = """HloModule jit_step, entry_computation_layout={()->f32[4]{0}}

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %inner = f32[4]{0} tanh(%p)
}

%body (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %copy.1 = f32[4]{0} copy(%a)
  %nested = f32[4]{0} add(%copy.1, %a), metadata={op_name="jit(step)/decode/while/body/prompt/add" stack_frame_id=3}
  ROOT %fusion.2 = f32[4]{0} fusion(%nested), kind=kLoop, calls=%fused, metadata={stack_frame_id=3}
}

%cond (b: f32[4]) -> pred[] {
  ROOT %less = pred[] custom-call(), metadata={op_name="jit(step)/decode/while/cond/lt"}
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0), metadata={op_name="x"}
  %zero = f32[4]{0} broadcast()
  %early = f32[4]{0} copy(%zero)
  %while.3 = f32[4]{0} while(%early), condition=%cond, body=%body, metadata={op_name="jit(step)/vmap(decode)/while"}
  %plain = f32[4]{0} sine(%x), metadata={op_name="jit(step)/dynamic_update_slice"}
  %copy.4 = f32[4]{0} copy(%plain)
  %gradient = f32[4]{0} cosine(%plain), metadata={op_name="jit(step)/transpose(jvp(update))/updated/cos"}
  %ynn_fusion = f32[4]{0} fusion(%gradient, %plain), kind=kCustom, calls=%fused, control-predecessors={%while.3}
  ROOT %sum = f32[4]{0} add(%ynn_fusion, %copy.4), metadata={op_name="jit(step)/add"}
}
"""


def test_a_scope_is_the_innermost_of_the_path_or_that_of_what_is_near():
    found = {name: scope for (module, name), scope in scopes(TEXT).items() if module == "jit_step"}
    assert found["nested"] == "prompt"  # not the loop's
    assert found["copy.1"] == found["fusion.2"] == "decode"  # the loop's
    assert found["while.3"] == found["less"] == "decode"
    assert found["zero"] == found["early"] == "decode"  # of what reads it
    assert found["gradient"] == "update"
    assert found["ynn_fusion"] == "update"  # of what it reads, not of what it waits for
    assert found["plain"] == found["sum"] == found["copy.4"] == OTHER


def test_an_instant_is_counted_once_for_what_began_last():
    nested = [(0, 100, "loop"), (10, 30, "product"), (12, 20, "part"), (40, 50, "product")]
    assert exclusive(nested) == {"loop": 70, "product": 22, "part": 8}
    threads = [(0, 10, "a"), (5, 20, "b"), (6, 8, "a"), (30, 40, "c")]
    assert exclusive(threads) == {"a": 5 + 2, "b": 15 - 2, "c": 10}
    assert exclusive([(3, 9, "inner"), (0, 9, "outer"), (0, 3, "first")]) == {"inner": 6, "first": 3, "outer": 0}


def test_exclusive_times_are_those_of_a_clock():
    rng = np.random.default_rng(0)
    for _ in range(20):
        begin = rng.choice(60, 12, replace=False)
        events = [
            (int(b), int(b + n), str(name))
            for b, n, name in zip(begin, rng.integers(0, 30, 12), rng.integers(0, 4, 12), strict=True)
        ]
        clock = {name: 0 for _, _, name in events}
        for now in range(100):
            running = [event for event in events if event[0] <= now < event[1]]
            if running:
                clock[max(running)[2]] += 1
        assert {name: n for name, n in exclusive(events).items() if n} == {name: n for name, n in clock.items() if n}


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A loop with very much in one scope and nearly nothing in another, a gradient, and a host that writes a log."""

    def loss(x):
        with jax.named_scope("update"):
            return jnp.sin(x @ x).sum()

    def body(_, carry):
        x, y = carry
        with jax.named_scope("prompt"):
            for _ in range(10):
                x = jnp.tanh(x @ x)
        with jax.named_scope("decode"):
            y = y + x[0, 0]
        return x, y

    def step(x):
        x, y = jax.lax.fori_loop(0, 3, body, (x, jnp.float32(0)))
        return jax.grad(loss)(x), y

    x, directory = jnp.ones((300, 300)), tmp_path_factory.mktemp("traced")
    compiled = jax.jit(step).lower(x).compile()
    jax.block_until_ready(compiled(x))
    with jax.profiler.trace(str(directory)):
        began = time.perf_counter()
        with jax.profiler.TraceAnnotation(STEP):
            jax.block_until_ready(compiled(x))
            with jax.profiler.TraceAnnotation(LOGGING):
                time.sleep(0.05)
        wall = time.perf_counter() - began
    return directory, scopes(compiled.as_text()), wall


def test_work_is_found_in_its_scope(traced):
    directory, known, wall = traced
    spent = breakdown(directory, known)
    assert tuple(spent) == ROWS and min(spent.values()) >= 0
    assert spent["prompt"] > spent["update"] > 0 and spent["prompt"] > spent["decode"] > 0
    assert spent["environment"] == spent["scoring"] == 0
    assert spent[LOGGING] > 0.049  # it sleeps for 0.05, by another clock
    assert spent[LOGGING] + spent["prompt"] < sum(spent.values()) < wall + 0.001


def test_without_scopes_all_operations_are_other(traced):
    directory, known, _ = traced
    spent, bare = breakdown(directory, known), breakdown(directory, {})
    assert bare[OTHER] == pytest.approx(sum(x for name, x in spent.items() if name not in (LOGGING, IDLE)))
    assert bare[IDLE] == pytest.approx(spent[IDLE])
    assert sum(bare.values()) == pytest.approx(sum(spent.values()))


def test_an_operation_lasts_until_its_last_thread_is_done(tmp_path, monkeypatch):
    """In nanoseconds: the copy is handed to threads from 20 to 25 and done at 50, the product runs in between."""

    def event(name, begin, end, **stats):
        return SimpleNamespace(name=name, start_ns=begin, duration_ns=end - begin, stats=stats.items())

    def operation(name, begin, end, number, module="jit_step"):
        return event(name, begin, end, hlo_op=name, hlo_module=module, _p=number)

    main = [event(STEP, 10, 100), operation("copy", 20, 25, 1), operation("product", 30, 40, 2), event(LOGGING, 80, 95)]
    pool = [event("end: copy", 50, 50, _c=1), operation("copy", 60, 65, 3, "jit_else"), operation("late", 90, 120, 4)]
    lines = [SimpleNamespace(events=main), SimpleNamespace(events=pool)]
    profile = SimpleNamespace(planes=[SimpleNamespace(lines=lines)])
    monkeypatch.setattr(jax.profiler, "ProfileData", SimpleNamespace(from_file=lambda path: profile))
    (tmp_path / "one.xplane.pb").touch()
    spent = breakdown(tmp_path, {("jit_step", "copy"): "update", ("jit_step", "product"): "prompt"})
    ns = {name: round(seconds * 1e9) for name, seconds in spent.items() if seconds}
    assert ns == {"update": 20, "prompt": 10, OTHER: 5 + 10, LOGGING: 10, IDLE: 10 + 10 + 15}


def test_a_trace_without_a_step_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no trace in"):
        breakdown(tmp_path, {})
    with jax.profiler.trace(str(tmp_path)):
        pass
    with pytest.raises(ValueError, match="holds 0 events 'profiled step', not one"):
        breakdown(tmp_path, {})
