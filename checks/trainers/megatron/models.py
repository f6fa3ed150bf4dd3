"""The models that are trained, by name. Standard library only."""

from __future__ import annotations

from .model import Experts, Latent, Model

_EXPERTS = Experts()
_DEEPSEEK = Experts(shared_ffn=64, dense_layers=1, score="sigmoid")

MODELS: tuple[Model, ...] = (
    Model("qwen3", qk_norm=True),
    Model("qwen3_tied", qk_norm=True, tied=True),
    Model("qwen3_gqa8", qk_norm=True, heads=8, groups=1, head_size=8),
    Model("qwen3_deep", qk_norm=True, layers=8),
    Model("llama"),
    Model("mistral"),
    Model("qwen3_moe", qk_norm=True, experts=_EXPERTS, batch=8),
    Model("mixtral", experts=_EXPERTS, batch=8),
    Model("mla", latent=Latent(), groups=4),
    Model("deepseek", latent=Latent(), groups=4, layers=3, experts=_DEEPSEEK, batch=8),
    Model(
        "deepseek_yarn",
        latent=Latent(yarn_factor=4.0),
        groups=4,
        layers=3,
        experts=_DEEPSEEK,
        batch=8,
    ),
)


def model(name: str) -> Model:
    """The model of that name.

    Raises:
      KeyError: there is none.
    """
    return {row.name: row for row in MODELS}[name]
