"""A module that has every kind of tensor that is released and loaded, made without any file."""

from __future__ import annotations

import torch
from torch import nn


class SmallModel(nn.Module):
    """Embeddings tied to the head, bf16, fp8 that lies the other way round, a scalar and buffers."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8, dtype=torch.bfloat16)
        self.middle = nn.Linear(8, 8, dtype=torch.bfloat16)
        turned = torch.zeros(8, 4, dtype=torch.float8_e4m3fn).t()
        self.turned = nn.Parameter(turned, requires_grad=False)
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float32))
        self.head = nn.Linear(8, 16, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("flags", torch.zeros(5, dtype=torch.bool))
        self.register_buffer("none", torch.zeros(0, 4))
        self.register_buffer("made_anew", torch.arange(4.0), persistent=False)

    def forward(self, tokens):
        return self.head(self.middle(self.embed(tokens))) * self.scale


def small_model(seed=0):
    torch.manual_seed(seed)
    return SmallModel()
