"""The contract and what learners are made of."""
