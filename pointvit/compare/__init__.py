"""Measurements of what two encoders on one trunk do alike, and of what one looks at."""

from pointvit.compare.attention import attention_rollout

__all__ = ["attention_rollout"]
