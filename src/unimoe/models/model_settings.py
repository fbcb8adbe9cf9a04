"""Settings of causal language models that scores depend on: changed logits, and states that depend on other texts."""

from __future__ import annotations

from typing import Any

from unimoe.core.errors import UsageError

_FACTORS = {"logit_scale": ("cohere", 1), "lm_head_multiplier": ("falcon_h1", 1), "logits_scaling": ("granite", -1)}
"""Settings that multiply logits, or divide them (-1), in models whose kind begins so."""

_UNKNOWN = ("", 0)


def logit_changes(config: Any) -> tuple[float, float | None]:
    """Return by what a model multiplies the products of states and output matrix, and the bound of its soft cap.

    Raises:
        UsageError: it changes its logits in another way.
    """
    factor = 1.0
    for setting in (*_FACTORS, "output_multiplier", "logits_soft_cap", "output_logit_soft_cap"):
        value = getattr(config, setting, None)
        if value in (None, 1):
            continue
        kind, exponent = _FACTORS.get(setting, _UNKNOWN)
        if not exponent or not config.model_type.startswith(kind):
            raise UsageError(
                f"a {config.model_type} model changes its logits ({setting}), which its yes/no margin would miss"
            )
        factor *= float(value) ** exponent
    return factor, getattr(config, "final_logit_softcapping", None)


def refuse_dependent_states(config: Any, max_length: int) -> None:
    """Raise a ``UsageError`` about a decoder whose states depend on later tokens, or on a batch's longest text."""
    if getattr(config, "use_bidirectional_attention", None) in (True, "all") or not getattr(config, "is_causal", True):
        raise UsageError(
            f"a {config.model_type} model of bidirectional attention is scored and embedded as a causal one here; "
            "name it with encoder: to embed"
        )
    for name, limit in _rotation_limits(config):
        if max_length > limit:
            raise UsageError(
                f"model.max_length {max_length}: beyond {limit} tokens a {config.model_type} model of {name} RoPE "
                f"rotates all texts of a batch by the longest; lower it to {limit}"
            )


def _rotation_limits(config: Any) -> list[tuple[str, int]]:
    """Return the kinds of rotation that depend on a batch's longest text, with the length up to which they do not."""
    stated = getattr(config, "rope_parameters", None) or {}
    kinds = [stated] if "rope_type" in stated else [kind for kind in stated.values() if isinstance(kind, dict)]
    limits = []
    for kind in kinds:
        if kind.get("rope_type") == "longrope":
            limits.append(("longrope", int(kind["original_max_position_embeddings"])))
        elif kind.get("rope_type") == "dynamic":
            limits.append(("dynamic", int(config.max_position_embeddings)))
    return limits
