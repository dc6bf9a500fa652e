"""Lists the studies, or runs one: `python -m experiments NAME [...]`."""

import tyro

from jaxmarl_llm.studies import runner
from jaxmarl_llm.studies.cli import execute

if __name__ == "__main__":
    execute(lambda stop, console: runner.run(tyro.cli(runner.Settings, description=runner.__doc__), stop, console))
