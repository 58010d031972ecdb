"""Weights in 8 and 4 bits: joined, reordered and in the CPU's own storages they are the same values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.linear import StoredWeight, stored
from kernels.quantised import awq_pack
from kernels.quantised_weight import (
    Fp8Weight,
    Int4Weight,
    QuantisedWeight,
    Weight,
    as_stored,
    join,
    to_fp8_rows,
    to_int4,
    to_int8,
)


def noise(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def awq(outputs: int, inputs: int, group: int, zero: int | None = None) -> Int4Weight:
    random = torch.Generator().manual_seed(8)
    values = torch.randint(0, 16, (inputs, outputs), generator=random)
    zeros = torch.randint(0, 16, (inputs // group, outputs), generator=random)
    zeros = zeros if zero is None else torch.full_like(zeros, zero)
    return Int4Weight(awq_pack(values), noise(inputs // group, outputs).half(), awq_pack(zeros))


def fp8_blocks(outputs: int, inputs: int) -> Fp8Weight:
    scales = noise(-(-outputs // 128), -(-inputs // 128)).abs() + 0.1
    return Fp8Weight(noise(outputs, inputs).to(torch.float8_e4m3fn), scales)


WEIGHTS: dict[str, QuantisedWeight] = {
    "int8": to_int8(noise(24, 64)),
    "int4 with minima": to_int4(noise(24, 128), 32),
    "int4 with minima, groups of 64": to_int4(noise(24, 128), 64),
    "symmetric int4": awq(16, 128, 64, zero=8),
    "awq": awq(24, 128, 64),
    "fp8 by rows": to_fp8_rows(noise(24, 64)),
    "fp8 by blocks": fp8_blocks(136, 160),
}
NARROW = {
    "int8": "q8_0",
    "int4 with minima": "q4_1",
    "int4 with minima, groups of 64": "q4_1",
    "symmetric int4": "q4_0",
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_the_cpus_storage_holds_the_same_values_in_the_fewest_bits(kind: str) -> None:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    weight = WEIGHTS[kind]
    narrow, exact = weight.narrowest(), weight.dequantise()
    assert narrow.storage == NARROW.get(kind, "f32")
    assert torch.equal(narrow.dequantise().float(), exact)
    decoded = dequantize(narrow.raw, GGMLQuantizationType[narrow.storage.upper()])  # not our reading of the bytes
    torch.testing.assert_close(torch.from_numpy(np.array(decoded)), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", WEIGHTS)
def test_rows_in_another_order_are_the_same_rows(kind: str) -> None:
    weight = WEIGHTS[kind]
    order = np.random.default_rng(4).permutation(weight.shape[0])
    assert torch.equal(weight.rows(order).dequantise(), weight.dequantise()[torch.from_numpy(order)])


@pytest.mark.parametrize("kind", WEIGHTS)
def test_parts_are_joined_one_after_the_other_or_not_at_all(kind: str) -> None:
    weight = WEIGHTS[kind]
    joined = join([weight, weight])
    if kind == "fp8 by blocks":  # 136 rows end inside a block
        assert joined is None
        weight = fp8_blocks(128, 160)
        joined = join([weight, weight])
    assert joined is not None
    assert torch.equal(joined.dequantise(), torch.cat([weight.dequantise(), weight.dequantise()]))


def test_parts_of_different_kinds_are_not_joined() -> None:
    plain = StoredWeight("f32", (8, 64), np.zeros((8, 256), dtype=np.uint8), lambda: torch.zeros(8, 64))
    assert join([to_int8(noise(8, 64)), to_fp8_rows(noise(8, 64))]) is None
    assert join([to_int4(noise(8, 64), 32), to_int4(noise(8, 64), 64)]) is None
    assert join([to_int4(noise(8, 64), 32), plain]) is None
    assert join([plain, plain]) is None


@pytest.mark.parametrize("group", [32, 64, 128])
def test_four_bits_lose_at_most_half_a_step_of_their_group(group: int) -> None:
    weight = noise(16, 256)
    lost = (to_int4(weight, group).dequantise() - weight).abs().view(16, -1, group)
    groups = weight.view(16, -1, group)
    step = (groups.amax(-1) - groups.amin(-1)) / 15
    assert bool((lost.amax(-1) <= 0.51 * step + 2e-3).all())  # and what float16 loses of the scale and the minimum


def test_rounding_again_to_the_same_grid_changes_nothing() -> None:
    once = to_int4(noise(16, 64), 32).dequantise()
    assert float((to_int4(once, 32).dequantise() - once).abs().max()) < 2e-3
    assert torch.equal(to_int8(torch.zeros(2, 32)).dequantise(), torch.zeros(2, 32))


@pytest.mark.parametrize("kind", [*WEIGHTS, "f32", "q8_0"])
def test_a_part_of_a_matrix_has_the_values_of_the_whole(kind: str) -> None:
    weight: Weight = {**WEIGHTS, "f32": stored(noise(24, 96)), "q8_0": to_int8(noise(24, 96)).narrowest()}[kind]
    whole, (outputs, inputs) = weight.dequantise(), weight.shape
    rows = np.arange(outputs - 8 if outputs < 128 else 128)
    part = weight.rows(rows)
    assert part.shape == (len(rows), inputs) and type(part) is type(weight)
    torch.testing.assert_close(part.dequantise(), whole[: len(rows)], rtol=0, atol=0)
    block = max(weight.block, 1)
    for run in (range(block), range(inputs - inputs % block if inputs % block else inputs - block, inputs)):
        columns = weight.columns(run)
        assert columns.shape == (outputs, len(run)) and type(columns) is type(weight)
        torch.testing.assert_close(columns.dequantise(), whole[:, run.start : run.stop], rtol=0, atol=0)
        (narrow,) = as_stored([columns])
        torch.testing.assert_close(narrow.dequantise().float(), whole[:, run.start : run.stop], rtol=0, atol=0)
    if block > 1:
        with pytest.raises(ValueError, match=f"inputs 8 to {block} cut a group of {block} inputs"):
            weight.columns(range(8, block))
