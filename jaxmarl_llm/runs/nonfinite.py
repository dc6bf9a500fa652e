"""The files that a run leaves when it stops because something was not finite: its last games, played once more."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.devices import distributed
from jaxmarl_llm.rollout.trajectory import Trajectory
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.training.watch import NonFiniteError

SHOWN = 4  # games in the transcript
FEW = 3  # names of a kind in the sentence


@contextlib.contextmanager
def save_nonfinite(trainer: Trainer, lanes: Sequence[str], out: Path) -> Iterator[None]:
    """A context in which training that ends with NonFiniteError writes its last batch to `out`/nonfinite-STEP.

    Games follow from the weights and the number of the update, and a skipped update changes no weights, so the batch
    can be played again. If only some minibatches were skipped, or a rollout mesh played ahead, the games are others,
    and the sentence of the error says so. The files are those of the first run concerned. `batch.npz` holds rows,
    log-probabilities, rewards and advantages by policy set. `report.json` names the arrays that were not finite.
    `games.md` holds the worst games as they were read. `lanes` names the runs. All processes play, and the first one
    writes.
    """
    try:
        yield
    except NonFiniteError as error:
        home, report = write(trainer, error, lanes, out)
        distributed.any_process(True)  # or the first to end would end the one that writes
        whole = error.skipped == trainer.recipe.epochs * trainer.recipe.minibatches and trainer.rollout_mesh is None
        games = "The last one's games" if whole else "Games of the weights after it"
        some = lambda names: ", ".join(names[:FEW]) + ", ..." * (len(names) > FEW)
        what = "; ".join(f"{kind}: {some(names)}" for kind, names in report["not finite"].items())
        who = " and ".join(lanes[i] for i in error.lanes)
        error.args = (
            f"Training stopped at update {error.step + 1}: updates of {who} were skipped, one after the other, "
            f"because something was not finite ({what or 'but all was when it was repeated'}). "
            f"{games} are in {home}; checkpoints are as they were.",
        )
        raise


def write(trainer: Trainer, error: NonFiniteError, lanes: Sequence[str], out: Path) -> tuple[Path, dict[str, Any]]:
    """Writes the batch of a run that failed, and report.json: returns (its directory, the content of report.json)."""
    lane = error.lanes[0]
    again = jax.device_get(trainer.replay_update(error.state, error.step))
    played, batch, metrics = jax.tree.map(lambda x: x[lane], again)
    weights = jax.tree.map(lambda x: x[lane], error.state.learners.weights)  # may be split over hosts
    arrays = by_path("episodes", vars(played.episodes))
    for name, part in batch.items():
        policy_set = name.replace("/", "_")  # a source may be a directory
        rows, tokens = part.rows, part.batch
        for field in ("tokens", "length", "loss_mask", "turn", "logp", "prompt", "episode", "seat", "policy"):
            arrays[f"{policy_set}/rows/{field}"] = getattr(rows, field)
        arrays |= {f"{policy_set}/prompts/{field}": getattr(rows.prompts, field) for field in ("tokens", "length")}
        arrays |= {f"{policy_set}/sampled/at": part.sampled.at}
        arrays |= by_path(f"{policy_set}/sampled", vars(tokens))
    gradients = {name: x for name, x in metrics.items() if name.startswith("gradient_norm/")}
    groups = {
        "base": nonfinite(trainer.base),
        "weights": nonfinite(weights),
        "games and advantages": nonfinite(arrays),
        "gradient norms": [name.removeprefix("gradient_norm/") for name in nonfinite(gradients)],
        "metrics": nonfinite({name: x for name, x in metrics.items() if name not in gradients}),
    }
    report = {
        "step": error.step,
        "run": lanes[lane],
        "runs": [lanes[i] for i in error.lanes],
        "not finite": {kind: names for kind, names in groups.items() if names},
        "metrics": {name: float(x) if np.isfinite(x) else str(x) for name, x in metrics.items()},
    }
    home = out / f"nonfinite-{error.step}"
    if not distributed.is_main_process():
        return home, report
    home.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(home / "batch.npz", **arrays)
    (home / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    text = [
        f"# Game {episode}, rewards by turn and seat {played.episodes.reward[episode].sum(-1).tolist()}\n\n"
        + transcript(trainer, played, episode)
        for episode in worst(played, batch)[:SHOWN]
    ]
    (home / "games.md").write_text("\n".join(text), encoding="utf-8")
    return home, report


def by_path(prefix: str, tree: Any) -> dict[str, Any]:
    """{prefix/path: array} of a tree; a None has no entry, since numpy saves it as an object that it does not load."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {f"{prefix}/{jax.tree_util.keystr(path, simple=True, separator='/')}": x for path, x in leaves}


def transcript(trainer: Trainer, played: Trajectory, episode: int) -> str:
    """Markdown of one game of a run as each seat read it, chat markers included."""
    texts = {}
    for name, of_set in played.rows.items():
        policy_set, rows = trainer.policy_sets[name], jax.tree.map(np.asarray, of_set)
        for row in np.flatnonzero(rows.episode == episode):
            prompt = rows.prompts.tokens[rows.prompt[row]][: rows.prompts.length[rows.prompt[row]]]
            text = policy_set.tokenizer.decode([*prompt.tolist(), *rows.tokens[row][: rows.length[row]].tolist()])
            name = policy_set.policies[rows.policy[row]]
            texts[rows.seat[row]] = f"Seat {rows.seat[row]} ({name})\n\n```\n{text}\n```\n"
    return "\n".join(texts[seat] for seat in sorted(texts))


def worst(played: Trajectory, batch: dict) -> list[int]:
    """Episodes, first those with most numbers that are not finite, then those with the largest advantages."""
    bad = (~np.isfinite(played.episodes.reward)).sum((1, 2, 3))
    large = np.zeros(len(bad))
    for part in batch.values():
        tokens = part.batch
        for x in (tokens.advantage, tokens.behaviour_logp):
            np.add.at(bad, tokens.episode, (~np.isfinite(x) & tokens.mask).sum(1))
        np.maximum.at(large, tokens.episode, np.abs(np.nan_to_num(tokens.advantage, posinf=0, neginf=0)).max(1))
    return np.lexsort((-large, -bad)).tolist()


def nonfinite(tree: Any) -> list[str]:
    """Paths of the leaves that hold NaN or infinity."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, x in leaves
        if jnp.issubdtype(x.dtype, jnp.floating) and not bool(jnp.isfinite(jnp.asarray(x)).all())
    ]
