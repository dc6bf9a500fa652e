"""Self-play and REINFORCE with transformers, peft and torch, as other libraries do them, for comparison.

Every turn renders a chat template, calls `generate`, and parses with `re`. A sample of the update is either a whole
dialogue or one turn.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import numpy as np

from experiments.benchmarks.pairs import need
from jaxmarl_llm.environments.social.matrix_games import MatrixGame

need("torch", "peft")
import torch  # noqa: E402
from peft import LoraConfig, get_peft_model  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

Chat = list[dict[str, Any]]
Sample = Literal["dialogue", "turn"]


class Peers:
    """A LoRA policy in both seats of `games` parallel MatrixGames; half of the games exchange the labels.

    An answer is a label, of `answer` tokens including the end of the turn.
    """

    def __init__(self, directory: Path, game: MatrixGame, games: int, rank: int, alpha: int, answer: int = 2):
        base = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        lora = LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM")
        self.model = get_peft_model(base, lora)
        self.tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
        self.tokenizer.pad_token = self.tokenizer.eos_token
        self.optimiser = torch.optim.AdamW([x for x in self.model.parameters() if x.requires_grad], lr=3e-4)
        self.game, self.games, self.answer = game, games, answer
        self.pattern = re.compile("|".join(map(re.escape, game.labels)))

    def play(self) -> tuple[list[Chat], np.ndarray]:
        """Plays whole games: (dialogue of each row, points [rows, rounds]). A seat's row is 2 * game + seat."""
        (rules,), (told,) = self.game.rules, self.game.observation
        rows = range(2 * self.games)
        swapped = [row // 2 % 2 for row in rows]
        chats: list[Chat] = [
            [{"role": "system", "content": rules[2 * (row % 2) + swapped[row]]}, {"role": "user", "content": told[0]}]
            for row in rows
        ]
        points = np.zeros((len(rows), self.game.rounds))
        for turn in range(self.game.rounds):
            said = [self._parse(text) for text in self._generate(chats)]
            for row in rows:
                mine, theirs = (self.game.labels.index(said[at]) ^ swapped[row] for at in (row, row ^ 1))
                first, second = (mine, theirs) if row % 2 == 0 else (theirs, mine)
                points[row, turn] = self.game.payoff[first][second][row % 2]
                chats[row].append({"role": "assistant", "content": said[row]})
                if turn + 1 < self.game.rounds:
                    heard = told[1 + self.game.labels.index(said[row ^ 1])]
                    chats[row].append({"role": "user", "content": heard})
        return chats, points

    def _parse(self, text: str) -> str:
        match = self.pattern.search(text)
        return match[0] if match else self.game.labels[0]

    @torch.no_grad()
    def _generate(self, chats: list[Chat]) -> list[str]:
        texts = self.tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
        inputs = self.tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        tokens = self.model.generate(
            **inputs, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, min_new_tokens=self.answer,
            max_new_tokens=self.answer, pad_token_id=self.tokenizer.pad_token_id,
        )  # fmt: skip
        new = tokens[:, inputs["input_ids"].shape[1] :]
        return self.tokenizer.batch_decode(new, skip_special_tokens=True)

    def learn(self, chats: list[Chat], points: np.ndarray, sample: Sample, micro: int = 8) -> int:
        """A step of AdamW on REINFORCE; returns the number of tokens computed.

        The advantage of a round is its points [rows, rounds] minus their mean over rows.
        """
        advantage = points - points.mean(0)
        rounds = range(self.game.rounds)
        samples: list[tuple[list[int], list[tuple[int, float]]]] = []  # (tokens, [(start of an answer, its advantage)])
        for row, chat in enumerate(chats):
            ends = [2 * turn + 3 for turn in rounds]
            places = [
                (len(self._tokens(chat[: end - 1], True)), float(advantage[row, t])) for t, end in enumerate(ends)
            ]
            if sample == "dialogue":
                samples.append((self._tokens(chat, False), places))
            else:
                samples += [(self._tokens(chat[:end], False), [place]) for end, place in zip(ends, places, strict=True)]
        samples.sort(key=lambda x: len(x[0]))  # the least padding
        count, computed = len(chats) * self.game.rounds, 0
        self.optimiser.zero_grad()
        for start in range(0, len(samples), micro):
            part = samples[start : start + micro]
            width = max(len(tokens) for tokens, _ in part)
            ids = torch.full((len(part), width), self.tokenizer.pad_token_id)
            weight = torch.zeros((len(part), width - 1))
            for i, (tokens, places) in enumerate(part):
                ids[i, : len(tokens)] = torch.tensor(tokens)
                for at, value in places:
                    weight[i, at - 1] = value
            lengths = torch.tensor([len(tokens) for tokens, _ in part])
            mask = (torch.arange(width)[None] < lengths[:, None]).long()
            logits = self.model(input_ids=ids, attention_mask=mask).logits[:, :-1]
            logp = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
            (-(logp * weight).sum() / count).backward()
            computed += ids.numel()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        return computed

    def _tokens(self, chat: Chat, prompt: bool) -> list[int]:
        text = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompt)
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def iterate(self, sample: Sample) -> int:
        return self.learn(*self.play(), sample)
