"""Banking77: which intent does a customer's query have?"""
