"""What all cookbooks share: serving, calling a model, reading a brief, the offline reflector and the acceptance."""
