"""What a fine-tuning task is, and how its data becomes rows, in the order of processing:

task       tasks and suites as data; `suites/` has the built-in ones
layouts    finds the splits of a task: in folders of several layouts, or on the hub
glue_data  the layout in which GLUE was first published
read       a task -> its rows; errors name the file and the line or row
columns    one record -> texts, label and group
labels     one label -> class number or value
rows       the rows that were read
folds      training rows in parts, to be cross-validated
pairs      the pairs of sentences of BLiMP
texts      all texts of a suite, to find them elsewhere
"""
