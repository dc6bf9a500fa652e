"""Multi-agent reinforcement learning of language-model policies, as a few compiled programs and a short loop.

In outline, one run of a method:

    for number in range(recipe.updates):
        key = key_for(run_key, UPDATE, number)
        trajectory = rollout(weights, key)                               # whole games of environment and policies
        sampled = gather_sampled(rows, episodes.legal, most)             # the sampled tokens, which are trained
        experience = Experience(episodes, rows, sampled, ...)            # with values, if there is a critic
        advantage, value_target, state = recipe.advantage(experience, hparams, state)
        loss = lambda scores, batch: recipe.loss(scores, batch, hparams) # a pure function of arrays
        learners, metrics = update(optimiser, loss, learners, batch)     # gradient, optax, minibatches, epochs
        log(number, metrics)

The names below follow the flow of data. Each is imported at its first use, because jax and transformers take seconds to
import. The defining modules hold documentation and types.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names, for editors and type checkers
    from jaxmarl_llm.environments import REGISTRY as REGISTRY
    from jaxmarl_llm.environments.base import Environment as Environment
    from jaxmarl_llm.environments.base import MessageFrom as MessageFrom
    from jaxmarl_llm.environments.base import View as View
    from jaxmarl_llm.evaluation import matches as matches
    from jaxmarl_llm.evaluation.exact import solve as solve
    from jaxmarl_llm.models import loading as loading
    from jaxmarl_llm.models.config import Config as Config
    from jaxmarl_llm.models.lora import Lora as Lora
    from jaxmarl_llm.rl import advantages as advantages
    from jaxmarl_llm.rl import losses as losses
    from jaxmarl_llm.rl import returns as returns
    from jaxmarl_llm.rl import rewards as rewards
    from jaxmarl_llm.rl.choices import select as select
    from jaxmarl_llm.rl.masked import Mean as Mean
    from jaxmarl_llm.rollout.policy import Sampling as Sampling
    from jaxmarl_llm.rollout.rollout import Rollout as Rollout
    from jaxmarl_llm.rollout.team import Lineup as Lineup
    from jaxmarl_llm.rollout.team import PolicySet as PolicySet
    from jaxmarl_llm.rollout.trajectory import Episodes as Episodes
    from jaxmarl_llm.rollout.trajectory import Rows as Rows
    from jaxmarl_llm.rollout.trajectory import SampledTokens as SampledTokens
    from jaxmarl_llm.rollout.trajectory import Trajectory as Trajectory
    from jaxmarl_llm.rollout.trajectory import gather_sampled as gather_sampled
    from jaxmarl_llm.studies.study import Study as Study
    from jaxmarl_llm.text.grammar import Choice as Choice
    from jaxmarl_llm.text.grammar import Free as Free
    from jaxmarl_llm.text.grammar import Literal as Literal
    from jaxmarl_llm.text.tokenizers import HFTokenizer as HFTokenizer
    from jaxmarl_llm.text.tokenizers import SymbolTokenizer as SymbolTokenizer
    from jaxmarl_llm.training.recipe import Recipe as Recipe
    from jaxmarl_llm.training.records import Advantages as Advantages
    from jaxmarl_llm.training.records import Experience as Experience
    from jaxmarl_llm.training.trainer import Trainer as Trainer
    from jaxmarl_llm.training.update import Optimiser as Optimiser
    from jaxmarl_llm.training.update import update as update

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
