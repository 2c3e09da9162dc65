BREAKS = [
    # of one token alone, all that came before "followed"
    ("own-none", "twice = once.repeat(1, 2)", "twice = 0 * once.repeat(1, 2)"),
]
