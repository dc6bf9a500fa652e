"""Programs of inspect-ai, in a process of their own: it asks for a later OpenAI client than verifiers does.

    python -m tests.support.inspect_program read FILE ...             prints these logs as JSON
    python -m tests.support.inspect_program evaluate ADDRESS FOLDER   prints the logs of two evaluations of "tiny"

`pip install --target build/inspect-ai inspect-ai 'openai>=3.4'` installs what it needs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "build/inspect-ai"
QUESTIONS = {"Is it so?": "yes", "Is it not?": "no", "Say yes.": "yes"}
CONFIG = {"max_tokens": 12, "seed": 3}
FORCED = {"extra_body": {"structured_outputs": {"choice": ["yes"]}}}
FREE = {"logprobs": True, "temperature": 0.8}


def installed() -> bool:
    return (PACKAGES / "inspect_ai").exists()


def run(*arguments: str) -> list[dict]:
    """The logs that a program prints."""
    path = os.pathsep.join([str(PACKAGES), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "tests.support.inspect_program", *arguments]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main(what: str, *arguments: str) -> None:
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.log import list_eval_logs, read_eval_log
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.scorer import match
    from inspect_ai.solver import generate, system_message

    if what == "read":
        assert len(list_eval_logs(str(Path(arguments[0]).parent))) == len(arguments)
        headers = [read_eval_log(file, header_only=True).results for file in arguments]
        logs = [read_eval_log(file) for file in arguments]
        assert headers == [log.results for log in logs]
    else:
        address, folder = arguments
        model, logs = get_model("openai-api/jaxmarl/tiny", base_url=address, api_key="-"), []
        for config in (FORCED, FREE):
            task = Task(
                dataset=[Sample(input=question, target=target) for question, target in QUESTIONS.items()],
                solver=[system_message("Be brief."), generate()],
                scorer=match(location="exact"),
                config=GenerateConfig(**CONFIG, **config),
            )
            logs += eval(task, model=model, log_dir=folder, display="none")
    print(json.dumps([log.model_dump(mode="json") for log in logs]))


if __name__ == "__main__":
    main(*sys.argv[1:])
