"""AWQ: inputs that are large on a calibration text get finer steps, by scales that the norm (or matrix) before them divides out.

For each group of matrices with one input x: W' = Q(W diag(s)) diag(1 / s), s = mean|x| ^ alpha, alpha of twenty steps in [0, 1)
with the least ||x W'ᵀ - x Wᵀ||; alpha = 0 is plain rounding. Source: https://arxiv.org/abs/2306.00978, section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kernels.operations import Matrix, TorchOperations
from kernels.quantised import awq_pack
from kernels.quantised_weight import Int4Weight

from ..batch import ScheduledSequence
from ..config import BLOCK_SIZE
from ..errors import ConfigError
from ..kv_cache import allocate
from ..models.decoder import Decoder
from ..models.registry import family_of
from ..runner import lay_out
from ..sampling_params import SamplingParams
from ..weights.source import WeightSource
from .model import Model

GROUPS = (128, 64, 32)
STEPS = 20


def common_group(model: Model, wished: int | None) -> int:
    """The wished group of inputs, or the largest that divides every matrix's. Raises `ConfigError` where none does."""
    shapes = [tuple(model.matrices[name].shape) for name in model.linears]
    for group in (wished,) if wished is not None else GROUPS:
        if all(inputs % group == 0 and outputs % 8 == 0 for outputs, inputs in shapes):
            return group
    raise ConfigError(
        f"no group of {wished or 'or '.join(f'{group} ' for group in GROUPS)} inputs divides every matrix of this model "
        f"({', '.join(sorted({f'{outputs} x {inputs}' for outputs, inputs in shapes}))}): use --int8 or --fp8"
    )


def to_awq(weight: torch.Tensor, group: int) -> Int4Weight:
    """[N, K] with integer zero points, between the least and the greatest of each group (0 always among them)."""
    codes, zeros, scales = _codes(weight, group)
    return Int4Weight(
        awq_pack(codes.view(weight.shape).T.contiguous()),
        scales.half().T.contiguous(),
        awq_pack(zeros.T.contiguous()),
    )


def _codes(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [N, K / group, group], zero points and scales [N, K / group], whole numbers and float16 ones in float32."""
    groups = weight.float().view(weight.shape[0], -1, group)
    least, greatest = groups.amin(dim=-1).clamp(max=0), groups.amax(dim=-1).clamp(min=0)
    scales = ((greatest - least) / 15).clamp(min=1e-6).half().float()
    zeros = (-least / scales).round().clamp(0, 15)
    return (groups / scales[..., None]).round().add_(zeros[..., None]).clamp_(0, 15), zeros, scales


def _rounded(weight: torch.Tensor, group: int) -> torch.Tensor:
    """The values of `to_awq`, without packing them."""
    codes, zeros, scales = _codes(weight, group)
    return codes.sub_(zeros[..., None]).mul_(scales[..., None]).view(weight.shape)


def search_scales(weight: torch.Tensor, x: torch.Tensor, group: int) -> torch.Tensor:
    """float32 [K] for a matrix [N, K] whose inputs were x [tokens, K]."""
    magnitude, exact = x.abs().mean(dim=0).clamp(min=1e-4), x @ weight.T
    best, least = torch.ones(weight.shape[1]), float("inf")
    for step in range(STEPS):
        scales = magnitude ** (step / STEPS)
        scales = scales / (scales.max() * scales.min()).sqrt()
        error = float((x @ (_rounded(weight * scales, group) / scales).T - exact).square().mean())
        if error < least:
            best, least = scales, error
    return best


def scale_for_awq(model: Model, inputs: dict[str, torch.Tensor], group: int, say: Callable[[str], None]) -> None:
    """Changes the model's values, not what it computes. `inputs` are those of `record_inputs`."""
    names, offset = model.family.names, model.family.norm_offset
    for number in range(model.layers):
        prefix = f"model.layers.{number}."
        for norm, linears in ((names.attention_norm, names.qkv), (names.mlp_norm, names.gate_up)):
            scales = _scale(model, [prefix + linear for linear in linears], inputs, group)
            model.vectors[prefix + norm] = (model.vectors[prefix + norm] + offset) / scales - offset
        scales = _scale(model, [prefix + names.down], inputs, group)
        up = prefix + names.gate_up[-1]
        model.matrices[up][-len(scales) :] /= scales[:, None]  # of a joined matrix the second half
        if f"{up}.bias" in model.vectors:
            model.vectors[f"{up}.bias"][-len(scales) :] /= scales
        say(f"scales of layer {number + 1} of {model.layers}")


def _scale(model: Model, names: Sequence[str], inputs: dict[str, torch.Tensor], group: int) -> torch.Tensor:
    scales = search_scales(torch.cat([model.matrices[name] for name in names]), inputs[names[0]], group)
    for name in names:
        model.matrices[name] = model.matrices[name] * scales
    return scales


class _Recorder(TorchOperations):
    """Plain torch that keeps what each matrix was multiplied by."""

    def __init__(self, capacity: int) -> None:
        super().__init__(torch.device("cpu"), torch.float32, capacity)
        self.inputs: dict[int, torch.Tensor] = {}

    def linear(self, x: torch.Tensor, weight: Matrix, out: torch.Tensor, add: bool = False) -> None:
        self.inputs[id(weight)] = x[: self.layout.tokens].clone()
        super().linear(x, weight, out, add)


@torch.inference_mode()
def record_inputs(source: WeightSource, token_ids: Sequence[int], threads: int) -> dict[str, torch.Tensor]:
    """float32 [tokens, K] by the name of each matrix of a layer."""
    recorder, device = _Recorder(len(token_ids)), torch.device("cpu")
    decoder = Decoder(
        source, family_of(source.config), recorder, max_context=len(token_ids), device=device, threads=threads,
        progress=lambda text: None,
    )  # fmt: skip
    blocks = -(-len(token_ids) // BLOCK_SIZE)
    decoder.attach(allocate(source.config, blocks, torch.float32, device))
    whole = ScheduledSequence(0, list(token_ids), 0, list(range(blocks)), samples=True, params=SamplingParams())
    decoder.compute(*lay_out([whole], device))
    return {name: recorder.inputs[id(linear.weight)] for linear in decoder.linears for name in linear.names}
