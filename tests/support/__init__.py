"""What tests share: servers, cases, fakes, oracles."""
