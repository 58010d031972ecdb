"""One set of weights in every form that the engines of bench.engines read, made once from the bundled SmolLM2 GGUF.

The bundled file's linears are Q4_1 and its embedding, which is also the head, is Q8_0. Its values lie on both grids, so that
bfloat16 and Q8_0 copies of them are the same model to within their own rounding.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize, quantize
from safetensors.torch import save_file

from local_engine.models.config import ModelConfig
from local_engine.tokenizer import load_tokenizer
from local_engine.weights.gguf_source import GGUFSource
from local_engine.weights.model_store import resolve_model

MODEL = "smollm2-135m-instruct"
NEVER_DRAWN = 49150
"""A token of the vocabulary that no answer of these runs holds: the end of sequence for servers without `ignore_eos`."""
LAYER_MATRICES = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
LAYER_NORMS = ("input_layernorm", "post_attention_layernorm")
OPENVINO = {
    "openvino-fp16": ["--weight-format", "fp16"],
    "openvino-int8": ["--weight-format", "int8"],
    "openvino-int4": ["--weight-format", "int4", "--group-size", "32", "--ratio", "1.0"],
}


def shipped() -> Path:
    return resolve_model(MODEL)


def make_weights(folder: Path) -> None:
    """`bf16` and `bf16-no-eos` (safetensors and tokenizer), `bf16.gguf` and `q8_0.gguf` in `folder`; what is there stays."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, kind in (("bf16.gguf", GGMLQuantizationType.BF16), ("q8_0.gguf", GGMLQuantizationType.Q8_0)):
        if not (folder / name).exists():
            _requantised(shipped(), folder / f"{name}.part", kind)
            (folder / f"{name}.part").rename(folder / name)
    if not (folder / "bf16").exists():
        _safetensors(folder / "bf16.part")
        (folder / "bf16.part").rename(folder / "bf16")
    if not (folder / "bf16-no-eos").exists():
        _without_end(folder / "bf16", folder / "bf16-no-eos.part")
        (folder / "bf16-no-eos.part").rename(folder / "bf16-no-eos")


def convert_to_openvino(folder: Path, optimum_cli: Path) -> None:
    """OpenVINO's forms of `folder/bf16`, by optimum-intel's command; what is there stays."""
    for name, options in OPENVINO.items():
        if (folder / name).exists():
            continue
        part = folder / f"{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        command = [str(optimum_cli), "export", "openvino", "--model", str(folder / "bf16"), *options]
        command += ["--task", "text-generation-with-past", str(part)]
        subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        part.rename(folder / name)


def _requantised(source: Path, target: Path, kind: GGMLQuantizationType) -> None:
    """The same GGUF with every matrix in `kind`; vectors stay float32."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, "llama")
    file_type = {GGMLQuantizationType.BF16: 32, GGMLQuantizationType.Q8_0: 7}[kind]
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        value = field.contents()
        if field.types[0] == GGUFValueType.ARRAY:
            writer.add_array(field.name, value)
        else:
            writer.add_key_value(field.name, value, field.types[0])
    writer.add_file_type(file_type)
    for tensor in reader.tensors:
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if values.ndim < 2:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _safetensors(folder: Path) -> None:
    """A Hugging Face folder in bfloat16, q and k in that order of rows."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    source = GGUFSource(shipped())
    config = source.config
    tensors = {"model.norm.weight": source.vector("model.norm.weight")}
    words = source.embedding("model.embed_tokens.weight").rows(torch.arange(config.vocab_size))
    tensors["model.embed_tokens.weight"] = words
    for layer in range(config.layers):
        for name in LAYER_MATRICES:
            key = f"model.layers.{layer}.{name}.weight"
            tensors[key] = source.matrix(key).dequantise()
        for name in LAYER_NORMS:
            key = f"model.layers.{layer}.{name}.weight"
            tensors[key] = source.vector(key)
    half = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(config), indent=1))
    end = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(end))
    tokenizer = load_tokenizer(shipped())
    tokenizer.save(folder / "tokenizer.json")
    special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_position_embeddings,
        **special,
    }
    about |= {"unk_token": "<|endoftext|>", "chat_template": tokenizer.chat_template}
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=1))


def _config(config: ModelConfig) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope["rope_theta"],
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }


def _without_end(source: Path, folder: Path) -> None:
    """The same folder for servers that cannot be told to go on after the end of sequence."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(settings | {"eos_token_id": NEVER_DRAWN}))
