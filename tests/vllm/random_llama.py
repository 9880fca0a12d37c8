"""A small model that tests write themselves, and what vLLM needs to serve it on a CPU."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

REPOSITORY = Path(__file__).parent.parent.parent
#: vLLM on a CPU, on loopback, and nothing fetched.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "ONEDNN_MAX_CPU_ISA": "AVX2",  # else vLLM packs the weights, and their parameters are empty
    "OMP_NUM_THREADS": "1",
}


def trained(seed):
    """A model of widths that no packing kernel takes, so that its parameters are plain, as on a GPU."""
    torch.manual_seed(seed)
    shape = {
        "vocab_size": 64,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
    }
    heads = {
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 64,
    }
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    config = LlamaConfig(**shape, **heads, **ends, initializer_range=1.0, dtype="bfloat16")
    return LlamaForCausalLM(config).to(torch.bfloat16).eval()
