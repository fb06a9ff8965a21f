"""LAYERS: forward and backward functions over explicit parameters, for NumPy and CuPy arrays.

Parameters are a flat dict with dotted names; a layer holds sizes and children, never arrays.
Gradients are reported to a hook as soon as they can be computed, and computed where the hook
wants them. Nothing here communicates: parallelism is put around layers with `replace`, or into
the hook.
"""

from .attention import CausalSelfAttention
from .containers import Residual, Sequential, named_layers, replace
from .dropout import Dropout
from .gpt import GPT, Block
from .layer import Ctx, Fill, Layer, OnGrad, Params, Saved, collect, scope, scope_hook
from .linear import Embedding, Linear
from .loss import cross_entropy, cross_entropy_backward
from .mlp import GELU, SwiGLU, gelu_mlp
from .norm import LayerNorm, RMSNorm
from .numeric import cast

__all__ = [
    "GELU",
    "GPT",
    "Block",
    "CausalSelfAttention",
    "Ctx",
    "Dropout",
    "Embedding",
    "Fill",
    "Layer",
    "LayerNorm",
    "Linear",
    "OnGrad",
    "Params",
    "RMSNorm",
    "Residual",
    "Saved",
    "Sequential",
    "SwiGLU",
    "cast",
    "collect",
    "cross_entropy",
    "cross_entropy_backward",
    "gelu_mlp",
    "named_layers",
    "replace",
    "scope",
    "scope_hook",
]
