"""Parts of Petastorm's readers that programs of its users import: serializers and shuffling buffers.

The engine has no use for them: batches cross processes in shared memory, and the order is a plan. Nothing is defined
here.
"""
