"""The command line of the studies: list them, run one, plan its memory and seconds, or process results of runs.

python -m experiments
python -m experiments mars --seeds 10
python -m experiments plan mars --model qwen3-8b --mesh data=8,fsdp=8
python -m experiments prompts --data questions.jsonl --reward number --model smollm2
python -m experiments pages [--check]
python -m experiments release runs/mars-tiny --out policies
"""

from experiments import prompts
from jaxmarl_llm.planning import plan
from jaxmarl_llm.studies import commands

if __name__ == "__main__":
    commands.main("experiments", {"plan": plan.command, "prompts": prompts.command})
