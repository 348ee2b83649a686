"""A served model on a Ray cluster: one learner, and replicas by Ray Serve that answer questions.

snapshots  what predicts, as bytes, from the learner to its replicas
learner    the one process that learns and saves; Serve starts it again from the file when it dies
replica    answers questions by the last snapshot, and hands all else to the learner
run        starts both, and stops them
"""
