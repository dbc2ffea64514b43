"""Banking77: the task is to name the intent of a bank customer's query."""
