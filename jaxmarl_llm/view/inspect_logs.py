"""Games of a run as logs of inspect-ai, which shows them: `inspect view --log-dir RUN/inspect`.

The package itself is not needed to write them.

python -m jaxmarl_llm.view.inspect_logs runs/demo
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jaxmarl_llm.text.console import lasting
from jaxmarl_llm.view.page import GAMES, read

FOLDER = "inspect"
Game = Mapping[str, Any]


def write_logs(run: Path, out: Path) -> list[Path]:
    """Writes the games of the files games.jsonl below `run` into `out`: a log for each study, arm, seed and update.

    Returns the files. Raises ValueError if there are no games, or a file is damaged.
    """
    files = sorted(run.rglob(GAMES))
    batches: dict[tuple, tuple[float, list[Game]]] = {}
    for file in files:
        for game in read(file):
            key = tuple(game[name] for name in ("study", "arm", "seed", "update"))
            batches.setdefault(key, (file.stat().st_mtime, []))[1].append(game)
    if not batches:
        raise ValueError(f"There is no {GAMES} with games below {run}: name the directory of a run.")
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for key, (seconds, games) in batches.items():
        moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
        name = "_".join(re.sub(r"[^A-Za-z0-9.-]+", "-", str(part)) for part in key)
        written.append(out / f"{moment.replace(':', '-')}_{name}.json")  # as inspect-ai names its logs
        written[-1].write_bytes(json.dumps(log_of(games, moment)).encode())
    return written


def log_of(games: Sequence[Game], moment: str) -> dict[str, Any]:
    """An inspect-ai log (version 2) of games of one update; `moment` is in ISO 8601 with an offset.

    A sample is a seat of a game with its dialogue. Its scores are the reward and each component. Metadata of the
    messages are turns, and each token's log-probability, entropy and advantage. Scripted players are left out.
    """
    first = games[0]
    name = f"{first['study']}/{first['arm']}"
    identity = hashlib.sha256(json.dumps([name, first["seed"], first["update"]]).encode()).hexdigest()[:22]
    samples = [_sample(game, number) for game in games for number, seat in enumerate(game["seats"]) if seat["messages"]]
    policies = sorted({sample["metadata"]["policy"] for sample in samples})
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": identity,
            "run_id": identity,
            "created": moment,
            "task": name,
            "task_id": identity,
            "task_args": {"seed": first["seed"], "update": first["update"]},
            "dataset": {
                "name": first["study"],
                "samples": len(samples),
                "sample_ids": [sample["id"] for sample in samples],
            },
            "model": "jaxmarl_llm/" + "+".join(policies),
            "config": {},
        },
        "plan": {"steps": []},
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples),
            "scores": [_mean(policy, samples) for policy in policies],
        },
        "stats": {"started_at": moment, "completed_at": moment},
        "samples": samples,
    }


def _sample(game: Game, number: int) -> dict[str, Any]:
    """A seat of a game as a sample."""
    seat = game["seats"][number]
    answers = {answer["message"]: answer for answer in seat["answers"]}
    messages: list[dict[str, Any]] = []
    heard: list[dict[str, Any]] = []
    output: dict[str, Any] = {"model": seat["policy"], "choices": []}
    for message, turn in zip(seat["messages"], seat["turns"], strict=True):
        about: dict[str, Any] = {"turn": turn}
        shown = {**message, "id": f"{game['game']}-{number}-{len(messages)}", "metadata": about}
        if answer := answers.get(len(messages)):
            about |= {name: answer[name] for name in ("action", "reward", "tokens")}
            shown |= {"source": "generate", "model": seat["policy"]}
            output["choices"] = [{"message": shown, "stop_reason": "stop", "logprobs": _logprobs(answer["tokens"])}]
            output["completion"] = message["content"]
        elif not output["choices"]:
            heard.append(shown)
        messages.append(shown)
    scores = {"reward": seat["reward"], **seat["components"]}
    return {
        "id": f"{game['game']}-{number}",
        "epoch": 1,
        "input": heard,
        "target": "",
        "messages": messages,
        "output": output,
        "scores": {name: {"value": value} for name, value in scores.items() if value is not None},
        "metadata": {
            **{name: game[name] for name in ("study", "arm", "seed", "update", "game", "group", "member")},
            **{"seat": number, "policy": seat["policy"], "measured": seat.get("measured", {})},
            **({"cut_off": True} if "cut_off" in game else {}),
        },
    }


def _logprobs(tokens: Sequence[Mapping[str, Any]]) -> dict[str, list]:
    """The log-probabilities of an answer; a token that the grammar forced has 0."""
    return {"content": [{"token": token["text"], "logprob": token.get("logp") or 0.0} for token in tokens]}


def _mean(policy: str, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A policy's mean reward over its seats, as a score of a log."""
    paid = [
        sample["scores"]["reward"]["value"]
        for sample in samples
        if sample["metadata"]["policy"] == policy and "reward" in sample["scores"]
    ]
    mean = sum(paid) / len(paid) if paid else 0.0
    metrics: dict[str, Any] = {"mean": {"name": "mean", "value": mean, "params": {}}}
    return {"name": policy, "scorer": "reward", "scored_samples": len(paid), "params": {}, "metrics": metrics}


def main() -> None:
    parser = argparse.ArgumentParser("python -m jaxmarl_llm.view.inspect_logs", description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="a run directory, or one that holds several")
    parser.add_argument("--out", type=Path, help=f"directory of the logs (RUN/{FOLDER})")
    given = parser.parse_args()
    try:
        written = write_logs(given.run, given.out or given.run / FOLDER)
    except (ValueError, OSError) as error:
        parser.exit(2, f"error: {error}\n")
    print(f"{written[0].parent}: {len(written)} logs; show them with: inspect view --log-dir {written[0].parent}")


if __name__ == "__main__":
    with lasting():
        main()
