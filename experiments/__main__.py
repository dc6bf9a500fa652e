"""The command line of the studies: list them, run one, plan its memory and seconds, or process results of runs.

python -m experiments
python -m experiments demo
python -m experiments mars --seeds 10
python -m experiments mars --sweep learning_rate=1e-3,3e-3,1e-2 --first-seed 100
python -m experiments plan mars --model qwen3-8b --mesh data=8,fsdp=8
python -m experiments prompts --data questions.jsonl --reward number --model smollm2
python -m experiments pages [--check]
python -m experiments release runs/mars-tiny --out policies
"""

from jaxmarl_llm.studies import commands

COMMANDS = {"demo": "experiments.demo", "plan": "jaxmarl_llm.planning.plan", "prompts": "experiments.prompts"}

if __name__ == "__main__":
    commands.main("experiments", COMMANDS)
