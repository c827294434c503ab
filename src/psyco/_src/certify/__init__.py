"""From a policy or recorded outcomes to a certificate."""
