"""What a compiled program does is read from its text: operations, bytes, collectives, loops."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmarl_llm.devices import hlo, sharding


def test_loops_count_as_often_as_they_run():
    def step(x, w, n):
        x = jax.lax.scan(lambda x, w: (x @ w, None), x, w)[0]
        with jax.named_scope("decode"):
            return jax.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] @ w[0]), (jnp.int32(0), x))[1]

    x, w = jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((5, 16, 16), jnp.float32)
    text = jax.jit(step).lower(x, w, jax.ShapeDtypeStruct((), jnp.int32)).compile().as_text()
    asked = []
    trips = lambda path: asked.append(path) or 7.0
    found = hlo.count_work(text, trips, {"data": 1}, lambda path: "decode" if "decode" in path.split("/") else None)
    assert found[""].operations == 5 * 2 * 8 * 16 * 16 and found["decode"].operations == 7 * 2 * 8 * 16 * 16
    assert len(asked) == 1 and asked[0].endswith("decode/while")
    assert 5 * 4 * 16 * 16 <= found[""].moved < 5 * 4 * (4 * 16 * 16 + 4 * 8 * 16)


ASYNCHRONOUS = """HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%scattering (p: f32[8,128]) -> f32[2,128] {
  %p = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %part = f32[2,128]{1,0:T(8,128)} reduce-scatter(%p), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=%add
}

%most (m: f32[8,128]) -> f32[8,8] {
  %m = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %product = f32[8,8]{1,0:T(8,128)} dot(%m, %m), lhs_contracting_dims={1}, rhs_contracting_dims={1}
}

%least (l: f32[8,128]) -> f32[8,8] {
  %l = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %cut = f32[8,8]{1,0:T(8,128)} slice(%l), slice={[0:8], [0:8]}
}

ENTRY %main (x: f32[8,128]) -> f32[8,128] {
  %x = f32[8,128]{1,0:T(8,128)S(1)} parameter(0)
  %gather = (f32[8,128]{1,0:T(8,128)}, f32[32,128]{1,0:T(8,128)}) all-gather-start(%x), replica_groups={{0,1,2,3}}
  %gathered = f32[32,128]{1,0:T(8,128)} all-gather-done(%gather)
  %scatter = ((f32[8,128]{1,0}), f32[2,128]{1,0}, s32[]) async-start(%x), calls=%scattering
  %scattered = f32[2,128]{1,0:T(8,128)} async-done(%scatter)
  %send = (f32[8,128]{1,0}, f32[8,128]{1,0}, u32[]) collective-permute-start(%x), source_target_pairs={{0,1},{1,0}}
  %sent = f32[8,128]{1,0:T(8,128)} collective-permute-done(%send)
  %which = s32[] constant(0)
  %chosen = f32[8,8]{1,0:T(8,128)} conditional(%which, %x, %x), branch_computations={%most, %least}
  %library = f32[8,128]{1,0} custom-call(%x, %x), custom_call_target="__cublas$lt$matmul", metadata={op_name="a, (b)"}
  ROOT %end = f32[8,128]{1,0:T(8,128)} copy(%sent)
}
"""


def test_what_begins_and_is_done_later_counts_once_and_of_branches_the_largest():
    found = hlo.count_work(ASYNCHRONOUS, float, {"data": 1, "fsdp": 4}, lambda path: None, "all")["all"]
    row = 4 * 128
    assert found.collectives == {
        ("all-gather", "fsdp"): (1, 32 * row),
        ("reduce-scatter", "fsdp"): (1, 2 * row),
        ("collective-permute", "fsdp"): (1, 8 * row),
    }
    assert found.operations == 2 * 8 * 8 * 128 and found.hidden == 1
    rows = (32 + 8) + (2 + 8) + (8 + 8) + (0.5 + 8 + 8) + (8 + 8 + 8) + (8 + 8)  # product and copies among them
    assert found.moved == rows * row
    assert [one.path for one in hlo.read(ASYNCHRONOUS)[1]["main"]][-2:] == ["a, (b)", ""]


def test_an_instruction_that_is_not_understood_is_no_silence():
    with pytest.raises(ValueError, match=r"is not understood: ROOT %cut = f32\[8,8\] slice of %l"):
        hlo.read(ASYNCHRONOUS.replace("f32[8,8]{1,0:T(8,128)} slice(%l)", "f32[8,8] slice of %l"))


def test_collectives_have_the_axes_they_reach_over():
    mesh = sharding.mesh("data=2,fsdp=4")
    x = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(mesh, P("data", "fsdp")))
    for spec, kind, names, size in (
        (P("data"), "all-gather", "fsdp", 4 * 4 * 16),
        (P(None, "fsdp"), "all-gather", "data", 4 * 8 * 4),
    ):
        program = jax.jit(lambda x: x * 2, out_shardings=NamedSharding(mesh, spec)).lower(x).compile()
        found = hlo.count_work(program.as_text(), float, dict(mesh.shape), lambda path: None)
        assert found[""].collectives == {(kind, names): (1.0, size)}
    program = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, P())).lower(x).compile()
    found = hlo.count_work(program.as_text(), float, dict(mesh.shape), lambda path: None)[""].collectives
    assert {kind for kind, _ in found} == {"all-reduce"}
    assert set("+".join(names for _, names in found).split("+")) == {"data", "fsdp"}  # one after the other, or together


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", "fsdp"),
        ("replica_groups={{0,4},{1,5},{2,6},{3,7}}", "data"),
        ("replica_groups={}", "data+fsdp"),
        ("replica_groups=[2,4]<=[8]", "fsdp"),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", "data"),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}, dimensions={0}", "data"),
        ("replica_groups=mesh['a'=2,'b'=4] {'a','b'}", "data+fsdp"),
        ("replica_groups=mesh['a'=8] {'a':(2)4}", "fsdp"),
        ("replica_groups=mesh['a'=4,'b'=2] {'a':(1)2}", "data"),
        ("replica_groups=mesh['a'=4,'b'=2] {'a':(2)2}", "?"),
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", "?"),
        ("source_target_pairs={{0,1},{1,2}}, metadata={}", "fsdp"),
        ("source_target_pairs={{0,5}}", "data+fsdp"),
    ],
)
def test_groups_are_read_in_every_spelling(written, expected):
    assert hlo.axes(written, {"data": 2, "fsdp": 4, "tensor": 1}) == expected
