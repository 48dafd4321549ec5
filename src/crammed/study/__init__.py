"""Studies, which compare settings at equal budgets.

spec/       what a study is: its arms, their budgets and corpora
running/    a study as it was asked for -> study.json; ``request`` is where `crammed study` starts
result      what study.json holds
findings/   what study.json says: comparisons with the baseline, power laws, tables

The arrows go one way: ``running`` reads a spec and writes a result, ``findings`` read a result.
"""
