"""What a study's result says:

statistics  compares the arms with the baseline; ``moderation`` has their variances
power       what a study could have found
scaling     power laws and best sizes on a grid of budgets; ``exchange`` tests whether types differ,
            and ``laws`` words the findings
table       the comparison as tables for a terminal
"""
