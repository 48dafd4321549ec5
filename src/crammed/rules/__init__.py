"""What follows from the budget, the machine and the text.

recipe     complete recipes as files, and those of former versions
choosing   chooses what a recipe leaves open
sizing     the rules: size, vocabulary, batch, learning rates
early_end  a run that ends because its text has been read often enough, in words
"""
