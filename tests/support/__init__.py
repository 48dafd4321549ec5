"""What tests share: small text, corpora, models and tasks that they make themselves."""
