"""What administrators look at: findings, counts, the check of what is stored."""
