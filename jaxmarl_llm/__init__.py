"""Multi-agent reinforcement learning of language-model policies, as a few compiled programs and a short loop.

In outline, one run of a method:

    for number in range(recipe.updates):
        key = key_for(run_key, UPDATE, number)
        trajectory = rollout(weights, key)                               # environment and policies play whole games
        sampled = gather_sampled(rows, episodes.legal, most)             # the tokens that are trained
        experience = Experience(episodes, rows, sampled, ...)            # plus values, where there is a critic
        advantage, value_target, state = recipe.advantage(experience, hparams, state)
        loss = lambda scores, batch: recipe.loss(scores, batch, hparams) # a pure function of arrays
        learners, metrics = update(optimiser, loss, learners, batch)     # gradient, optax, minibatches, epochs
        log(number, metrics)

The names below are in the order in which data flows. They are imported when they are first used, because jax and
transformers take seconds to import; the modules that define them hold the documentation and the types.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_MODULE_OF = {
    # text and models
    "Choice": "text.grammar",
    "Literal": "text.grammar",
    "Free": "text.grammar",
    "HFTokenizer": "text.tokenizers",
    "SymbolTokenizer": "text.tokenizers",
    "Config": "models.config",
    "Lora": "models.lora",
    "loading": "models",
    # games
    "Environment": "environments.base",
    "View": "environments.base",
    "MessageFrom": "environments.base",
    "REGISTRY": "environments",
    # play
    "Sampling": "rollout.policy",
    "PolicySet": "rollout.team",
    "Lineup": "rollout.team",
    "Rollout": "rollout.rollout",
    "Trajectory": "rollout.trajectory",
    "Episodes": "rollout.trajectory",
    "Rows": "rollout.trajectory",
    "SampledTokens": "rollout.trajectory",
    "gather_sampled": "rollout.trajectory",
    # learn
    "Mean": "rl.masked",
    "select": "rl.choices",
    "rewards": "rl",
    "returns": "rl",
    "advantages": "rl",
    "losses": "rl",
    "Experience": "training.records",
    "Advantages": "training.records",
    "Recipe": "training.recipe",
    "Optimiser": "training.update",
    "update": "training.update",
    "Trainer": "training.trainer",
    # compare
    "matches": "evaluation",
    "solve": "evaluation.exact",
    "Study": "studies.study",
}
_MODULES = {"loading", "rewards", "returns", "advantages", "losses", "matches", "solve"}
__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"jaxmarl_llm has no public name {name!r}: choose from {', '.join(_MODULE_OF)}.")
    home = f"{__name__}.{_MODULE_OF[name]}"
    if name in _MODULES:
        return importlib.import_module(f"{home}.{name}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return [*globals(), *_MODULE_OF]
