"""What a person sees while something runs, and how they stop it.

progress  one line that is written over, with the time left
quiet     silences what libraries write
stopping  signals that end a command
"""
