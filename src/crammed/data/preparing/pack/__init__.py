"""From token ids to rows.

packing_job  a worker's job: the chunks of a shard -> rows
order        the rows of the corpus sorted from easy to hard, or the reverse
"""
