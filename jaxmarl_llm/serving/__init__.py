"""Policies as agents meet them: one engine for many dialogues, and the protocol of OpenAI in front of it."""
