"""Repeated 2x2 games: the rules against plain Python, what both seats are told, the scripted players."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.base import MessageFrom
from jaxmarl_llm.environments.social.matrix_games import COOPERATE, DEFECT, PRISONERS_DILEMMA, SETTINGS, MatrixGame
from jaxmarl_llm.text.grammar import Free, automaton

BATTLE_OF_THE_SEXES = (((3, 2), (0, 0)), ((0, 0), (2, 3)))
MATCHING_PENNIES = (((1, -1), (-1, 1)), ((-1, 1), (1, -1)))
LOPSIDED = (((1, 2), (3, 4)), ((5, 6), (7, 8.5)))  # eight numbers, all different
PAYOFFS = {"dilemma": PRISONERS_DILEMMA, "battle": BATTLE_OF_THE_SEXES, "pennies": MATCHING_PENNIES, "all": LOPSIDED}
ROUNDS, GAMES = 7, 48


def histories(game: MatrixGame, seed: int, script: str | None = None):
    """Random moves [T, G, 2] played through the game: states before each turn, views after it, rewards, actions of a
    script in both seats [T, G, 2]."""
    moves = jax.random.bernoulli(jax.random.key(seed), 0.4, (game.rounds, GAMES, 2)).astype(jnp.int32)
    groups = jnp.arange(GAMES, dtype=jnp.int32)

    @jax.jit
    def play():
        keys = jax.random.split(jax.random.key(seed), GAMES)
        state, view = jax.vmap(game.reset)(keys, groups)

        def turn(state, action):
            scripted = jnp.zeros((GAMES, 2), jnp.int32)
            if script is not None:
                player = game.scripts[script]
                scripted = jax.vmap(lambda s, k: jnp.stack([player(s, jnp.int32(seat), k) for seat in range(2)]))(
                    state, keys
                )
            after, told, reward = jax.vmap(game.step)(state, action, keys)
            return after, (told, reward, scripted)

        return view, jax.lax.scan(turn, state, moves)[1]

    first, (told, reward, scripted) = jax.device_get(play())
    return np.asarray(moves), first, told, reward, scripted


@pytest.mark.parametrize("payoff", PAYOFFS.values(), ids=PAYOFFS)
def test_each_seat_gets_its_own_points(payoff):
    moves, _, _, reward, _ = histories(MatrixGame(payoff, rounds=ROUNDS), 0)
    assert reward.shape == (ROUNDS, GAMES, 2, 1)
    for t in range(ROUNDS):
        for g in range(GAMES):
            a, b = moves[t, g]
            assert reward[t, g, :, 0].tolist() == [payoff[a][b][0], payoff[a][b][1]]


def test_pennies_match_for_one_seat_and_not_for_the_other():
    moves, _, _, reward, _ = histories(MatrixGame(MATCHING_PENNIES, rounds=ROUNDS), 1)
    same = moves[..., 0] == moves[..., 1]
    assert (reward[..., 0, 0] == np.where(same, 1, -1)).all() and (reward.sum((2, 3)) == 0).all()


def test_the_default_is_a_dilemma():
    points = np.array(MatrixGame().payoff)
    mine = points[..., 0]
    reward, sucker = mine[COOPERATE]
    temptation, punishment = mine[DEFECT]
    assert (temptation, reward, punishment, sucker) == (5, 3, 1, 0)
    assert temptation > reward > punishment > sucker and 2 * reward > temptation + sucker
    assert (points[..., 1] == mine.T).all()


def test_a_game_ends_after_its_rounds_and_moves_are_simultaneous():
    _, first, told, _, _ = histories(MatrixGame(rounds=ROUNDS), 2)
    assert first.acting.all() and not first.terminated.any()
    assert told.terminated.tolist() == [[t == ROUNDS - 1] * GAMES for t in range(ROUNDS)]
    assert (told.acting == ~told.terminated[..., None]).all() and not told.truncated.any()


@pytest.mark.parametrize("exchange", (True, False))
def test_each_seat_hears_the_label_of_the_other_ones_move(exchange):
    game = MatrixGame(rounds=ROUNDS, labels=("left", "right"), exchange=exchange)
    moves, first, told, _, _ = histories(game, 3)
    (phrases,) = game.observation
    assert {phrases[i] for i in first.phrases.ravel()} == {"Choose."}
    for g in range(GAMES):
        labels = ("right", "left") if exchange and g % 2 else ("left", "right")
        for t in range(ROUNDS):
            heard = [phrases[i] for i in told.phrases[t, g, :, 0]]
            assert heard == [f"They chose {labels[moves[t, g, 1]]}.", f"They chose {labels[moves[t, g, 0]]}."]


def meaning(game: MatrixGame, grammar: int) -> dict[str, int]:
    """Action of each label, as the grammar reads it."""
    machine, found = automaton(game.grammars[grammar]), {}
    for label in game.labels:
        state = 0
        for byte in label.encode():
            state = machine.next[state, byte]
        found[label] = int(machine.accepts[state])
    return found


def test_labels_are_exchanged_between_groups_and_shared_in_one():
    game, groups = MatrixGame(labels=("Z", "Q")), jnp.arange(10, dtype=jnp.int32)
    key = jax.random.key(0)
    state, view = jax.vmap(game.reset, (None, 0))(key, groups)
    assert (view.grammar[:, 0] == view.grammar[:, 1]).all()
    labelings = [meaning(game, int(g)) for g in view.grammar[:, 0]]
    assert sum(labeling == {"Z": COOPERATE, "Q": DEFECT} for labeling in labelings) == 5
    assert sum(labeling == {"Z": DEFECT, "Q": COOPERATE} for labeling in labelings) == 5
    again = game.reset(key, jnp.int32(3))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[3], b), (state, view), again)
    fixed = jax.vmap(MatrixGame(labels=("Z", "Q"), exchange=False).reset, (None, 0))(key, groups)[1]
    assert (fixed.grammar == 0).all()


@pytest.mark.parametrize("payoff", PAYOFFS.values(), ids=PAYOFFS)
def test_the_rules_tell_the_points_and_what_labels_mean(payoff):
    game = MatrixGame(payoff, rounds=9, labels=("Q", "B"), moves=("hawk", "dove"))
    state = jax.vmap(game.reset, (None, 0))(jax.random.key(0), jnp.arange(2, dtype=jnp.int32))
    prompt = np.asarray(jax.vmap(game.prompt)(state[0]))
    assert len({int(i) for i in prompt.ravel()}) == 4
    for group in range(2):
        for seat in range(2):
            text = game.rules[0][prompt[group, seat, 0]]
            assert "9 rounds" in text and "Answer B or Q." in text
            told = re.findall(r"you play (\w+) and they play (\w+): (-?[\d.]*\d)", text)
            assert len(told) == 4
            points = {(mine, theirs): float(value) for mine, theirs, value in told}
            for i, mine in enumerate(game.moves):
                for j, theirs in enumerate(game.moves):
                    own = payoff[i][j][0] if seat == 0 else payoff[j][i][1]
                    assert points[mine, theirs] == own
            labels = {label: game.moves.index(move) for label, move in re.findall(r"(\w) means (\w+)", text)}
            assert labels == meaning(game, int(state[1].grammar[group, seat]))


def test_the_order_of_the_labels_does_not_tell_their_meaning():
    texts = MatrixGame().rules[0]
    assert [re.findall(r"(\w) means", text) for text in texts] == [["A", "B"]] * 4


def grim(mine, theirs):
    return DEFECT if DEFECT in theirs else COOPERATE


def tit_for_tat(mine, theirs):
    return theirs[-1] if theirs else COOPERATE


def win_stay_lose_shift(mine, theirs):
    if not mine:
        return COOPERATE
    points = PRISONERS_DILEMMA[mine[-1]][theirs[-1]][0]
    return mine[-1] if points >= 3 else {COOPERATE: DEFECT, DEFECT: COOPERATE}[mine[-1]]


PLAYERS = {
    "always_cooperate": lambda mine, theirs: COOPERATE,
    "always_defect": lambda mine, theirs: DEFECT,
    "tit_for_tat": tit_for_tat,
    "grim": grim,
    "win_stay_lose_shift": win_stay_lose_shift,
}


@pytest.mark.parametrize("name", PLAYERS)
def test_scripted_players_against_python(name):
    moves, _, _, _, scripted = histories(MatrixGame(rounds=ROUNDS), 4, name)
    for g in range(GAMES):
        for t in range(ROUNDS):
            for seat in range(2):
                mine, theirs = moves[:t, g, seat].tolist(), moves[:t, g, 1 - seat].tolist()
                assert scripted[t, g, seat] == PLAYERS[name](mine, theirs), (mine, theirs)


@pytest.mark.parametrize("name", SETTINGS)
def test_win_stay_lose_shift_stays_where_it_earned_more_than_the_mean(name):
    """In every 2x2 game and from both seats; in coordination it stays with the second action too."""
    game = MatrixGame(**SETTINGS[name])
    for a, b in np.ndindex(2, 2):
        state, _ = game.reset(jax.random.key(0), jnp.int32(0))
        state, _, reward = game.step(state, jnp.array([a, b]), jax.random.key(0))
        for seat, mine in enumerate((a, b)):
            own = np.array(game.payoff)[..., seat]
            stays = int(game.scripts["win_stay_lose_shift"](state, jnp.int32(seat), jax.random.key(0))) == mine
            assert stays == (own[a, b] > own.mean()) and float(reward[seat, 0]) == own[a, b]


def test_the_random_player_cooperates_as_often_as_it_is_told():
    game = MatrixGame(cooperation=0.3)
    state, _ = game.reset(jax.random.key(0), jnp.int32(0))
    keys = jax.random.split(jax.random.key(1), 4000)
    action = jax.vmap(lambda key: game.scripts["random"](state, jnp.int32(0), key))(keys)
    assert set(np.unique(action)) == {COOPERATE, DEFECT}
    assert abs((np.asarray(action) == COOPERATE).mean() - 0.3) < 4 * (0.3 * 0.7 / 4000) ** 0.5
    assert set(game.scripts) == {*PLAYERS, "random"}


def test_with_talk_a_round_is_a_line_from_both_and_then_the_moves():
    """Against the game without talk, in which the same moves are played; what is said is no move."""
    plain, game = (MatrixGame(LOPSIDED, rounds=ROUNDS, labels=("Z", "Q"), talk=talk) for talk in (False, True))
    moves, _, told, reward, _ = histories(plain, 5)
    state, view = jax.vmap(game.reset, (None, 0))(jax.random.key(0), jnp.arange(GAMES, dtype=jnp.int32))
    step = jax.jit(jax.vmap(game.step, (0, 0, None)))
    ask, fields = "Say one line to them.", game.observation
    assert (
        game.grammars[-1] == (Free(b"\n"),)
        and fields[1:3] == (MessageFrom(0), MessageFrom(1))
        and game.turns == 2 * ROUNDS
    )
    texts = lambda view, seat, g: [
        "" if i < 0 or isinstance(field, MessageFrom) else field[i]
        for field, i in zip(fields, view.phrases[g, seat], strict=True)
    ]
    for t in range(ROUNDS):
        view = jax.device_get(view)
        assert (view.grammar == 2).all() and (view.legal == [True, False]).all() and view.acting.all()
        if t == 0:
            assert texts(view, 0, 0) == texts(view, 1, 1) == [ask, "", "", ""]
        scripted = [game.scripts["always_defect"](jax.tree.map(lambda x: x[0], state), s, None) for s in range(2)]
        assert scripted == [0, 0]  # nothing but a message is legal
        state, view, nothing = step(state, jnp.zeros((GAMES, 2), jnp.int32), jax.random.key(0))
        view = jax.device_get(view)
        assert not nothing.any() and not view.terminated.any()
        assert (view.hears == [[False, True], [True, False]]).all()  # both hear the other one's line
        assert texts(view, 0, 0) == texts(view, 1, 1) == ["They say:\n", "", "", "\nChoose."]
        assert view.legal.all() and (view.grammar == (np.arange(GAMES) % 2)[:, None]).all()
        state, view, points = step(state, jnp.asarray(moves[t]), jax.random.key(0))
        np.testing.assert_array_equal(points, reward[t])
        assert not view.hears.any()
        for g in range(GAMES):
            for seat in range(2):
                before = plain.observation[0][told.phrases[t, g, seat, 0]]
                assert texts(view, seat, g) == [f"{before} {ask}", "", "", ""]
    assert view.terminated.all() and not view.acting.any()


@pytest.mark.parametrize("name", ("tit_for_tat", "win_stay_lose_shift"))
def test_scripted_players_move_as_they_do_without_talk(name):
    plain, game = (MatrixGame(rounds=3, talk=talk) for talk in (False, True))

    def both(moves):
        """What the script does without talk and with it after these moves [2, 2], in either seat: [2, 2]."""
        alone, talking = plain.reset(None, jnp.int32(0))[0], game.reset(None, jnp.int32(0))[0]
        for pair in moves:
            alone = plain.step(alone, pair, None)[0]
            for action in (jnp.zeros_like(pair), pair):
                talking = game.step(talking, action, None)[0]
        talking = game.step(talking, jnp.zeros_like(pair), None)[0]
        pairs = ((plain, alone), (game, talking))
        return jnp.stack([jnp.stack([g.scripts[name](s, seat, None) for seat in range(2)]) for g, s in pairs])

    without, with_talk = jnp.moveaxis(
        jax.jit(jax.vmap(both))(np.indices((2,) * 4).reshape(4, -1).T.reshape(-1, 2, 2)), 1, 0
    )
    assert without.shape == (16, 2)
    np.testing.assert_array_equal(without, with_talk)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"payoff": ((1, 2), (3, 4))}, r"shape \(2, 2, 2\).*got \(2, 2\)"),
        ({"payoff": (((1, 2), (3, 4)),)}, r"got \(1, 2, 2\)"),
        ({"payoff": (((3, 3), (0, 5)), ((5, 0), (1,)))}, r"shape \(2, 2, 2\)"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"labels": ("A", "A")}, "two different texts"),
        ({"labels": ("A", "")}, "two different texts"),
        ({"labels": ("A", "B", "C")}, "two different texts"),
    ],
)
def test_settings_that_are_no_game(settings, message):
    with pytest.raises(ValueError, match=message):
        MatrixGame(**settings)


def ordered(name):
    """T, R, P, S of a symmetric game, and its points [2, 2, seat]."""
    points = np.array(SETTINGS[name]["payoff"])
    (reward, sucker), (temptation, punishment) = points[..., 0]
    assert (points[..., 1] == points[..., 0].T).all()
    return temptation, reward, punishment, sucker, points


def equilibria(points):
    """Pure Nash equilibria: nobody gains by changing alone."""
    best = np.stack([points[..., 0] == points[..., 0].max(0), points[..., 1] == points[..., 1].max(1, keepdims=True)])
    return {(int(a), int(b)) for a, b in np.argwhere(best.all(0))}


def test_dilemmas_are_dilemmas_which_textarena_makes_zero_sum():
    T, R, P, S, points = ordered("prisoners_dilemma")
    assert T > R > P > S and 2 * R > T + S and equilibria(points) == {(1, 1)}
    # TextArena pays +1 and -1 for having more points: what one wins the other loses, and mutual cooperation is worth 0
    theirs = np.sign(points - points[..., ::-1])
    assert (theirs.sum(2) == 0).all() and theirs[0, 0, 0] == theirs[1, 1, 0] == 0
    assert points[0, 0].sum() > points[1, 1].sum()


def test_named_games_are_what_they_are_called():
    T, R, P, S, points = ordered("stag_hunt")
    assert R > T >= P > S and equilibria(points) == {(0, 0), (1, 1)}
    assert R > P and R + S < T + P  # the stag pays more, the hare is safer
    T, R, P, S, points = ordered("chicken")
    assert T > R > S > P and equilibria(points) == {(0, 1), (1, 0)}
    *_, points = ordered("coordination")
    assert equilibria(points) == {(0, 0), (1, 1)} and (points[0, 0] == points[1, 1]).all()
    battle = np.array(SETTINGS["battle_of_the_sexes"]["payoff"])
    assert equilibria(battle) == {(0, 0), (1, 1)} and (battle[0, 0] == battle[1, 1, ::-1]).all()
    assert battle[0, 0, 0] > battle[1, 1, 0] > battle[0, 1].max() == battle[1, 0].max()
    pennies = np.array(SETTINGS["matching_pennies"]["payoff"])
    assert (pennies.sum(2) == 0).all() and equilibria(pennies) == set()


def test_named_games_are_told_in_their_own_words():
    for settings in SETTINGS.values():
        game = MatrixGame(**settings)
        for text in game.rules[0]:
            assert all(
                f" means {move}" in text and f"you play {move} and they play {move}: " in text for move in game.moves
            )
