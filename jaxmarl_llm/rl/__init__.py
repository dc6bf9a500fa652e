"""Estimators and losses: arrays in, arrays out. This room imports no other part of the package.

`rewards` weighs components, `returns` sums the rewards that follow an act, `advantages` compares returns with a
baseline, `losses` turns advantages into a loss. `masked` and `statistics` are the kernels.
"""
