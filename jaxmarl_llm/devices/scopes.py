"""Names of `jax.named_scope`s: a compiled program's operations carry them, and profiles and plans read them there.

A scope changes metadata only. The step sets these constants and readers of compiled text match them, so that no
reader depends on the name of a function.
"""

ROLLOUT = "rollout"  # a whole rollout, with the three parts below
PROMPT, DECODE, ENVIRONMENT = "prompt", "decode", "environment"
SCORING, ADVANTAGES, UPDATE = "scoring", "advantages", "update"

ROLLOUT_PARTS = (PROMPT, DECODE, ENVIRONMENT)
UPDATE_PARTS = (SCORING, ADVANTAGES, UPDATE)
SCOPES = (*ROLLOUT_PARTS, *UPDATE_PARTS)  # an operation's time counts for its innermost scope
