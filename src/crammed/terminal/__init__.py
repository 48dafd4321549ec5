"""What users see while a command runs, and how they stop it.

progress  progress bars, or plain lines, with the time left
table     tables: plain in a file, and never cut off
wrapping  where lines of a terminal end
quiet     silences the output of libraries
stopping  signals that end a command
"""
