"""The README is true: its example runs and shows what it says, its commands exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_example_scores_what_was_sampled_with_ratio_one(capsys):
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(example[1], names)
    assert abs(names["metrics"]["ratio"].value - 1) < 1e-5
    assert names["said"].where.sum() == 64 * 2 * 10
    assert capsys.readouterr().out.strip()


def test_make_targets_and_files_named_exist():
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake (\w+)", readme):
        assert f"\n{target}:" in makefile
    for name in re.findall(r"`(\w+\.py)`", readme):
        assert any((ROOT / folder / name).exists() for folder in ("jaxmarl_llm", "experiments")), name
