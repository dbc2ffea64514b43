"""Banking77: classify the intent of a bank customer's query."""
