BREAKS = [
    # another pair: neighbours that are not shared
    ("put-shared", "at(shared, task.interchangeable)", "at(shared, task.collocated)"),
    # by chance: without the logarithm undone
    ("put-meet", "information = pointwise_information(task.neighbours)",
     "information = pointwise_information(task.neighbours.mean(0, True).expand(50, 50))"),
    # nothing is learned
    ("put-tables", "adam.step()", "pass"),
    # the word after, and not before, is noted
    ("put-by-hand", "torch.ones(3), -1)", "torch.ones(3), 1)"),
    # rounds of other lengths: nothing to count by
    ("put-ten-right", "put_induction.ROUND)", "put_induction.ANEW)"),
    # the values' sizes change places
    ("put-nothing", "A = torch.tensor([[0.9, 0.1]])", "A = torch.tensor([[0.1, 0.9]])"),
    # the even mean without a mask
    ("put-column", "torch.ones(64, 64).tril()", "torch.ones(64, 64)"),
    # who is followed by what changes places
    ("put-half", "[[0.5, 0.5, 0], [1, 0, 0]]", "[[1, 0, 0], [0.5, 0.5, 0]]"),
]  # fmt: skip
