"""Multi-agent reinforcement learning of language-model policies, as a few compiled programs and a short loop."""

__version__ = "0.1.0"
