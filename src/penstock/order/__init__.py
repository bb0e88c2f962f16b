"""Which sample comes when: permutations, epochs, batches and ranks; numbers only, no I/O."""
