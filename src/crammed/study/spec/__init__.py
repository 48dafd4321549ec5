"""What a study is:

arms     the study's file, and the configuration of each arm (``studies/``)
corpora  which corpus each arm reads
budgets  arms with several budgets
judging  the names of judges
small    recipes scaled down for a small budget, and values multiplied by factors
"""
