"""Referees of all games, by the name of their class: a transcript -> what it paid and measured [turns, A, C + M].

They share no code with the games and read rendered texts only.
"""

from tests.support.referees import boards_and_cards, judges, long_games, social, teams

REFEREES = {
    **social.REFEREES,
    **boards_and_cards.REFEREES,
    **teams.REFEREES,
    **judges.REFEREES,
    **long_games.REFEREES,
}
