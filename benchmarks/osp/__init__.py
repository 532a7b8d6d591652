"""localSGD and its relatives compared, with records of every round. See README.md."""
