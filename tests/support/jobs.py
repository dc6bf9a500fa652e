"""The work of a policy set of Qwen3-8B, for tests of plans."""

from jaxmarl_llm.models import hf_config, hf_families
from jaxmarl_llm.models.config import Dtypes
from jaxmarl_llm.planning import cost_model


def job(**settings) -> cost_model.Job:
    config = hf_config.from_json(hf_families.KNOWN["qwen3-8b"], Dtypes("bfloat16", "bfloat16", "bfloat16"))
    numbers = {
        "prompts": 64,
        "prompt_width": 100,
        "group_size": 32,
        "max_heard": 20,
        "max_said": 32,
        "chunk": 52,
        "max_sampled": 32,
        "forced": 0,
    }
    numbers |= {"slots": 600, "turns": 12, "alternating_seats": 1, "max_sampled_tokens": 300}
    return cost_model.Job(config, **{"loras": ()} | numbers | settings)
