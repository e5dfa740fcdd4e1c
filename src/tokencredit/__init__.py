"""Token-level credit for reinforcement learning of language models."""
