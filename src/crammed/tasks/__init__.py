"""What a fine-tuning task is, and how its data becomes rows; in the order of the flow.

task       tasks and suites as data; `suites/` has the built-in ones
layouts    where the splits of a task are: folders of several layouts, the hub
glue_data  the layout in which GLUE was first published
read       a task -> its rows, with every fault named
columns    one record -> texts, label and group
labels     one label -> class number or value
rows       what has been read
"""
