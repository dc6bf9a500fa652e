"""Estimators and losses: arrays in, arrays out. This room imports no other part of the package.

`rewards` combines reward components, `returns` sums the rewards after an act, `advantages` subtracts a baseline from
returns, `losses` turns advantages into a loss. `masked` and `statistics` are the kernels.
"""
