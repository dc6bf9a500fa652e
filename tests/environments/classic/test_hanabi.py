"""Hanabi: every step of random games against OpenSpiel, what is told and hidden, worked examples, scripted players."""

import re
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.classic.hanabi import COLOURS, SIZES, Hanabi, State

PLAYED: dict[str, tuple[dict[str, int], int]] = {  # settings and games
    "mini": (dict(SIZES["mini"]), 2000),
    "simple": (dict(SIZES["simple"]), 300),
    "full": (dict(SIZES["full"]), 50),
    "five": (
        {"players": 5, "colours": 2, "ranks": 3, "hand_size": 2, "information_tokens": 2, "life_tokens": 2},
        100,
    ),
}
CAUTION = (0.0, 0.5, 0.9, 1.0)  # of game g: how often its moves are those of the cautious player, CAUTION[g % 4]
WORD = {word[0].upper(): word for word in COLOURS}


@cache
def played(name: str) -> tuple[Hanabi, Any, np.ndarray, dict[str, Any]]:
    """The game, first views [G], openings [G, A, 2] and a record of leaves [T, G, ...], void after the end."""
    settings, games = PLAYED[name]
    game = Hanabi(**settings)
    caution = jnp.asarray(CAUTION, jnp.float32)[jnp.arange(games) % len(CAUTION)]

    def move(state, t, key):
        seat = t % game.agents
        pick, draw = jax.random.split(key)
        return game.scripts["random"](state, seat, draw), game.scripts["cautious"](state, seat, draw), pick

    @jax.jit
    def run(key):
        state, view = jax.vmap(game.reset)(jax.random.split(key, games), jnp.arange(games, dtype=jnp.int32))

        def turn(state, t):
            keys = jax.random.split(jax.random.fold_in(key, t), games)
            random, cautious, pick = jax.vmap(move, (0, None, 0))(state, t, keys)
            action = jnp.where(jax.vmap(jax.random.uniform)(pick) < caution, cautious, random)
            everyone = jnp.broadcast_to(action[:, None], (games, game.agents))
            after, told, reward = jax.vmap(game.step)(state, everyone, keys)
            record = {"state": state, "action": action, "cautious": cautious, "view": told, "reward": reward}
            return after, record

        record = jax.lax.scan(turn, state, jnp.arange(game.turns, dtype=jnp.int32))[1]
        return view, jax.vmap(game.prompt)(state), record

    return game, *jax.device_get(run(jax.random.key(0)))


def alive(game: Hanabi, record: dict[str, Any]) -> np.ndarray:
    """bool [T, G]: the turn was played before the end."""
    over = np.cumsum(record["view"].terminated, 0) - record["view"].terminated
    return over == 0


def at(tree: Any, *index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def render(fields, ids: np.ndarray) -> str:
    return "".join(field[i] for field, i in zip(fields, ids, strict=True) if i >= 0)


def board(observed: str, seat: int, game: Hanabi, first: bool) -> str:
    """What OpenSpiel's observation says, as we say it to the acting seat."""
    lives, hints, stacks, _, *hands, deck, discards = observed.split("\n")
    colours, ranks = "RYGWB"[: game.colours], "12345"[: game.ranks]

    def about(knowledge: str) -> str:
        told, possible = knowledge.split("|")
        text = ""
        for hint, values in zip(told, (colours, ranks), strict=True):
            excluded = [value for value in values if value not in possible]
            text += f" told {hint}" if hint != "X" else f" not {','.join(excluded)}" if excluded else ""
        return text

    holders = "\n".join(hands).split("\n-----\n")
    assert holders[0].startswith("Cur player\n")
    holders[0] = holders[0].removeprefix("Cur player\n")
    lines = []
    for offset, held in enumerate(holders):
        cards = []
        for place, line in enumerate(held.strip().split("\n"), 1):
            if line:
                card, knowledge = line.split(" || ")
                cards.append((f"card {place}" if offset == 0 else card) + about(knowledge))
        who = "You hold" if offset == 0 else f"Player {(seat + offset) % game.players + 1} holds"
        lines.append(" ".join([who, " | ".join(cards)]).rstrip())
    order = sorted(discards.split()[1:], key=lambda card: (colours.index(card[0]), card[1]))
    return ("" if first else "\n") + "\n".join(
        [
            f"Lives {lives.split()[-1]}, hints {hints.split()[-1]}, deck {deck.split()[-1]}",
            f"Stacks: {' '.join(stacks.split()[1:])}",
            f"Discarded: {' '.join(order) or 'none'}",
            *lines[1:],
            lines[0],
        ]
    )


def sentence(move: str, mover: int, listener: int, before: list[list[str]], fits: bool) -> str:
    """OpenSpiel's move as we tell it; `before` are the cards of all hands."""
    who = "You" if mover == listener else f"Player {mover + 1}"
    if hint := re.fullmatch(r"\(Reveal player \+(\d) (color|rank) (\w)\)", move):
        holder, value = (mover + int(hint[1])) % len(before), hint[3]
        touched = "".join(f" card {place}" for place, card in enumerate(before[holder], 1) if value in card)
        whom = "you" if holder == listener else f"player {holder + 1}"
        return f"{who} told {whom} {WORD[value] if hint[2] == 'color' else f'rank {value}'}:{touched}"
    kind, place = re.fullmatch(r"\((Play|Discard) (\d)\)", move).groups()
    card = before[mover][int(place)]
    if kind == "Discard":
        return f"{who} discarded card {int(place) + 1}: {card}"
    return f"{who} played card {int(place) + 1}: {card} {'fits' if fits else 'does not fit'}"


def careful(observed: str, moves: dict[str, int], game: Hanabi) -> int:
    """The cautious player, from OpenSpiel's observation and its legal moves."""
    stacks = {text[0]: int(text[1]) for text in re.search(r"Fireworks: (.*)", observed)[1].split()}
    hands = observed.split("Hands:\nCur player\n")[1].split("\nDeck size")[0].split("-----\n")
    parsed = [[re.split(r" \|\| |\|", line) for line in hand.strip().split("\n") if line] for hand in hands]

    def sure(possible: str) -> bool:
        colours, ranks = re.fullmatch(r"(\D+)(\d+)", possible).groups()
        return all(stacks[c] + 1 == int(r) for c in colours for r in ranks)

    wanted = [f"(Play {place})" for place, (_, _, possible) in enumerate(parsed[0]) if sure(possible)]
    new = [
        (offset, card, told)
        for offset, hand in enumerate(parsed)
        for card, told, possible in hand
        if offset and stacks[card[0]] + 1 == int(card[1]) and not sure(possible)
    ]
    hints = {f"(Reveal player +{o} rank {card[1]})" for o, card, told in new if told[1] == "X"}
    hints |= {f"(Reveal player +{o} color {card[0]})" for o, card, told in new if told[1] != "X"}
    wanted += sorted(hints & set(moves), key=moves.__getitem__)
    wanted += ["(Discard 0)", *[move for move in moves if move.startswith("(Reveal")], "(Play 0)"]
    return next(moves[move] for move in wanted if move in moves)


@pytest.mark.parametrize("name", PLAYED)
def test_every_step_is_openspiels(name):
    """Legal moves, observation, what happened, rewards, ends, and the cautious player's choice, with the same deck."""
    pyspiel = pytest.importorskip("pyspiel")
    game, first, _, record = played(name)
    parameters = {"colours": "colors", "information_tokens": "max_information_tokens", "life_tokens": "max_life_tokens"}
    settings = {"players": 2, **PLAYED[name][0]}
    theirs = pyspiel.load_game("hanabi", {parameters.get(key, key): value for key, value in settings.items()})
    assert theirs.num_distinct_actions() == game.actions
    fields, endings, turns_taken = game.observation, set(), 0
    for g in range(PLAYED[name][1]):
        state, deck = theirs.new_initial_state(), iter(record["state"].deck[0, g].tolist())
        told = [""] * game.players
        view = at(first, g)
        for t in range(game.turns + 1):
            while state.is_chance_node():
                state.apply_action(next(deck))
            assert bool(view.terminated) == state.is_terminal()
            if state.is_terminal():
                assert (view.phrases == -1).all() and not view.acting.any()
                break
            seat = state.current_player()
            assert view.acting.tolist() == [s == seat for s in range(game.players)]
            assert np.flatnonzero(view.legal[seat]).tolist() == state.legal_actions()
            observed = state.observation_string(seat)
            told[seat] += board(observed, seat, game, first=t == 0)
            assert [render(fields, ids) for ids in view.phrases] == told
            moves = {state.action_to_string(seat, a): a for a in state.legal_actions()}
            assert record["cautious"][t, g] == careful(observed, moves, game)

            action = int(record["action"][t, g])
            move, hands = state.action_to_string(seat, action), str(state).split("Hands:\n")[1].split("Deck")[0]
            cards = [re.findall(r"(\w\d) \|\|", hand) for hand in hands.split("-----\n")]
            life, score = str(state)[:14], state.returns()
            state.apply_action(action)
            assert record["reward"][t, g, :, 0].tolist() == state.rewards()
            assert state.rewards() == (np.array(state.returns()) - score).tolist()
            fits = str(state)[:14] == life  # no life was lost
            told = [
                ("\n" if t > 0 and s != seat else "") + sentence(move, seat, s, cards, fits)
                for s in range(game.players)
            ]
            view = at(record["view"], t, g)
        else:
            raise AssertionError("the game did not end in time")
        turns_taken += t
        score = state.returns()[0]
        full = score == game.colours * game.ranks
        endings.add("complete" if full else "lives" if "Life tokens: 0" in str(state) else "deck")
    assert turns_taken == alive(game, record).sum()
    if name in ("mini", "five"):  # where the last life took points with it, several in the larger game
        assert endings >= ({"complete", "lives", "deck"} if name == "mini" else {"lives", "deck"})
        assert record["reward"][alive(game, record)].min() <= (-1 if name == "mini" else -2)


@pytest.mark.parametrize("players", (2, 4))
def test_words_are_openspiels_moves(players):
    pyspiel = pytest.importorskip("pyspiel")
    settings = {"players": players, "hand_size": 3}
    game, state = Hanabi(**settings), pyspiel.load_game("hanabi", settings).new_initial_state()
    assert len(game.grammars) == (1 if players == 2 else players)
    for seat, (choice,) in enumerate(game.grammars):
        assert [number for number, _ in choice.options] == list(range(game.actions))
        for number, words in choice.options:
            said = state.action_to_string(seat, number)
            hint = re.fullmatch(r"\(Reveal player \+(\d) (?:color|rank) (\w)\)", said)
            if hint:
                whom = "" if players == 2 else f" to player {(seat + int(hint[1])) % players + 1}"
                assert words == f"tell {WORD.get(hint[2], hint[2])}{whom}"
            else:
                kind, place = said.strip("()").split()
                assert words == f"{kind.lower()} {int(place) + 1}"


def test_no_own_card_can_be_read_from_what_a_seat_is_told():
    """Other cards in the own hand and deck, as far as its hints allow: the same words and legal moves for this seat."""
    game, _, _, record = played("five")
    rng, played_on = np.random.default_rng(0), alive(game, record) & ~record["view"].terminated
    originals, changed, seats = [], [], []
    for t, g in zip(*np.nonzero(played_on), strict=True):
        state = at(record["state"], t, g)
        if t + 1 == game.turns or rng.random() > 0.5:
            continue
        after = at(record["state"], t + 1, g)
        seat, mover = int(rng.integers(game.players)), t % game.players
        if seat == mover:  # its own move showed a card
            continue
        known = [(int(after.told_colour[seat, i]), int(after.told_rank[seat, i])) for i in range(game.hand_size)]
        held = int((state.hands[seat] >= 0).sum())
        shuffled = np.concatenate([state.hands[seat, :held], state.deck[after.drawn :]])
        for _ in range(20):
            rng.shuffle(shuffled)
            if all(may_be(card, known[i], game) for i, card in enumerate(shuffled[:held])):
                break
        else:
            continue
        hands, deck = state.hands.copy(), state.deck.copy()
        hands[seat, :held], deck[after.drawn :] = shuffled[:held], shuffled[held:]
        originals.append((state, record["action"][t, g]))
        changed.append(state.replace(hands=hands, deck=deck))
        seats.append(seat)
    stack = lambda states: jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    states = stack([state for state, _ in originals] + changed)
    action = np.tile(np.array([[a] * game.agents for _, a in originals], np.int32), (2, 1))
    _, view, _ = jax.device_get(jax.jit(jax.vmap(game.step, (0, 0, None)))(states, action, jax.random.key(0)))
    n, seats = len(seats), np.array(seats)
    rows = np.arange(n)
    assert n > 300 and sum((a.hands != b.hands).any() for (a, _), b in zip(originals, changed, strict=True)) > n / 3
    for part in (view.phrases, view.legal):
        np.testing.assert_array_equal(part[rows, seats], part[n + rows, seats])
    actor = view.acting[:n].argmax(1)
    assert (actor == seats).any()  # else there was nothing to leak
    others = (actor != seats) & view.acting[:n].any(1)
    assert (
        (view.phrases[:n] != view.phrases[n:])[rows, actor].any(-1)[others].any()
    )  # who sees the hand is told another


def may_be(card: int, known: tuple[int, int], game: Hanabi) -> bool:
    return all(
        value == told - 2**values if told >= 2**values else not told >> value & 1
        for value, told, values in zip(divmod(int(card), game.ranks), known, (game.colours, game.ranks), strict=True)
    )


@cache
def mini():
    game = Hanabi(**SIZES["mini"])
    return game, jax.jit(game.step)


R1, R2, Y1, Y2 = range(4)
DECK = (R1, R1, Y1, R2, Y2, Y1, R1, Y1)


def play(*words: str, deck=DECK) -> tuple[State, Any, list[float]]:
    """State, view and rewards after these moves with this deck."""
    game, step = mini()
    number = {text: n for n, text in game.grammars[0][0].options}
    state, view = game.deal(jnp.array(deck, jnp.int32))
    rewards = []
    for said in words:
        assert view.legal[view.acting][0, number[said]]
        state, view, reward = step(state, jnp.full((2,), number[said], jnp.int32), jax.random.key(0))
        assert reward[0, 0] == reward[1, 0]
        rewards.append(float(reward[0, 0]))
    return state, view, rewards


def test_the_turn_that_loses_the_last_life_takes_all_points():
    deck = (R1, R1, Y1, R2, Y2, R1, Y1, Y1)
    state, view, rewards = play("play 1", "play 2", "play 1", deck=deck)  # R1 fits; Y2 and the second R1 do not
    assert rewards == [1, 0, 0] and state.lives == 1 and state.stacks.tolist() == [1, 0] and not view.terminated
    state, view, rewards = play("play 1", "play 2", "play 1", "play 2", deck=deck)  # the third R1
    assert rewards == [1, 0, 0, -1] and state.lives == 0 and view.terminated


def test_a_complete_stack_brings_a_hint_back_if_one_was_spent():
    state, _, rewards = play("play 1", "play 1")
    assert rewards == [1, 1] and state.information == 3 and state.stacks.tolist() == [2, 0]
    state, _, rewards = play("tell yellow", "tell 1", "play 1", "play 1")
    assert rewards == [0, 0, 1, 1] and state.information == 2


def test_all_stacks_complete_ends_the_game():
    _, view, rewards = play("play 1", "play 1", "play 2", "play 1")  # R1, R2, Y1, Y2
    assert rewards == [1, 1, 1, 1] and view.terminated and not view.acting.any()


def test_what_both_are_told_of_a_hint():
    game, _ = mini()
    _, view, _ = play("play 1", "tell yellow")
    assert [render(game.observation, ids) for ids in view.phrases] == [
        "\nPlayer 2 told you yellow: card 2"
        "\nLives 3, hints 2, deck 1"
        "\nStacks: R1 Y0"
        "\nDiscarded: none"
        "\nPlayer 2 holds R2 | Y2 | Y1"
        "\nYou hold card 1 not Y | card 2 told Y | card 3 not Y",
        "You told player 1 yellow: card 2",
    ]


def test_turns_is_the_longest_game():
    spend = ["tell 1", "tell 1", "tell 1"]
    longest = [*spend, "discard 1", "tell 1", "discard 1", "discard 1", "discard 1"]
    _, view, _ = play(*longest[:-1])
    assert len(longest) == mini()[0].turns and not view.terminated
    assert play(*longest)[1].terminated
    assert Hanabi(players=2, colours=1, ranks=1, hand_size=1).turns == 2 + 8 + 1
    assert Hanabi(players=5, colours=5, ranks=2, hand_size=4).turns == 5  # no card is left to draw


def test_what_the_rules_forbid_is_the_first_legal_move():
    game, step = mini()
    for words in ((), ("tell 1", "tell 1", "tell 2")):  # nothing to gain by a discard; no hint left
        state, view, _ = play(*words)
        legal = np.asarray(view.legal[view.acting][0])
        first = step(state, jnp.full((2,), legal.argmax(), jnp.int32), jax.random.key(0))
        for action in (-1, game.actions, *np.flatnonzero(~legal)):
            other = step(state, jnp.full((2,), action, jnp.int32), jax.random.key(0))
            jax.tree.map(np.testing.assert_array_equal, first, other)


def test_every_deck_is_as_likely():
    game, _, prompts, record = played("mini")
    decks = record["state"].deck[0]
    assert (np.sort(decks, 1) == [R1] * 3 + [R2] + [Y1] * 3 + [Y2]).all()
    for place in range(8):
        for card, share in ((R1, 3 / 8), (R2, 1 / 8), (Y1, 3 / 8), (Y2, 1 / 8)):
            assert abs((decks[:, place] == card).mean() - share) < 4.5 * (share * (1 - share) / len(decks)) ** 0.5
    assert (prompts == [[0, 0], [0, 1]]).all()
    again = game.reset(jax.random.key(5), jnp.int32(0))
    jax.tree.map(np.testing.assert_array_equal, again, game.reset(jax.random.key(5), jnp.int32(1)))


@pytest.mark.parametrize("name", PLAYED)
def test_the_rules_tell_the_cards(name):
    game = played(name)[0]
    text = game.rules[0][0]
    cards = [int(rank) - 1 for count, rank in re.findall(r"(\d) of rank (\d)", text) for _ in range(int(count))]
    assert np.bincount(cards).tolist() == [*[3, 2, 2, 2][: game.ranks - 1], 1]
    assert re.findall(r"\b([A-Z]) (\w+)", text.partition("Colours: ")[2].partition(".")[0]) == [
        (word[0].upper(), word) for word in COLOURS[: game.colours]
    ]
    assert game.rules[1] == tuple(f" You are player {seat + 1}." for seat in range(game.players))


def test_the_cautious_player_loses_no_life_and_scores_more():
    for name in PLAYED:
        game, _, _, record = played(name)
        lives = np.where(alive(game, record), record["state"].lives, game.life_tokens)
        score = (record["reward"][..., 0, 0] * alive(game, record)).sum(0)
        wild, sure = (np.arange(len(score)) % len(CAUTION) == CAUTION.index(p) for p in (0.0, 1.0))
        assert (lives[:, sure] == game.life_tokens).all() and (score >= 0).all()
        assert score[sure].mean() > score[wild].mean() + 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"players": 1}, "players must be from 2 to 5, got 1"),
        ({"players": 6}, "players must be from 2 to 5, got 6"),
        ({"colours": 0}, "colours must be from 1 to 5, got 0"),
        ({"ranks": 6}, "ranks must be from 1 to 5, got 6"),
        ({"hand_size": 0}, "hand_size must be at least 1, got 0"),
        ({"information_tokens": 0}, "information_tokens must be at least 1, got 0"),
        ({"life_tokens": 0}, "life_tokens must be at least 1, got 0"),
        ({"colours": 2, "ranks": 2}, "2 hands of 5 cards need more than the 8 cards that 2 colours of 2 ranks have"),
    ],
)
def test_settings_that_are_no_game(settings, message):
    with pytest.raises(ValueError, match=message):
        Hanabi(**settings)
