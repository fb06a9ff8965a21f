"""LAYERS: forward and backward functions over explicit parameters, for NumPy and CuPy arrays.

Parameters are a flat dict with dotted names; a layer holds sizes and children, never arrays.
Gradients are reported to a hook as soon as they can be computed, and computed where the hook
wants them. Nothing here communicates: parallelism is put around layers with `replace`, or into
the hook.
"""

from .attention import CausalSelfAttention
from .block import Block
from .containers import Residual, Sequential, named_layers, replace
from .dropout import Dropout
from .gpt import GPT
from .layer import (
    Ctx,
    Fill,
    Layer,
    OnGrad,
    Params,
    Saved,
    backward_chain,
    collect,
    forward_chain,
    init_children,
    scope,
    scope_hook,
)
from .linear import Embedding, Linear
from .loss import cross_entropy, cross_entropy_backward
from .mlp import GELU, SwiGLU, gelu_mlp
from .norm import LayerNorm, RMSNorm
from .numeric import cast, grad_fill

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
    "backward_chain",
    "cast",
    "collect",
    "cross_entropy",
    "cross_entropy_backward",
    "forward_chain",
    "gelu_mlp",
    "grad_fill",
    "init_children",
    "named_layers",
    "replace",
    "scope",
    "scope_hook",
]
